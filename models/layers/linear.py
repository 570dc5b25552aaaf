"""A linear map as stored in checkpoints: weight `[out, in]`, optional bias `[out]`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..kernels import cpu_gemm
from ..weights import Scope


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x Wᵀ + b, in the weight's dtype; with `wide`, in float32 where the device computes it so."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
        return cpu_gemm.linear(x, self.weight, self.bias, wide=wide)


def load_linear(scope: Scope, name: str, out: int, inp: int, *, bias: bool = False) -> Linear:
    part = scope.scope(name)
    return Linear(part.take("weight", out, inp), part.take("bias", out) if bias else None)


def load_fused(scope: Scope, parts: Sequence[tuple[str, int]], inp: int, *, bias: bool = False) -> Linear:
    """Several maps of one input as one: a single larger matrix product is faster. `parts` are (name, out)."""
    loaded = [load_linear(scope, name, out, inp, bias=bias) for name, out in parts]
    biases = [part.bias for part in loaded if part.bias is not None]
    return Linear(torch.cat([part.weight for part in loaded]), torch.cat(biases) if bias else None)
