"""Multi-head latent attention without position encoding (Kimi Linear)."""

from dataclasses import dataclass

import torch

from ..kernels.interface import Kernels
from ..kimi_linear_config import MlaConfig
from ..wave import Wave
from ..weights import Scope
from .decoder import LayerPool
from .linear import Linear, load_linear
from .norm import rms_norm

_LATENT_EPS = 1e-6
"""The norms of the latents keep this whatever the model's rms_norm_eps."""


@dataclass(frozen=True, slots=True)
class QueryProjection:
    """Full, or through a normalised latent when `down` is given."""

    up: Linear
    down: Linear | None = None
    norm: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.down is not None and self.norm is not None:
            x = rms_norm(self.down(x), self.norm, _LATENT_EPS)
        return self.up(x)


@dataclass(frozen=True, slots=True)
class MlaAttention:
    """Pool: `ckv` `[pages, B, kv_lora_rank]`, normalised; `kpe` `[pages, B, rope_dim]`.

    `kv_b` `[H, nope_dim + v_dim, kv_lora_rank]` expands a latent to each head's key part and value.
    """

    config: MlaConfig
    query: QueryProjection
    kv_a: Linear
    kv_norm: torch.Tensor
    kv_b: torch.Tensor
    output: Linear
    kernels: Kernels

    def __call__(self, x: torch.Tensor, wave: Wave, pool: LayerPool) -> torch.Tensor:
        config = self.config
        q = self.query(x).view(-1, config.num_heads, config.qk_dim)
        ckv, kpe = self.kv_a(x).split([config.kv_lora_rank, config.rope_dim], -1)
        ckv = rms_norm(ckv, self.kv_norm, _LATENT_EPS)
        scale = config.qk_dim**-0.5
        out = self.kernels.mla(wave, q, ckv, kpe, pool["ckv"], pool["kpe"], self.kv_b, scale)
        return self.output(out.flatten(1))


def load_mla(scope: Scope, config: MlaConfig, hidden: int, kernels: Kernels) -> MlaAttention:
    heads, rank = config.num_heads, config.kv_lora_rank
    expanded = config.nope_dim + config.v_dim
    return MlaAttention(
        config=config,
        query=_load_query(scope, config, hidden),
        kv_a=load_linear(scope, "kv_a_proj_with_mqa", rank + config.rope_dim, hidden),
        kv_norm=scope.take("kv_a_layernorm.weight", rank),
        kv_b=load_linear(scope, "kv_b_proj", heads * expanded, rank).weight.view(heads, expanded, rank),
        output=load_linear(scope, "o_proj", hidden, heads * config.v_dim),
        kernels=kernels,
    )


def _load_query(scope: Scope, config: MlaConfig, hidden: int) -> QueryProjection:
    width, rank = config.num_heads * config.qk_dim, config.q_lora_rank
    if rank is None:
        return QueryProjection(load_linear(scope, "q_proj", width, hidden))
    return QueryProjection(
        up=load_linear(scope, "q_b_proj", width, rank),
        down=load_linear(scope, "q_a_proj", rank, hidden),
        norm=scope.take("q_a_layernorm.weight", rank),
    )
