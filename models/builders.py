"""Which code builds the layers of which family."""

from collections.abc import Callable
from typing import Protocol

import torch

from .batch import Activations
from .config import ModelSpec
from .dense import DenseBuilder
from .dense_config import DenseConfig
from .kernels.interface import Kernels
from .kimi_linear import KimiLinearBuilder
from .kimi_linear_config import KimiLinearConfig
from .layers.decoder import Layer
from .weights import Scope

Leave = Callable[[Activations], torch.Tensor]
"""From some rows of what the last layer left, `[R, ...]`, to what the head takes, `[R, hidden_size]`."""


class Builder(Protocol):
    """Builds one stage's part of a model; it takes exactly the tensors that it needs, when it needs them."""

    def layer(self, layer: int) -> Layer: ...

    def leave(self) -> Leave:
        """For the last stage."""
        ...


def builder_of(spec: ModelSpec, model: Scope, kernels: Kernels) -> Builder:
    """`model` is the scope under which a checkpoint keeps its layers."""
    match spec.family:
        case DenseConfig() as family:
            return DenseBuilder(spec, family, model, kernels)
        case KimiLinearConfig() as family:
            return KimiLinearBuilder(spec, family, model, kernels)
