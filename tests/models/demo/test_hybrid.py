"""The shipped hybrid is a Kimi Linear that transformers loads whole, and that has learnt to write."""

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from wavepp.models.demo.hybrid_checkpoint import bits_per_byte, checkpoint_tensors, continuation
from wavepp.models.demo.hybrid_recipe import hybrid_config
from wavepp.models.demo.resolve import resolve_model

from .loading import load_whole

FOLDER = resolve_model("demo-hybrid")
HELD_OUT = Path(__file__).parent / "held_out.txt"
LIMIT = 16 * 1000 * 1000


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_whole(FOLDER)


def test_the_folder_is_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) <= LIMIT


def test_three_kda_layers_stand_before_each_mla_layer_and_moe_follows_the_first(model: PreTrainedModel) -> None:
    linear, full = "linear_attention", "full_attention"
    assert model.config.layer_types == [linear, linear, linear, full] * 2
    assert model.config.mlp_layer_types == ["dense", *["sparse"] * 7]


def test_weights_bear_the_names_and_shapes_of_kimi_linear_checkpoints(model: PreTrainedModel) -> None:
    with safe_open(FOLDER / "model.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes["model.layers.0.self_attn.q_conv1d.weight"] == (128, 1, 4)
    assert shapes["model.layers.0.self_attn.A_log"] == (1, 1, 4, 1)
    assert shapes["model.layers.0.self_attn.f_a_proj.weight"] == (32, 128)
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (384, 128)
    assert shapes["model.layers.1.block_sparse_moe.experts.7.w2.weight"] == (128, 128)
    assert shapes["model.layers.1.block_sparse_moe.gate.e_score_correction_bias"] == (8,)
    assert shapes["model.layers.3.self_attn.kv_a_proj_with_mqa.weight"] == (80, 128)
    assert not [name for name in shapes if "forget_gate" in name or "gate_up_proj" in name]


def test_writing_the_loaded_model_again_gives_the_same_weights(model: PreTrainedModel) -> None:
    again = checkpoint_tensors(model)
    with safe_open(FOLDER / "model.safetensors", framework="pt") as file:
        assert set(again) == set(file.keys())
        for name, tensor in again.items():
            assert torch.equal(tensor, file.get_tensor(name)), name


def test_the_shipped_config_is_the_one_that_training_would_write(model: PreTrainedModel) -> None:
    config = hybrid_config()
    for key in ("vocab_size", "hidden_size", "eos_token_id", "kv_lora_rank", "routed_scaling_factor"):
        assert getattr(model.config, key) == config[key]


def test_held_out_text_costs_at_most_two_bits_a_byte(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    documents = [text + "\n" for text in HELD_OUT.read_text(encoding="utf-8").rstrip("\n").split("\n\n")]
    assert len(documents) == 5
    assert bits_per_byte(model, tokenizer, documents) <= 2.0


def test_every_expert_has_work(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = torch.tensor([tokenizer.encode(HELD_OUT.read_text(encoding="utf-8"))[:1024]])
    with torch.no_grad():
        routers = model(ids, output_router_logits=True).router_logits
    assert len(routers) == 7
    biases = [layer.mlp.gate.e_score_correction_bias for layer in model.model.layers[1:]]
    for logits, bias in zip(routers, biases, strict=True):
        chosen = (logits.float().sigmoid() + bias).topk(2, dim=-1).indices
        load = torch.bincount(chosen.flatten(), minlength=8) / chosen.numel()
        assert load.min() > 0.01, f"an expert is idle: {load}"


def test_a_prompt_is_continued_with_words_of_the_language(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompt = "And it came to pass"
    text = continuation(model, tokenizer, prompt, 40).removeprefix(prompt)
    words = re.findall(r"[a-z]+", text.lower())
    known = set(re.findall(r"[a-z]+", HELD_OUT.read_text(encoding="utf-8").lower()))
    assert len(words) >= 20
    assert sum(word in known for word in words) >= 0.7 * len(words), text


def test_the_tokenizer_gives_back_any_text(tokenizer: PreTrainedTokenizerBase) -> None:
    for text in ("In the beginning", "  two  spaces\n\n", "naïve — 日本語 🙂", "x = 12345\t;"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == 0
