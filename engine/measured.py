"""From what was measured of a model's layers to the profile of its stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..models.config import ModelSpec
from ..models.partition import balanced_partition, partition_text
from ..models.stage_model import plan_stage
from ..scheduler.cost_model import StageProfile
from .estimated import LayerTimes, Reference
from .profile_fit import Fit, Point, fit

_LEAST_TOKEN_S = 1e-9
"""No profile has tokens that take no time, which is what may be found of a model that is too small to be measured."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers that take the same tensors and keep the same state. `name`: their mixer and their MLP."""

    name: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaveTimes:
    """Seconds of one wave: what every stage does before its layers, the embedding, and a layer of each kind."""

    tokens: int
    pairs: float
    spans: int
    prepare_s: float
    embedding_s: float
    kinds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """`head_s`: of one prompt's logits. `waited`: for which part of the time others had the core."""

    kinds: tuple[Kind, ...]
    waves: tuple[WaveTimes, ...]
    head_s: float
    waited: float

    def kind_fit(self, kind: int) -> Fit:
        """Of one layer."""
        return fit([Point(wave.tokens, wave.pairs, wave.kinds[kind]) for wave in self.waves])

    def stage_points(self, num_stages: int) -> list[Point]:
        """What a stage of average size takes."""
        counts = [len(kind.layers) for kind in self.kinds]
        return [
            Point(
                wave.tokens,
                wave.pairs,
                wave.prepare_s
                + (wave.embedding_s + sum(n * each for n, each in zip(counts, wave.kinds, strict=True))) / num_stages,
            )
            for wave in self.waves
        ]

    def layer_times(self, reference: Reference) -> LayerTimes:
        """By the fits."""
        by_layer = {
            layer: self.kind_fit(number).seconds(reference.tokens, reference.pairs)
            for number, kind in enumerate(self.kinds)
            for layer in kind.layers
        }
        near = min(self.waves, key=lambda wave: abs(wave.tokens - reference.tokens))
        return LayerTimes(
            layers=tuple(by_layer[layer] for layer in sorted(by_layer)),
            entry=near.embedding_s,
            exit=self.head_s * reference.ends,
        )

    def profile(self, name: str, num_stages: int, reference: Reference) -> tuple[StageProfile, Fit]:
        """And the fit that it is made from."""
        found, times = fit(self.stage_points(num_stages)), self.layer_times(reference)
        parts = balanced_partition(times.layers, num_stages, first=times.entry, last=times.exit)
        profile = StageProfile(
            name=name,
            wave_s=found.wave_s,
            weight_s=found.weight_s,
            token_s=max(found.token_s, _LEAST_TOKEN_S),
            context_s=found.context_s,
            stages=num_stages,
            layers=times.layers,
            entry=times.entry,
            exit=times.exit,
            partition=partition_text(parts),
        )
        return profile, found


def kinds_of(spec: ModelSpec, dtype: torch.dtype) -> list[Kind]:
    """In the order in which they first come."""
    found: dict[object, list[int]] = {}
    names: list[str] = []
    for layer in range(spec.num_layers):
        plan = plan_stage(spec, range(layer, layer + 1), dtype)
        mark = f"layers.{layer}."
        own = tuple(sorted((name.replace(mark, ""), want[1]) for name, want in plan.wanted.items() if mark in name))
        cached = spec.family.layer_cache(layer, "float32")
        same = found.setdefault((own, cached.kind, cached.tensors), [])
        if not same:
            names.append(f"{cached.kind}, {'moe' if any('.experts.' in name for name, _ in own) else 'dense'}")
        same.append(layer)
    if len(set(names)) < len(names):
        names = [f"{name} ({number + 1})" for number, name in enumerate(names)]
    return [Kind(name, tuple(layers)) for name, layers in zip(names, found.values(), strict=True)]
