"""What a model's stages take where nobody has measured it: from the model's description and nominal speeds.

Only proportions matter for how waves are planned, and observed stage times correct what is wrong: what must be about
right is how many tokens take as long as what a wave takes whatever it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..models.config import ModelSpec
from ..scheduler.cost_model import StageProfile, pairs_of

if TYPE_CHECKING:
    from ..models.estimate import LayerWork


@dataclass(frozen=True, slots=True)
class Reference:
    """The wave at which layers are weighed against each other: the average one of a prompt of `prompt` tokens in waves
    of `most`. Attention's weight grows with the prompt, and nothing else's does."""

    prompt: int
    most: int

    @property
    def tokens(self) -> int:
        return min(self.most, self.prompt)

    @property
    def pairs(self) -> float:
        return pairs_of((self.prompt - self.tokens) // 2, self.tokens)

    @property
    def ends(self) -> float:
        """Prompts that end in it: the head works once for each."""
        return self.tokens / self.prompt


REFERENCES = {"cpu": Reference(2_048, 512), "cuda": Reference(65_536, 8_192)}
"""By device."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Multiply-adds, bytes and seconds of one device, or of one CPU thread."""

    matrices: float
    states: float
    pairs: float
    bytes_per_s: float
    step_s: float
    overlap: bool
    """Whether reading weights and multiplying with them go on at once."""


CPU = Speeds(matrices=25e9, states=5e9, pairs=15e9, bytes_per_s=4e9, step_s=10e-6, overlap=False)
"""About what one thread of a server CPU with AVX2 does here in float32. A matrix product packs its weights first,
however few its rows: that is what bytes_per_s is of."""
CUDA = Speeds(matrices=250e12, states=25e12, pairs=150e12, bytes_per_s=3e12, step_s=5e-6, overlap=True)
"""About half of what a data-centre GPU of 2023 can do in bfloat16."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of each layer for one wave, and what embedding and head add to those."""

    layers: tuple[float, ...]
    entry: float = 0.0
    exit: float = 0.0

    def shares(self, parts: Sequence[range]) -> tuple[float, ...]:
        """Each stage's time."""
        times = [sum(self.layers[layer] for layer in part) for part in parts]
        times[0] += self.entry
        times[-1] += self.exit
        return tuple(times)


def estimated_times(spec: ModelSpec, device: str, dtype: str) -> LayerTimes:
    """At the device's reference. The same on every host: `device` is `cpu` or `cuda`, a CPU has one thread."""
    speeds, reference = _speeds(device, 1), REFERENCES[device]
    layers, head = _work(spec, dtype)
    times = (
        _wave_s(layer, speeds)
        + max(_weight_s(layer, speeds), _token_s(layer, speeds) * reference.tokens)
        + layer.pair / speeds.pairs * reference.pairs
        for layer in layers
    )
    # One row is multiplied with the whole head: reading it is all of the work.
    head_s = max(head / speeds.matrices, head * (4 if dtype == "float32" else 2) / speeds.bytes_per_s)
    return LayerTimes(tuple(times), exit=head_s * reference.ends)


def estimated_profile(spec: ModelSpec, parts: Sequence[range], device: str, dtype: str, threads: int) -> StageProfile:
    """Of an average one of the stages that hold `parts`."""
    speeds = _speeds(device, threads)
    layers, _ = _work(spec, dtype)
    count = len(parts)
    times = estimated_times(spec, device, dtype)
    return StageProfile(
        name=f"estimated for {device}",
        wave_s=sum(_wave_s(layer, speeds) for layer in layers) / count,
        weight_s=sum(_weight_s(layer, speeds) for layer in layers) / count,
        token_s=sum(_token_s(layer, speeds) for layer in layers) / count,
        context_s=sum(layer.pair for layer in layers) / speeds.pairs / count,
        stages=count,
        layers=times.layers,
        exit=times.exit,
        shares=times.shares(parts),
    )


def _speeds(device: str, threads: int) -> Speeds:
    if device == "cuda":
        return CUDA
    return Speeds(CPU.matrices * threads, CPU.states * threads, CPU.pairs * threads, CPU.bytes_per_s, CPU.step_s, False)


def _work(spec: ModelSpec, dtype: str) -> tuple[tuple[LayerWork, ...], float]:
    import torch  # Slow to import, and not needed for partitions that are even or by hand.

    from ..models.estimate import model_work

    work = model_work(spec, getattr(torch, dtype))
    return work.layers, work.head


def _reading_s(layer: LayerWork, speeds: Speeds) -> float:
    return layer.num_bytes / speeds.bytes_per_s


def _wave_s(layer: LayerWork, speeds: Speeds) -> float:
    return layer.steps * speeds.step_s + (0.0 if speeds.overlap else _reading_s(layer, speeds))


def _weight_s(layer: LayerWork, speeds: Speeds) -> float:
    return _reading_s(layer, speeds) if speeds.overlap else 0.0


def _token_s(layer: LayerWork, speeds: Speeds) -> float:
    return layer.matrices / speeds.matrices + layer.state / speeds.states
