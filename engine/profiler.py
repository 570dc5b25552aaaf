"""Measures how long a model's layers take on this machine's device: what `wavepp profile` runs.

One layer of each kind is loaded and run as a stage of its own, with real pages and slots, on waves of several lengths
and contexts. Layers are of one kind when they take the same tensors and keep the same state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..cache.device_pools import DevicePools
from ..models.batch import Activations, SpanState, WaveBatch
from ..models.config import ModelSpec, load_spec
from ..models.stage_model import StageModel, load_stage, plan_stage
from ..scheduler.cost_model import pairs_of
from .profile_fit import Fit, Point, fit

BLOCK = 64
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


SHAPES = (
    Shape(64),
    Shape(128),
    Shape(256),
    Shape(512),
    Shape(1_024),
    Shape(256, 1_024),
    Shape(256, 4_096),
    Shape(64, 512, spans=6),
)
QUICK = (Shape(64), Shape(256), Shape(512), Shape(256, 2_048))


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers that are alike; `name` is their mixer's and, where they differ in it, a number."""

    name: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """`kinds` with the fit of each; `head_s` is what logits of one row take; all for one layer."""

    kinds: tuple[tuple[Kind, Fit], ...]
    head_s: float


def kinds_of(spec: ModelSpec, dtype: torch.dtype) -> list[Kind]:
    """In the order in which they first come."""
    found: dict[object, list[int]] = {}
    for layer in range(spec.num_layers):
        plan = plan_stage(spec, range(layer, layer + 1), dtype)
        mark = f"layers.{layer}."
        own = tuple(sorted((name.replace(mark, ""), want[1]) for name, want in plan.wanted.items() if mark in name))
        cached = spec.family.layer_cache(layer, "float32")
        found.setdefault((own, cached.kind, cached.tensors), []).append(layer)
    kinds: list[Kind] = []
    for number, layers in enumerate(found.values()):
        mixer = spec.family.layer_cache(layers[0], "float32").kind
        kinds.append(Kind(mixer if len(found) == 1 else f"{mixer} ({number + 1})", tuple(layers)))
    return kinds


def measure(
    folder: Path,
    dtype: torch.dtype,
    device: torch.device,
    shapes: Sequence[Shape],
    repeats: int,
    bytes_per_s: float,
    progress: Progress = lambda _: None,
) -> Measured:
    """Raises what loading the model raises."""
    spec = load_spec(folder)
    fits: list[tuple[Kind, Fit]] = []
    for kind in kinds_of(spec, dtype):
        # Neither first nor last, where there is a choice: those hold the embedding and the head as well.
        layer = next((one for one in kind.layers if 0 < one < spec.num_layers - 1), kind.layers[0])
        stage = load_stage(folder, range(layer, layer + 1), dtype=dtype, device=device)
        mark = f"layers.{layer}."
        weight_s = _bytes(spec, layer, dtype, mark) / bytes_per_s
        points: list[Point] = []
        for shape in shapes:
            if shape.context + shape.length > spec.max_context:
                continue
            progress(f"{kind.name}: {shape.tokens} tokens behind {shape.context}")
            points.append(Point(shape.tokens, shape.pairs, _time(stage, shape, repeats)))
        fits.append((kind, fit(points, weight_s)))
    progress("head")
    return Measured(tuple(fits), _head_s(folder, spec, dtype, device, repeats))


def bandwidth(device: torch.device, num_bytes: int = 1 << 27) -> float:
    """Bytes a second that a large copy reads on this device."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return num_bytes / statistics.median(_timed(lambda: target.copy_(source), device) for _ in range(5))


def _bytes(spec: ModelSpec, layer: int, dtype: torch.dtype, mark: str) -> int:
    plan = plan_stage(spec, range(layer, layer + 1), dtype)
    sizes = (
        torch.Size(shape).numel() * kind.itemsize for name, (_, shape, kind) in plan.wanted.items() if mark in name
    )
    return sum(sizes)


def _time(stage: StageModel, shape: Shape, repeats: int) -> float:
    """Median seconds of a wave, after one that does not count."""
    batch, num_pages = _batch(shape)
    pools = DevicePools(
        stage.cache_layout(), num_pages=num_pages, num_slots=shape.spans, block_size=BLOCK, device=stage.device
    )
    for layer in pools.pools.values():
        for storage in layer.values():
            storage.zero_()
    tokens, inputs = _inputs(stage, shape.tokens)
    runs = [_timed(lambda: stage.forward(batch, pools.pools, tokens, inputs), stage.device) for _ in range(repeats + 1)]
    return statistics.median(runs[1:])


def _batch(shape: Shape) -> tuple[WaveBatch, int]:
    blocks = -(-(shape.context + shape.length) // BLOCK)
    spans = [
        SpanState(shape.context, shape.length, tuple(range(span * blocks, (span + 1) * blocks)), span)
        for span in range(shape.spans)
    ]
    return WaveBatch(spans, BLOCK), shape.spans * blocks


def _inputs(stage: StageModel, tokens: int) -> tuple[torch.Tensor | None, Activations]:
    if stage.is_first:
        return torch.arange(tokens) % stage.spec.vocab_size, {}
    generator = torch.Generator().manual_seed(tokens)
    return None, {
        spec.name: torch.randn(tokens, *spec.shape, generator=generator).to(stage.device, getattr(torch, spec.dtype))
        for spec in stage.hop_from(range(stage.layers.start - 1, stage.layers.start))
    }


def _head_s(folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device, repeats: int) -> float:
    last = load_stage(folder, range(spec.num_layers - 1, spec.num_layers), dtype=dtype, device=device)
    batch, num_pages = _batch(Shape(BLOCK))
    pools = DevicePools(last.cache_layout(), num_pages=num_pages, num_slots=1, block_size=BLOCK, device=device)
    outputs = last.forward(batch, pools.pools, *_inputs(last, BLOCK))
    row = torch.tensor([BLOCK - 1])
    return statistics.median(_timed(lambda: last.logits(outputs, row), device) for _ in range(repeats + 1))


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def per_layer(measured: Measured) -> Iterator[tuple[int, Fit]]:
    """Every layer of the model, in order, with its kind's fit."""
    pairs = [(layer, found) for kind, found in measured.kinds for layer in kind.layers]
    yield from sorted(pairs, key=lambda pair: pair[0])
