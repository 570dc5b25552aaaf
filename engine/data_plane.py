"""Activations between neighbouring stages: torch.distributed point to point, asynchronous both ways.

One process group for each edge of the pipeline, so that a stage may receive from its predecessor and send to its
successor at the same time from two threads. Headers are CPU tensors (gloo); activations live on the device
(gloo on cpu, NCCL on cuda): the backend follows from the tensor, the code does not change.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..cache.layout import TensorSpec
from ..models.batch import Activations
from .header import HEADER_BYTES, HeaderError, WaveHeader, decode_header, encode_header
from .inbox import LoopInbox, WaveArrived
from .trace import Tracer

_NEVER = timedelta(days=365)
"""An idle pipeline waits for its next header for as long as nobody sends a prompt; dead peers break the connection."""

RECEIVES_AHEAD = 2
SENDS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Edges:
    """The process groups towards the neighbours; None at the ends of the pipeline."""

    previous: dist.ProcessGroup | None
    following: dist.ProcessGroup | None


def form_group(rank: int, size: int, store: dist.Store, device: torch.device, timeout_s: float) -> Edges:
    """Joins the data plane. Collective: every rank must call it. Raises RuntimeError when a rank does not come."""
    if size == 1:
        return Edges(None, None)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
    # Every rank forms every group, in one order; a rank outside a group gets a placeholder, which is not kept.
    groups = [dist.new_group([left, left + 1], timeout=_NEVER, backend=backend) for left in range(size - 1)]
    return Edges(_mine(groups[rank - 1]) if rank > 0 else None, _mine(groups[rank]) if rank < size - 1 else None)


def _mine(group: object) -> dist.ProcessGroup:
    assert isinstance(group, dist.ProcessGroup), "a rank must belong to the groups of its own edges"
    return group


class Receiver:
    """Owns the thread that takes waves from the previous stage into preallocated buffers.

    Two buffers of `max_tokens` tokens: at most two receives run ahead of LOOP, which gives each back by `recycle`.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        source: int,
        epoch: int,
        hop: Sequence[TensorSpec],
        max_tokens: int,
        device: torch.device,
        inbox: LoopInbox,
        tracer: Tracer,
        fail: Callable[[str], None],
    ) -> None:
        self._group, self._source, self._epoch, self._inbox, self._fail = group, source, epoch, inbox, fail
        self._tracer, self._max_tokens = tracer, max_tokens
        self._buffers = [
            {t.name: torch.zeros((max_tokens, *t.shape), dtype=getattr(torch, t.dtype), device=device) for t in hop}
            for _ in range(RECEIVES_AHEAD)
        ]
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(RECEIVES_AHEAD):
            self._free.put(index)
        self._next_wave = 0
        threading.Thread(target=self._run, name="RECV", daemon=True).start()

    def recycle(self, buffer: int) -> None:
        self._free.put(buffer)

    def _run(self) -> None:
        try:
            while True:
                self._inbox.put(self._receive())
        except Exception as error:
            self._fail(f"receiving from rank {self._source} failed: {error}")

    def _receive(self) -> WaveArrived:
        frame = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        dist.recv(frame, self._source, group=self._group)
        header = decode_header(frame)
        self._check(header)
        buffer = self._free.get()
        inputs: Activations = {}
        with self._tracer.span("receive", wave=header.wave, tokens=header.num_tokens):
            for name, storage in sorted(self._buffers[buffer].items()):
                inputs[name] = storage[: header.num_tokens]
                dist.recv(inputs[name], self._source, group=self._group)
        return WaveArrived(header, inputs, buffer)

    def _check(self, header: WaveHeader) -> None:
        if header.epoch != self._epoch:
            raise HeaderError(f"wave {header.wave} is of epoch {header.epoch}, this is epoch {self._epoch}")
        if header.wave != self._next_wave:
            raise HeaderError(f"wave {header.wave} arrived where wave {self._next_wave} was due")
        if not 0 < header.num_tokens <= self._max_tokens:
            raise HeaderError(
                f"wave {header.wave} has {header.num_tokens} tokens, the buffers hold 1 to {self._max_tokens}"
            )
        self._next_wave += 1


class Sender:
    """Owns the thread that hands waves to the next stage. `send` waits only when two waves are still unsent."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        target: int,
        device: torch.device,
        tracer: Tracer,
        fail: Callable[[str], None],
    ) -> None:
        self._group, self._target, self._tracer, self._fail = group, target, tracer, fail
        self._cuda = device.type == "cuda"
        self._queue: queue.Queue[tuple[WaveHeader, Activations, torch.cuda.Event | None]] = queue.Queue(SENDS_AHEAD)
        threading.Thread(target=self._run, name="SEND", daemon=True).start()

    def send(self, header: WaveHeader, outputs: Activations) -> None:
        """`outputs` must not be written again; they are read after this returns."""
        event = None
        if self._cuda:
            event = torch.cuda.Event()
            event.record()
        self._queue.put((header, outputs, event))

    def _run(self) -> None:
        try:
            while True:
                header, outputs, event = self._queue.get()
                if event is not None:
                    torch.cuda.current_stream().wait_event(event)
                with self._tracer.span("send", wave=header.wave, tokens=header.num_tokens):
                    dist.send(encode_header(header), self._target, group=self._group)
                    for name in sorted(outputs):
                        dist.send(outputs[name].contiguous(), self._target, group=self._group)
                if event is not None:
                    torch.cuda.current_stream().synchronize()
        except Exception as error:
            self._fail(f"sending to rank {self._target} failed: {error}")
