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

_CHUNK = 64
"""Tokens that recurrent layers work on at a time."""
_STATE_PASSES = 3
"""A recurrent state is read, decayed and added to: about so many multiply-adds an element."""
_PAIR_PASSES = 4
"""Within a chunk two products have keys in them, and two have values."""
_STEPS, _EXPERT_STEPS, _RECURRENT_STEPS = 30, 12, 120
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Multiply-adds. `matrices` are a token's with the weights that it meets, `state` its own with a recurrent state
    and its chunk, `pair` those with each token before it. `num_bytes`: all weights. `steps`: about how many operations
    a wave starts here, whatever it carries."""

    matrices: float
    state: float
    pair: float
    num_bytes: int
    steps: int


@dataclass(frozen=True, slots=True)
class ModelWork:
    """`head`: multiply-adds of one prompt's last row."""

    layers: tuple[LayerWork, ...]
    head: float


def model_work(spec: ModelSpec, dtype: torch.dtype) -> ModelWork:
    """Plans every layer and reads none."""
    layers = tuple(_layer_work(spec, layer, dtype) for layer in range(spec.num_layers))
    return ModelWork(layers, spec.vocab_size * spec.hidden_size)


def _layer_work(spec: ModelSpec, layer: int, dtype: torch.dtype) -> LayerWork:
    plan = plan_stage(spec, range(layer, layer + 1), dtype)
    matrices, num_bytes = 0.0, 0
    experts: set[str] = set()
    for name, (_, shape, kind) in plan.wanted.items():
        if f"layers.{layer}." not in name:
            continue
        expert = _EXPERT.search(name)
        if expert is not None:
            experts.add(expert[1])
        num_bytes += prod(shape) * kind.itemsize
        if len(shape) > 1:
            matrices += prod(shape) * (1.0 if expert is None else spec.family.expert_share)
    state = _state_work(spec, layer)
    steps = _STEPS + _EXPERT_STEPS * len(experts) + _RECURRENT_STEPS * (state > 0)
    return LayerWork(matrices, state, spec.family.pair_macs(layer), num_bytes, steps)


def _state_work(spec: ModelSpec, layer: int) -> float:
    cached = spec.family.layer_cache(layer, "float32")
    if cached.window is not Window.RECURRENT:
        return 0.0
    macs = 0.0
    for tensor in cached.tensors:
        if tensor.name == "state":
            heads, keys, values = tensor.shape
            macs += heads * (_STATE_PASSES * keys * values + _PAIR_PASSES * _CHUNK * (keys + values) / 2)
    return macs
