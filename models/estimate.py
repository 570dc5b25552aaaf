"""How much work a model's layers are, from its description alone.

A token's work in a layer is the multiply-adds of its matrices, of the experts it passes, and of its recurrent state;
the head works once for each prompt rather than for each token.
"""

import re
from dataclasses import dataclass
from math import prod

import torch

from ..cache.layout import Window
from .config import ModelSpec
from .stage_model import plan_stage

STATE_PASSES = 3
"""A recurrent state is decayed, read, written and read again for each token: about so many multiply-adds an element."""
_EXPERT = re.compile(r"\.experts\.")


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Multiply-adds: of one token, and of one pair of a token and one before it."""

    token: float
    pair: float


@dataclass(frozen=True, slots=True)
class ModelWork:
    """`head`: multiply-adds of one prompt's last row. `num_bytes`: each layer's weights."""

    layers: tuple[LayerWork, ...]
    head: float
    num_bytes: tuple[int, ...]

    def costs(self, context: int) -> list[float]:
        """What each layer takes for a token with so many before it, relative to each other."""
        return [layer.token + layer.pair * context for layer in self.layers]


def model_work(spec: ModelSpec, dtype: torch.dtype) -> ModelWork:
    """Plans every layer and reads none."""
    layers: list[LayerWork] = []
    sizes: list[int] = []
    for layer in range(spec.num_layers):
        plan = plan_stage(spec, range(layer, layer + 1), dtype)
        own = {name: shape for name, (_, shape, _) in plan.wanted.items() if f"layers.{layer}." in name}
        matrices = sum(
            prod(shape) * (spec.family.expert_share if _EXPERT.search(name) else 1.0)
            for name, shape in own.items()
            if len(shape) > 1
        )
        layers.append(LayerWork(matrices + _state_macs(spec, layer), spec.family.pair_macs(layer)))
        sizes.append(sum(prod(shape) for shape in own.values()) * dtype.itemsize)
    return ModelWork(tuple(layers), spec.vocab_size * spec.hidden_size, tuple(sizes))


def _state_macs(spec: ModelSpec, layer: int) -> int:
    cached = spec.family.layer_cache(layer, "float32")
    if cached.window is not Window.RECURRENT:
        return 0
    return STATE_PASSES * sum(prod(tensor.shape) for tensor in cached.tensors if tensor.name == "state")
