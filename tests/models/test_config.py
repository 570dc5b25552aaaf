"""What is read from config.json, and what is refused and how."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from wavepp.cache.layout import Window, bytes_per_state, bytes_per_token
from wavepp.models.config import load_spec
from wavepp.models.errors import CheckpointError, UnsupportedModelError
from wavepp.models.kimi_linear_config import KimiLinearConfig
from wavepp.models.layers.rotary import inverse_frequencies
from wavepp.models.layout import cache_layout, hop_spec
from wavepp.models.rope import LinearScaling, RopeConfig

Factory = Callable[..., tuple[Path, PreTrainedModel]]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": [7, 9],
}

# The keys and the layer lists of the published 48B-A3B configuration.
FULL_ATTENTION = [4, 8, 12, 16, 20, 24, 27]
KIMI: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "eos_token_id": 163586,
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": FULL_ATTENTION,
        "head_dim": 128,
        "kda_layers": [layer for layer in range(1, 28) if layer not in FULL_ATTENTION],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def write(folder: Path, values: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_config_alone_is_enough_for_the_description(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, LLAMA))
    assert (spec.architecture, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("LlamaForCausalLM", 3, 64, 100)
    assert (spec.max_context, spec.dtype, spec.eos_token_ids) == (512, "bfloat16", (7, 9))
    assert spec.family.kind == "dense"
    assert (spec.family.num_kv_heads, spec.family.head_dim, spec.family.rope.theta) == (4, 16, 10000.0)


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 11]}))
    assert load_spec(write(tmp_path, LLAMA)).eos_token_ids == (7, 9, 11)


def test_the_published_kimi_linear_is_read_with_its_layer_lists(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, KIMI))
    family = spec.family
    assert isinstance(family, KimiLinearConfig)
    assert [layer + 1 for layer, mixer in enumerate(family.mixers) if mixer == "mla"] == FULL_ATTENTION
    assert family.sparse == (False, *[True] * 26)
    assert spec.max_context == 1048576
    layout = cache_layout(spec, range(27), torch.bfloat16)
    # 32 heads x 128 x 128 fp32, and three convolutions' last three inputs of 4096 channels in fp32, for 20 layers.
    assert bytes_per_state(layout) == 20 * (32 * 128 * 128 * 4 + 3 * 3 * 4096 * 4)
    assert bytes_per_token(layout) == 7 * (512 + 64) * 2


def test_layouts_name_layers_kinds_and_tensors(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, KIMI))
    kda, mla = cache_layout(spec, range(2, 4), "bfloat16")
    assert (kda.layer, kda.name, kda.kind, kda.window) == (2, "model.layers.2.self_attn", "kda", Window.RECURRENT)
    assert [tensor.name for tensor in kda.tensors] == ["state", "conv_q", "conv_k", "conv_v"]
    assert [tensor.name for tensor in mla.tensors] == ["ckv", "kpe"]
    assert [hop.shape for hop in hop_spec(spec, range(2, 4), "bfloat16")] == [(2304,)]
    assert hop_spec(spec, range(4, 27), "bfloat16") == ()


def test_both_forms_of_the_kimi_configuration_give_one_description(tiny_model_factory: Factory) -> None:
    published, _ = tiny_model_factory("kimi", pattern="KAK")
    saved, _ = tiny_model_factory("kimi", pattern="KAK", published=False)
    assert load_spec(published).family == load_spec(saved).family


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported: KimiLinear.*Qwen3"),
        ({"architectures": None}, "none named"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantized weights \(fp8\)"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 128}, "sliding_window = 128"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 64}, "= 64"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_spec(write(tmp_path, LLAMA | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"rms_norm_eps": True}, "rms_norm_eps must be a number"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
    ],
)
def test_a_malformed_config_names_the_key(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_spec(write(tmp_path, LLAMA | changes))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mla_use_nope": False}, UnsupportedModelError, "mla_use_nope"),
        ({"moe_router_activation_func": "softmax"}, UnsupportedModelError, "moe_router_activation_func"),
        ({"num_expert_group": 3}, CheckpointError, "3 groups"),
        ({"num_expert_group": 128, "topk_group": 2}, CheckpointError, "num_experts_per_token"),
        ({"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [3]}}, CheckpointError, "layers 1..27"),
        ({"linear_attn_config": {}}, CheckpointError, "neither linear_attn_config"),
        ({"layer_types": ["linear_attention"] * 27}, CheckpointError, "disagree"),
    ],
)
def test_a_kimi_option_that_cannot_be_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_spec(write(tmp_path, KIMI | changes))


def test_a_folder_without_config_and_one_with_broken_json_are_explained(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a Hugging Face model folder"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        load_spec(tmp_path)


def test_the_fingerprint_is_the_files_and_not_their_place(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    original = load_spec(folder).fingerprint
    assert load_spec(tmp_path).fingerprint == original
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert load_spec(tmp_path).fingerprint != original


@pytest.mark.parametrize("old_form", [True, False])
def test_llama3_frequencies_equal_transformers(old_form: bool, tmp_path: Path, tiny_model_factory: Factory) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    new_form = {"rope_parameters": {**scaling, "rope_theta": 500000.0}}
    changes = {"rope_theta": 500000.0, "rope_scaling": scaling} if old_form else new_form
    _, reference = tiny_model_factory("llama", num_hidden_layers=1, head_dim=64, **new_form)
    family = load_spec(write(tmp_path, LLAMA | changes)).family
    assert family.kind == "dense"
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](reference.config)
    torch.testing.assert_close(inverse_frequencies(family.rope, 64), expected)


def test_linear_scaling_divides_every_frequency() -> None:
    plain = inverse_frequencies(RopeConfig(theta=10000.0), 8)
    assert plain[0] == 1.0
    scaled = inverse_frequencies(RopeConfig(theta=10000.0, scaling=LinearScaling(factor=4.0)), 8)
    torch.testing.assert_close(scaled, plain / 4)
