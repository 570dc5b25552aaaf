"""Which layers each stage of the group holds, and what a stage takes where nobody has measured it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..models.config import ModelSpec
from ..models.partition import balanced_partition, even_partition, parse_partition
from ..scheduler.cost_model import StageProfile
from .config import EngineConfig

if TYPE_CHECKING:
    from ..models.estimate import ModelWork

_CONTEXT = 2_048
"""Tokens before a token, where layers are weighed against each other without a measurement."""
_PROMPT = 2_048
"""Tokens of a prompt, over which the head's work is spread."""

_MACS_PER_S = {"float32": 12e9, "bfloat16": 25e9}
"""Multiply-adds a second of one CPU thread's matrix products, about. Observed stage times correct what is wrong."""
_PAIR_MACS_PER_S = 6e9
"""The same of its attention."""
_LAYER_S = 150e-6
"""What launching a layer takes on the CPU, about."""
_BYTES_PER_S = 10e9
"""How fast a stage's weights are read, about."""


def place(spec: ModelSpec, config: EngineConfig, profile: StageProfile) -> list[range]:
    """By hand where the config says so, even where it says nothing. Balanced: by the profile's layers where it has
    them, else by the model's description. Raises PartitionError for what does not fit the model."""
    if config.partition is None or config.partition == "even":
        return even_partition(spec.num_layers, config.pp)
    if config.partition != "balanced":
        return parse_partition(config.partition, spec.num_layers, config.pp)
    if len(profile.layers) == spec.num_layers:
        return balanced_partition(profile.layers, config.pp, first=profile.entry, last=profile.exit)
    work = _work(spec, config)
    return balanced_partition(work.costs(_CONTEXT), config.pp, last=work.head / _PROMPT)


def estimated_profile(spec: ModelSpec, config: EngineConfig) -> StageProfile:
    """Of an average stage of this model on the CPU, from the model's description and nominal speeds."""
    work, threads = _work(spec, config), config.resolved_threads()
    parts = place(spec, config, StageProfile(wave_s=0, token_s=1))
    layers = work.layers
    pair_s = sum(layer.pair for layer in layers) / (_PAIR_MACS_PER_S * threads)
    token_s = sum(layer.token for layer in layers) / (_MACS_PER_S[config.resolved_dtype()] * threads)
    costs = work.costs(_CONTEXT)
    return StageProfile(
        name="estimated",
        wave_s=_LAYER_S * spec.num_layers / config.pp,
        weight_s=sum(work.num_bytes) / config.pp / _BYTES_PER_S,
        token_s=token_s / config.pp,
        context_s=pair_s / config.pp,
        shares=tuple(sum(costs[layer] for layer in part) for part in parts),
    )


def _work(spec: ModelSpec, config: EngineConfig) -> ModelWork:
    import torch  # Slow to import, and not needed for what is even or by hand.

    from ..models.estimate import model_work

    return model_work(spec, getattr(torch, config.resolved_dtype()))
