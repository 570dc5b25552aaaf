"""The pre-norm residual layer that most families share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from ..batch import Activations
from ..family import HIDDEN
from ..wave import Wave
from .norm import rms_norm

LayerPool = Mapping[str, torch.Tensor]
"""Tensor name -> storage of one layer."""


class Layer(Protocol):
    """One layer of a stage."""

    def __call__(self, stream: Activations, wave: Wave, pools: Mapping[str, LayerPool]) -> None:
        """Puts its own `[T, ...]` tensors in the place of those in `stream`, or beside them. None is written to: what
        came from the stage before lies in a buffer that is not ours. Reads and writes the wave's state in `pools`."""
        ...


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

    def __call__(self, stream: Activations, wave: Wave, pools: Mapping[str, LayerPool]) -> None:
        x = stream[HIDDEN]
        x = x + self.mixer(rms_norm(x, self.input_norm, self.eps), wave, pools[self.name])
        stream[HIDDEN] = x + self.mlp(rms_norm(x, self.post_norm, self.eps))
