"""From the last layer to the head."""

from dataclasses import dataclass

import torch

from ..batch import Activations
from ..config import ModelSpec
from ..family import HIDDEN
from ..weights import Scope
from .norm import rms_norm


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The residual stream, normalised."""

    weight: torch.Tensor
    eps: float

    def __call__(self, stream: Activations) -> torch.Tensor:
        return rms_norm(stream[HIDDEN], self.weight, self.eps)


def load_final_norm(model: Scope, spec: ModelSpec) -> FinalNorm:
    return FinalNorm(model.take("norm.weight", spec.hidden_size), spec.rms_norm_eps)
