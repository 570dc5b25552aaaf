"""A stage without a model: pools full of random bytes, the real cache, and a transfer server on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import msgspec
import torch
import zmq
from wavepp.cache.layout import LayerCache, TensorSpec, Window
from wavepp.cache.stage_cache import StageCache
from wavepp.engine.messages import StageManifest
from wavepp.engine.transfer_config import TransferConfig
from wavepp.engine.transfer_desk import PullSource
from wavepp.engine.transfer_messages import FromStage, Open, Opened, ToStage
from wavepp.engine.transfer_server import TransferServer

from ..cold_claim import claim_cold

BLOCK = 4
EPOCH = 7
PATIENCE_MS = 20_000
"""Far beyond what anything here takes: only a hang reaches it."""


def attention_layer(index: int, *tensors: TensorSpec, kind: str = "gqa") -> LayerCache:
    specs = tensors or (TensorSpec("k", (2, 4), "float32"), TensorSpec("v", (2, 4), "bfloat16"))
    return LayerCache(index, f"model.layers.{index}.self_attn", kind, Window.ATTENTION, specs)


def recurrent_layer(index: int, *tensors: TensorSpec) -> LayerCache:
    specs = tensors or (TensorSpec("state", (2, 3, 5), "float32"), TensorSpec("conv", (7, 3), "bfloat16"))
    return LayerCache(index, f"model.layers.{index}.self_attn", "kda", Window.RECURRENT, specs)


MIXED = (recurrent_layer(0), attention_layer(1), recurrent_layer(2))


def random_pools(
    layers: tuple[LayerCache, ...], num_pages: int, num_slots: int, block_size: int, seed: int
) -> dict[str, dict[str, torch.Tensor]]:
    """Every byte is random; floats are never NaN, so that tensors can be compared."""
    generator = torch.Generator().manual_seed(seed)
    pools: dict[str, dict[str, torch.Tensor]] = {}
    for layer in layers:
        lead = (num_pages, block_size) if layer.window is Window.ATTENTION else (num_slots,)
        pools[layer.name] = {
            spec.name: torch.randn((*lead, *spec.shape), generator=generator).to(getattr(torch, spec.dtype))
            for spec in layer.tensors
        }
    return pools


class PullableStage:
    """One stage that serves pulls, and what its test needs to know of it."""

    def __init__(
        self,
        layers: tuple[LayerCache, ...] = MIXED,
        *,
        rank: int = 0,
        config: TransferConfig | None = None,
        block_size: int = BLOCK,
        num_pages: int = 32,
        num_slots: int = 8,
        seed: int = 0,
        source: PullSource | None = None,
    ) -> None:
        self.layers, self.rank, self.block_size = layers, rank, block_size
        self.pools = random_pools(layers, num_pages, num_slots, block_size, seed)
        self.cache = StageCache(frozenset(layer.window for layer in layers), num_pages, num_slots, block_size)
        self.failures: list[str] = []
        self.closed = threading.Semaphore(0)
        self.server = TransferServer(
            config or TransferConfig(),
            rank=rank,
            block_size=block_size,
            layers=layers,
            pools=self.pools,
            source=source or self.cache,
            on_closed=self.closed.release,
            on_failure=self.failures.append,
        )
        self._requests = 0

    def __enter__(self) -> Self:
        self.server.start(EPOCH)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        assert not self.failures
        self.cache.check()
        assert self.cache.gauges().pulls == 0

    @property
    def manifest(self) -> StageManifest:
        return StageManifest(self.rank, self.server.address, tuple(layer.name for layer in self.layers))

    def begin(self, handle: str, num_tokens: int) -> int:
        """A request that is being computed."""
        self._requests += 1
        claim_cold(self.cache, self._requests, handle, num_tokens)
        return self._requests

    def finish(self, request: int) -> None:
        self.cache.seal(request)
        self.server.notify()

    def prefill(self, handle: str, num_tokens: int) -> None:
        self.finish(self.begin(handle, num_tokens))


class Puller:
    """One connection that speaks the protocol by hand."""

    def __init__(self, stage: PullableStage) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(stage.server.address)

    def tell(self, message: ToStage) -> None:
        self.socket.send(msgspec.msgpack.encode(message))

    def answer(self) -> FromStage:
        return self.answer_with_frames()[0]

    def answer_with_frames(self) -> tuple[FromStage, list[bytes]]:
        assert self.socket.poll(PATIENCE_MS), "the stage does not answer"
        head, *frames = self.socket.recv_multipart()
        return msgspec.msgpack.decode(head, type=FromStage), frames

    def ask(self, message: ToStage) -> FromStage:
        self.tell(message)
        return self.answer()

    def open(self, handle: str) -> Opened:
        opened = self.ask(Open(handle, EPOCH))
        assert isinstance(opened, Opened), opened
        return opened


@contextmanager
def puller(stage: PullableStage) -> Iterator[Puller]:
    made = Puller(stage)
    try:
        yield made
    finally:
        made.socket.close()


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
