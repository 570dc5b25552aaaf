"""Grouped-query attention with rotary embedding (Llama, Mistral, Qwen2, Qwen3)."""

from dataclasses import dataclass

import torch

from ..dense_config import DenseConfig
from ..kernels.interface import Kernels
from ..wave import Wave
from ..weights import Scope
from .decoder import LayerPool
from .linear import Linear, load_fused, load_linear
from .norm import rms_norm
from .rotary import rotate


@dataclass(frozen=True, slots=True)
class GqaAttention:
    """Pool: `k` (after the rotation) and `v`, `[pages, B, num_kv_heads, head_dim]`."""

    config: DenseConfig
    qkv: Linear
    output: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float
    kernels: Kernels

    def __call__(self, x: torch.Tensor, wave: Wave, pool: LayerPool) -> torch.Tensor:
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        q, k, v = self.qkv(x).view(x.shape[0], -1, dim).split([heads, kv_heads, kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rms_norm(q, self.q_norm, self.eps), rms_norm(k, self.k_norm, self.eps)
        assert wave.rotary is not None
        q, k = rotate(q, wave.rotary), rotate(k, wave.rotary)
        out = self.kernels.gqa(wave, q, k, v, pool["k"], pool["v"], dim**-0.5)
        return self.output(out.flatten(1))


def load_gqa(scope: Scope, config: DenseConfig, hidden: int, eps: float, kernels: Kernels) -> GqaAttention:
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = [("q_proj", q_width), ("k_proj", kv_width), ("v_proj", kv_width)]
    norms = [scope.take(f"{part}_norm.weight", config.head_dim) if config.qk_norm else None for part in "qk"]
    return GqaAttention(
        config=config,
        qkv=load_fused(scope, parts, hidden, bias=config.qkv_bias),
        output=load_linear(scope, "o_proj", hidden, q_width, bias=config.output_bias),
        q_norm=norms[0],
        k_norm=norms[1],
        eps=eps,
        kernels=kernels,
    )
