"""Runs the stages of a tiny model one after the other in this process, and transformers' model beside them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import DynamicCache, PreTrainedModel
from wavepp.cache.device_pools import DevicePools
from wavepp.cache.layout import LayerCache
from wavepp.models.batch import Activations, SpanState, WaveBatch
from wavepp.models.config import load_spec
from wavepp.models.partition import even_partition
from wavepp.models.stage_model import StageModel, load_stage

CPU = torch.device("cpu")
BLOCK = 16
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Piece:
    """A span of one request; `snapshots` are (position, name of the snapshot)."""

    request: str
    start: int
    length: int
    snapshots: Sequence[tuple[int, str]] = ()


@dataclass
class Stage:
    """One stage with pools full of NaN, so that whatever is read before it is written shows in the results."""

    model: StageModel
    pools: DevicePools
    free_pages: list[int]
    pages: dict[str, list[int]] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def slot(self, name: str) -> int:
        return self.slots.setdefault(name, 2 * len(self.slots) + 1)

    def pages_of(self, request: str, end: int) -> list[int]:
        held = self.pages.setdefault(request, [])
        while len(held) < -(-end // BLOCK):
            held.append(self.free_pages.pop())
        return held[: -(-end // BLOCK)]


class Pipeline:
    """P stages of the model in `folder`; every stage has page and slot numbers of its own."""

    def __init__(self, folder: Path, num_stages: int, dtype: torch.dtype = torch.float32):
        self.stages: list[Stage] = []
        for index, layers in enumerate(even_partition(load_spec(folder).num_layers, num_stages)):
            model = load_stage(folder, layers, dtype=dtype, device=CPU)
            pools = DevicePools(model.cache_layout(), num_pages=64, num_slots=32, block_size=BLOCK, device=CPU)
            for layer in pools.pools.values():
                for storage in layer.values():
                    storage.fill_(float("nan"))
            pages = list(range(64))
            random.Random(index).shuffle(pages)
            self.stages.append(Stage(model, pools, pages))

    def run(self, tokens: dict[str, torch.Tensor], pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Run one wave; the logits of every row, per piece."""
        ids = torch.cat([tokens[piece.request][piece.start : piece.start + piece.length] for piece in pieces])
        activations: Activations = {}
        for stage in self.stages:
            spans = [self._span(stage, piece) for piece in pieces]
            first = ids if stage.model.is_first else None
            activations = stage.model.forward(WaveBatch(spans, BLOCK), stage.pools.pools, first, activations)
        logits = self.stages[-1].model.logits(activations, torch.arange(len(ids)))
        return list(logits.split([piece.length for piece in pieces]))

    def run_all(self, tokens: dict[str, torch.Tensor], waves: Sequence[Sequence[Piece]]) -> dict[str, torch.Tensor]:
        """Run waves in order; each request's logits over all its tokens."""
        rows: dict[str, list[torch.Tensor]] = {}
        for wave in waves:
            for piece, logits in zip(wave, self.run(tokens, wave), strict=True):
                rows.setdefault(piece.request, []).append(logits)
        return {request: torch.cat(parts) for request, parts in rows.items()}

    def fork(self, snapshot: str, request: str, parent: str, position: int) -> None:
        """Start `request` from another's snapshot: copy its slots and share its whole pages."""
        for stage in self.stages:
            stage.pools.copy_slot(stage.slot(snapshot), stage.slot(request))
            if stage.model.cache_layout() and parent in stage.pages:
                stage.pages[request] = stage.pages[parent][: position // BLOCK]

    def cached(self, layer: int, name: str, request: str, length: int) -> torch.Tensor:
        """An attention tensor's first `length` tokens, in order."""
        stage, cache = self._layer(layer)
        storage = stage.pools.pools[cache.name][name]
        return storage[stage.pages[request]].flatten(0, 1)[:length].float()

    def state(self, layer: int, name: str, slot: str) -> torch.Tensor:
        stage, cache = self._layer(layer)
        return stage.pools.pools[cache.name][name][stage.slots[slot]]

    def layers(self) -> list[LayerCache]:
        return [layer for stage in self.stages for layer in stage.model.cache_layout()]

    def untouched_pages_are_nan(self) -> bool:
        return all(
            bool(storage[stage.free_pages].isnan().all())
            for stage in self.stages
            for layer in stage.model.cache_layout()
            if layer.kind != "kda"
            for storage in stage.pools.pools[layer.name].values()
        )

    def _layer(self, layer: int) -> tuple[Stage, LayerCache]:
        for stage in self.stages:
            for cache in stage.model.cache_layout():
                if cache.layer == layer:
                    return stage, cache
        raise KeyError(layer)

    @staticmethod
    def _span(stage: Stage, piece: Piece) -> SpanState:
        kinds = {layer.kind for layer in stage.model.cache_layout()}
        recurrent = "kda" in kinds
        pages = stage.pages_of(piece.request, piece.start + piece.length) if kinds != {"kda"} else []
        snapshots = [(position, stage.slot(name)) for position, name in piece.snapshots] if recurrent else []
        return SpanState(piece.start, piece.length, pages, stage.slot(piece.request) if recurrent else -1, snapshots)


@dataclass(frozen=True)
class Expected:
    """What transformers computes for one prompt: logits `[n, vocab]` and its cache after all tokens."""

    logits: torch.Tensor
    cache: DynamicCache

    def attention(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (MLA: latents and shared keys), `[n, heads, width]`."""
        entry = self.cache.layers[layer]
        return entry.keys[0].transpose(0, 1), entry.values[0].transpose(0, 1)  # pyright: ignore

    def recurrent(self, layer: int) -> torch.Tensor:
        return self.cache.get_recurrent_state(layer, state_idx=0)[0]  # pyright: ignore

    def conv(self, layer: int, taps: int) -> torch.Tensor:
        """The last `taps - 1` inputs of the convolutions, `[taps - 1, 3 * width]`."""
        return self.cache.get_conv_state(layer, state_idx=0)[0][:, 1 - taps :].T  # pyright: ignore


@torch.no_grad()
def expect(reference: PreTrainedModel, tokens: torch.Tensor) -> Expected:
    cache = DynamicCache(config=reference.config)
    output = reference(tokens.unsqueeze(0), cache=cache, use_cache=True)
    return Expected(output.logits[0].float(), cache)


def prompt(length: int, seed: int) -> torch.Tensor:
    return torch.randint(3, 256, (length,), generator=torch.Generator().manual_seed(seed))


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def assert_caches_match(pipeline: Pipeline, request: str, expected: Expected, length: int) -> None:
    """Every layer's cache against transformers', in its public names and shapes."""
    for layer in pipeline.layers():
        assert layer.name == f"model.layers.{layer.layer}.self_attn"
        if layer.kind == "kda":
            assert_close(pipeline.state(layer.layer, "state", request), expected.recurrent(layer.layer))
            convs = [pipeline.state(layer.layer, f"conv_{part}", request) for part in "qkv"]
            assert_close(torch.cat(convs, -1), expected.conv(layer.layer, convs[0].shape[0] + 1))
            continue
        names = ("k", "v") if layer.kind == "gqa" else ("ckv", "kpe")
        for name, stored in zip(names, expected.attention(layer.layer), strict=True):
            ours = pipeline.cached(layer.layer, name, request, length)
            assert_close(ours, stored if layer.kind == "gqa" else stored.squeeze(1))
