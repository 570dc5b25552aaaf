"""The gated SiLU MLP."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from ..weights import Scope
from .linear import Linear, load_fused, load_linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(silu(gate x) * up x), gate and up as one map."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x, wide=True).chunk(2, -1)
        return self.down(functional.silu(gate, inplace=True).mul_(up))


def load_mlp(scope: Scope, hidden: int, width: int, *, bias: bool = False) -> GatedMlp:
    gate_up = load_fused(scope, [("gate_proj", width), ("up_proj", width)], hidden, bias=bias)
    return GatedMlp(gate_up, load_linear(scope, "down_proj", hidden, width, bias=bias))
