"""Writes a trained hybrid as Kimi Linear's own checkpoints are written, and measures what it has learnt."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .hybrid_recipe import hybrid_config, write_json

_KEPT_IN_FP32 = ("A_log", "dt_bias", "e_score_correction_bias", "gate.weight")


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights under the names of Kimi Linear's checkpoints: bf16, but for gates and router, which stay fp32.

    transformers fuses convolutions and experts when it loads; here they are taken apart again.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        for final_name, part in _split(name, value.detach().float()):
            dtype = torch.float32 if final_name.endswith(_KEPT_IN_FP32) else torch.bfloat16
            tensors[final_name] = part.to(dtype).contiguous().clone()
    return tensors


def _split(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    name = name.replace(".forget_gate.", ".")
    for sparse in (".mlp.experts.", ".mlp.shared_experts.", ".mlp.gate."):
        name = name.replace(sparse, sparse.replace("mlp", "block_sparse_moe"))
    prefix, _, last = name.rpartition(".")
    if name.endswith(".conv1d.weight"):
        stem = name.removesuffix("conv1d.weight")
        for part, of in zip(value.chunk(3), "qkv", strict=True):
            yield f"{stem}{of}_conv1d.weight", part
    elif last == "gate_up_proj":
        for expert, weight in enumerate(value):
            for part, of in zip(weight.chunk(2), ("w1", "w3"), strict=True):
                yield f"{prefix}.{expert}.{of}.weight", part
    elif last == "down_proj":
        for expert, weight in enumerate(value):
            yield f"{prefix}.{expert}.w2.weight", weight
    else:
        yield name, value


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Writes config, weights, tokenizer and generation defaults to `out`, over what an earlier call wrote."""
    out.mkdir(parents=True, exist_ok=True)
    config = hybrid_config()
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id")})
    tokenizer.save_pretrained(out)
    weights = out / "model.safetensors"
    save_file(checkpoint_tensors(model), weights, metadata={"format": "pt"})
    weights.chmod(0o644)


@torch.no_grad()
def bits_per_byte(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> float:
    """Bits that the model spends on a UTF-8 byte of the documents, each read alone from its beginning."""
    model.eval()
    bits, length = 0.0, 0
    for document in documents:
        tokens = [tokenizer.eos_token_id, *tokenizer.encode(document, add_special_tokens=False)]
        ids = torch.tensor([tokens], device=model.device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0].float()
        bits += functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item() / math.log(2)
        length += len(document.encode())
    return bits / length


@torch.no_grad()
def continuation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: int = 60) -> str:
    """The prompt and the `tokens` likeliest tokens after it, one by one, without a cache."""
    model.eval()
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)], device=model.device)
    for _ in range(tokens):
        logits = model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return str(tokenizer.decode(ids[0]))
