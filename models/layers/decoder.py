"""The pre-norm residual layer that all families share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ..wave import Wave
from .norm import rms_norm

LayerPool = Mapping[str, torch.Tensor]
"""Tensor name -> storage of one layer."""


class Mixer(Protocol):
    """An attention or recurrent layer."""

    def __call__(self, x: torch.Tensor, wave: Wave, pool: LayerPool) -> torch.Tensor:
        """x `[T, hidden]` -> `[T, hidden]`; reads and writes the wave's pages or slots in `pool`."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """x += mixer(norm(x)); x += mlp(norm(x))."""

    name: str
    input_norm: torch.Tensor
    mixer: Mixer
    post_norm: torch.Tensor
    mlp: Callable[[torch.Tensor], torch.Tensor]
    eps: float

    def __call__(self, x: torch.Tensor, wave: Wave, pools: Mapping[str, LayerPool]) -> torch.Tensor:
        x = x + self.mixer(rms_norm(x, self.input_norm, self.eps), wave, pools[self.name])
        return x + self.mlp(rms_norm(x, self.post_norm, self.eps))
