"""Tiny random models, saved as Hugging Face folders (no tokenizer) by transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    KimiLinearConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 256


def tiny_llama(path: Path, **changes: Any) -> PreTrainedModel:
    """Save a float32 Llama in `path` and return it, the reference. `changes` go to LlamaConfig."""
    return _save(path, LlamaConfig, _dense_options(changes))


def tiny_mistral(path: Path, **changes: Any) -> PreTrainedModel:
    """Save a float32 Mistral without sliding window in `path` and return it. `changes` go to MistralConfig."""
    return _save(path, MistralConfig, _dense_options({"sliding_window": None, **changes}))


def tiny_qwen2(path: Path, **changes: Any) -> PreTrainedModel:
    """Save a float32 Qwen2, which has biases on q, k and v, in `path` and return it. `changes` go to Qwen2Config."""
    return _save(path, Qwen2Config, _dense_options(changes))


def tiny_qwen3(path: Path, **changes: Any) -> PreTrainedModel:
    """Save a float32 Qwen3 with tied embeddings in `path` and return it. `changes` go to Qwen3Config."""
    return _save(path, Qwen3Config, _dense_options({"tie_word_embeddings": True, **changes}))


def tiny_kimi(path: Path, *, pattern: str = "KKKA", published: bool = True, **changes: Any) -> PreTrainedModel:
    """Save a float32 Kimi Linear in `path` and return it.

    `pattern`: one letter a layer, K for KDA and A for full attention (MLA). `published`: write config.json with
    the keys of the published checkpoints (`linear_attn_config`), not as transformers writes it.
    """
    kinds = ["linear_attention" if letter == "K" else "full_attention" for letter in pattern]
    options: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_hidden_layers": len(pattern),
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "layer_types": kinds,
        "max_position_embeddings": 1024,
        **changes,
    }
    model = _save(path, KimiLinearConfig, options)
    if published:
        _publish_kimi_config(path / "config.json", pattern)
    return model


def _dense_options(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        **changes,
    }


def _save(path: Path, config_class: type[PreTrainedConfig], options: dict[str, Any]) -> PreTrainedModel:
    tokens = {"vocab_size": VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = config_class(**{**tokens, **options})
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _spread(name, parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.2, 0.2)
    torch.random.set_rng_state(generator_state)
    model.save_pretrained(path)
    return model


def _spread(name: str, parameter: torch.nn.Parameter) -> None:
    """Draw weights large enough that a mistake in any of them shows in the logits; decays stay as they are."""
    if name.endswith(("A_log", "dt_bias")):
        return
    if "norm" in name:
        parameter.uniform_(0.5, 1.5)
    elif "conv1d" in name:
        parameter.uniform_(-0.7, 0.7)
    elif name.endswith("bias"):
        parameter.uniform_(-0.3, 0.3)
    else:
        parameter.normal_(std=parameter.shape[-1] ** -0.5)


def _publish_kimi_config(path: Path, pattern: str) -> None:
    values = json.loads(path.read_text())
    values["linear_attn_config"] = {
        "kda_layers": [index for index, letter in enumerate(pattern, 1) if letter == "K"],
        "full_attn_layers": [index for index, letter in enumerate(pattern, 1) if letter == "A"],
        "head_dim": values.pop("linear_head_dim"),
        "num_heads": values.pop("linear_num_heads"),
        "short_conv_kernel_size": values.pop("linear_conv_kernel_dim"),
    }
    dense = values.pop("mlp_layer_types").count("dense")
    values |= {"first_k_dense_replace": dense, "moe_layer_freq": 1, "mla_use_nope": True}
    values["moe_router_activation_func"] = "sigmoid"
    del values["layer_types"]
    path.write_text(json.dumps(values, indent=2))
