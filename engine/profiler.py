"""Measures how long a model's layers take on this machine's device: what `wavepp profile` runs.

A few of the model's layers are loaded as a stage, at least one of every kind, and run through `StageModel.forward` on
real pages and slots, with waves of several lengths and contexts. Each layer is timed where it stands, among others
that push its weights out of the caches. What is measured is put together in `measured.py`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..cache.device_pools import DevicePools
from ..models.batch import Activations, SpanState, WaveBatch
from ..models.config import load_spec
from ..models.stage_model import StageModel, load_stage
from ..scheduler.cost_model import pairs_of
from .measured import Kind, Measured, WaveTimes, kinds_of

BLOCK = 64
_LAYERS = 4
"""Of the first stage that are run: with more it would only take longer."""
_HEADS = 5
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A wave: `spans` of `length` tokens each, behind `context` tokens of their prompts."""

    length: int
    context: int = 0
    spans: int = 1

    @property
    def tokens(self) -> int:
        return self.spans * self.length

    @property
    def pairs(self) -> float:
        return self.spans * pairs_of(self.context, self.length)

    @property
    def blocks(self) -> int:
        """Of one span, with its context."""
        return -(-(self.context + self.length) // BLOCK)

    def batch(self) -> WaveBatch:
        """Span n has the n-th so many pages, and slot n."""
        spans = [
            SpanState(self.context, self.length, tuple(range(n * self.blocks, (n + 1) * self.blocks)), n)
            for n in range(self.spans)
        ]
        return WaveBatch(spans, BLOCK)


@dataclass(frozen=True, slots=True)
class Effort:
    """All shapes are run in turn, once to warm up and then at most `rounds` times, as long as that takes less than
    `budget_s` in all; at least once."""

    shapes: tuple[Shape, ...]
    rounds: int
    budget_s: float


FULL = Effort(
    (
        *(Shape(length) for length in (8, 16, 32, 64, 128, 256, 384, 512, 768, 1_024)),
        *(Shape(length, 1_024) for length in (64, 256)),
        *(Shape(length, 4_096) for length in (64, 256)),
        Shape(512, 2_048),
        Shape(128, 512, spans=4),
        Shape(64, 1_024, spans=4),
    ),
    rounds=7,
    budget_s=70,
)
QUICK = Effort(
    (*(Shape(length) for length in (16, 64, 256, 512)), Shape(64, 1_024), Shape(256, 2_048)), rounds=3, budget_s=10
)


class OwnTime:
    """Seconds of this thread's work, by the clock on the wall less the time for which others had its core, where the
    system tells that. Of one thread; used as a context manager."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1
        self._began, self._waited = time.perf_counter(), self._delay()

    def __enter__(self) -> OwnTime:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def __call__(self) -> float:
        return time.perf_counter() - self._delay()

    @property
    def waited(self) -> float:
        """The part of the time since the beginning for which this thread waited for a core."""
        return (self._delay() - self._waited) / (time.perf_counter() - self._began)

    def _delay(self) -> float:
        return 0.0 if self._file < 0 else int(os.pread(self._file, 64, 0).split()[1]) / 1e9


def measure(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    num_stages: int,
    effort: Effort,
    progress: Progress = lambda _: None,
) -> Measured:
    """Raises what loading the model raises. Call on the thread that has prepared torch for the threads of a stage."""
    spec = load_spec(folder)
    kinds = kinds_of(spec, dtype)
    shapes = [shape for shape in effort.shapes if shape.context + shape.length <= spec.max_context]
    parts = _samples(kinds, spec.num_layers, -(-spec.num_layers // num_stages))
    size = sum(map(len, parts))
    entries: list[dict[Shape, float]] = []
    layers: dict[int, dict[Shape, float]] = {}
    head_s = 0.0
    with torch.inference_mode(), OwnTime() as clock:
        for part in parts:
            said = f"layers {part.start}-{part.stop - 1}"
            progress(f"{said}: loading")
            stage = _Timed(load_stage(folder, part, dtype=dtype, device=device), shapes, clock)
            times = _rounds(stage, shapes, effort.rounds, effort.budget_s * len(part) / size, said, progress)
            entries.append({shape: steps[0] for shape, steps in times.items()})
            for number, layer in enumerate(part):
                layers[layer] = {shape: steps[number + 1] for shape, steps in times.items()}
            if part.stop == spec.num_layers:
                head_s = stage.head_s()
        waited = clock.waited
    waves = tuple(
        WaveTimes(
            tokens=shape.tokens,
            pairs=shape.pairs,
            spans=shape.spans,
            prepare_s=entries[-1][shape],
            embedding_s=max(0.0, entries[0][shape] - entries[-1][shape]),
            kinds=tuple(
                statistics.mean(layers[layer][shape] for layer in kind.layers if layer in layers) for kind in kinds
            ),
        )
        for shape in shapes
    )
    return Measured(tuple(kinds), waves, head_s, waited)


def _samples(kinds: Sequence[Kind], num_layers: int, stage_size: int) -> list[range]:
    """The first ones of the first stage, one of each kind that is not there, and the last layer, in order."""
    first = range(min(stage_size, _LAYERS))
    single = {num_layers - 1} - set(first)
    for kind in kinds:
        if not any(layer in first or layer in single for layer in kind.layers):
            single.add(kind.layers[len(kind.layers) // 2])
    return [first, *(range(layer, layer + 1) for layer in sorted(single))]


def _rounds(
    stage: _Timed, shapes: Sequence[Shape], rounds: int, budget_s: float, said: str, progress: Progress
) -> dict[Shape, list[float]]:
    """The medians of the seconds that each step took, by shape."""
    found: dict[Shape, list[list[float]]] = {shape: [] for shape in shapes}
    began = time.perf_counter()
    for number in range(rounds + 1):
        progress(f"{said}: round {number} of {rounds}" if number else f"{said}: warming up")
        for shape in shapes:
            found[shape].append(stage.run(shape))
        if (time.perf_counter() - began) * (number + 2) / (number + 1) > budget_s and number:
            break
    return {shape: [statistics.median(times) for times in zip(*runs[1:], strict=True)] for shape, runs in found.items()}


class _Timed:
    """A stage with room for the largest of the shapes, each step of whose waves is timed."""

    def __init__(self, stage: StageModel, shapes: Sequence[Shape], clock: OwnTime) -> None:
        self._stage, self._clock, self._marks = stage, clock, list[float]()
        self._watched = stage.watched(lambda _: self._mark())
        self._pools = DevicePools(
            stage.cache_layout(),
            num_pages=max(shape.spans * shape.blocks for shape in shapes),
            num_slots=max(shape.spans for shape in shapes),
            block_size=BLOCK,
            device=stage.device,
        )
        for layer in self._pools.pools.values():
            for storage in layer.values():
                storage.zero_()

    def run(self, shape: Shape) -> list[float]:
        """Seconds before the first layer, and of every layer."""
        batch = shape.batch()
        tokens, inputs = self._inputs(shape.tokens)
        self._marks.clear()
        self._mark()
        self._watched.forward(batch, self._pools.pools, tokens, inputs)
        self._mark()
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]

    def head_s(self) -> float:
        """Of one prompt's last row, on the last stage."""
        outputs = self._stage.forward(Shape(BLOCK).batch(), self._pools.pools, *self._inputs(BLOCK))
        times: list[float] = []
        for _ in range(_HEADS + 1):
            self._marks.clear()
            self._mark()
            self._stage.logits(outputs, torch.tensor([BLOCK - 1]))
            self._mark()
            times.append(self._marks[1] - self._marks[0])
        return statistics.median(times[1:])

    def _mark(self) -> None:
        if self._stage.device.type == "cuda":
            torch.cuda.synchronize(self._stage.device)
        self._marks.append(self._clock())

    def _inputs(self, tokens: int) -> tuple[torch.Tensor | None, Activations]:
        stage = self._stage
        if stage.is_first:
            return torch.arange(tokens) % stage.spec.vocab_size, {}
        generator = torch.Generator().manual_seed(tokens)
        hop = stage.hop_from(range(stage.layers.start - 1, stage.layers.start))
        return None, {
            one.name: torch.randn(tokens, *one.shape, generator=generator).to(stage.device, getattr(torch, one.dtype))
            for one in hop
        }
