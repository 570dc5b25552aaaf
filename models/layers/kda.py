"""Kimi Delta Attention (Kimi Linear): short convolutions, the gated delta rule, a gated norm."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from ..kernels.interface import Kernels
from ..kimi_linear_config import KdaConfig
from ..wave import Wave
from ..weights import Scope
from .decoder import LayerPool
from .linear import Linear, load_fused, load_linear
from .norm import gated_rms_norm

_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class KdaAttention:
    """Pool: `state` float32 `[slots, H, K, V]`; `conv_q`, `conv_k`, `conv_v` float32 `[slots, W - 1, H * K]`.

    `inputs` gives q, k, v, then the low-rank inputs of the decay and of the output gate, then beta.
    """

    config: KdaConfig
    inputs: Linear
    conv: torch.Tensor
    decay_up: Linear
    decay_bias: torch.Tensor
    decay_rate: torch.Tensor
    gate_up: Linear
    norm: torch.Tensor
    output: Linear
    eps: float
    kernels: Kernels

    def __call__(self, x: torch.Tensor, wave: Wave, pool: LayerPool) -> torch.Tensor:
        heads, dim = self.config.num_heads, self.config.head_dim
        mixed, low_decay, low_gate, beta = self.inputs(x).split([3 * heads * dim, dim, dim, heads], -1)
        convs = (pool["conv_q"], pool["conv_k"], pool["conv_v"])
        mixed = self.kernels.short_conv(wave, mixed, self.conv, convs).view(-1, 3, heads, dim)
        q, k, v = mixed.unbind(1)
        steps = functional.softplus(self.decay_up(low_decay).float() + self.decay_bias).view(-1, heads, dim)
        log_decay = steps * self.decay_rate.unsqueeze(-1)
        out = self.kernels.kda(wave, _unit(q), _unit(k), v, log_decay, torch.sigmoid(beta.float()), pool["state"])
        gate = self.gate_up(low_gate).view(-1, heads, dim)
        return self.output(gated_rms_norm(out, gate, self.norm, self.eps).to(x.dtype).flatten(1))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _NORM_EPS)


def load_kda(scope: Scope, config: KdaConfig, hidden: int, eps: float, kernels: Kernels) -> KdaAttention:
    heads, dim, taps = config.num_heads, config.head_dim, config.conv_width
    width = heads * dim
    projections = [(f"{part}_proj", width) for part in "qkv"]
    low_rank = [("f_a_proj", dim), ("g_a_proj", dim), ("b_proj", heads)]
    convs = [scope.take(f"{part}_conv1d.weight", width, 1, taps, dtype=torch.float32) for part in "qkv"]
    return KdaAttention(
        config=config,
        inputs=load_fused(scope, [*projections, *low_rank], hidden),
        conv=torch.cat(convs).squeeze(1).T.contiguous(),
        decay_up=load_linear(scope, "f_b_proj", width, dim),
        decay_bias=scope.take("dt_bias", width, dtype=torch.float32),
        decay_rate=-scope.take("A_log", heads, dtype=torch.float32).exp(),
        gate_up=load_linear(scope, "g_b_proj", width, dim),
        norm=scope.take("o_norm.weight", dim),
        output=load_linear(scope, "o_proj", hidden, width),
        eps=eps,
        kernels=kernels,
    )
