"""What a stage answers to its pullers: pulls, their owners, their deadlines. No sockets, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..cache.errors import HandleGone, HandleNotSealed, UnknownHandle
from ..cache.layout import LayerCache, Window
from .transfer_config import TransferConfig
from .transfer_messages import (
    Abandon,
    Complete,
    Data,
    FromStage,
    LayerInfo,
    Open,
    Opened,
    Read,
    Refusal,
    TensorInfo,
    ToStage,
    Valid,
)


class OpenPull(Protocol):
    """What the cache pinned: pages of blocks `0 ..` in order, and the slot of the recurrent state (-1: none)."""

    @property
    def id(self) -> int: ...
    @property
    def pages(self) -> Sequence[int]: ...
    @property
    def slot(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


class PullSource(Protocol):
    """The part of the stage's cache that pulls need; it has its own lock."""

    def open_pull(self, handle: str) -> OpenPull:
        """Pins the handle's state. Raises `UnknownHandle`, `HandleNotSealed` or `HandleGone`."""
        ...

    def close_pull(self, pull: int) -> bool:
        """Lets it go. Whether what was read until now is good."""
        ...


class StateReader(Protocol):
    def blocks(self, layer: str, pages: Sequence[int]) -> list[memoryview]: ...
    def state(self, layer: str, slot: int) -> list[memoryview]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """To `peer`, a connection: a message, and after a `Data` the raw tensors."""

    peer: bytes
    message: FromStage
    frames: tuple[memoryview, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    peer: bytes
    pull: OpenPull
    deadline: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    peer: bytes
    handle: str
    deadline: float


class _RefusalError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


class TransferDesk:
    """The pulls of one stage in one epoch. Owner: the transfer thread; `now` is any monotonic clock in seconds."""

    def __init__(
        self,
        config: TransferConfig,
        *,
        epoch: int,
        rank: int,
        block_size: int,
        layers: Sequence[LayerCache],
        source: PullSource,
        reader: StateReader,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._rank = rank
        self._block_size = block_size
        self._layers: Mapping[str, LayerCache] = {layer.name: layer for layer in layers}
        self._infos = tuple(_info(layer) for layer in layers)
        self._source = source
        self._reader = reader
        self._decoder = msgspec.msgpack.Decoder(ToStage)
        self._entries: dict[int, _Entry] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._waiting: list[_Waiting] = []
        self.closed_pulls = 0
        """How many pulls have ended until now, one way or another."""

    @property
    def open_pulls(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def handle(self, peer: bytes, frames: Sequence[bytes], now: float) -> Answer | None:
        """Answers one request; None when there is no answer, or when it must wait for the prefill to finish."""
        try:
            message = self._decode(frames)
            match message:
                case Open():
                    return self._open(peer, message, now)
                case Read():
                    return self._read(peer, message)
                case Complete():
                    return self._complete(peer, message)
                case Abandon():
                    self.forget(peer)
                    return None
        except _RefusalError as refused:
            return Answer(peer, refused.refusal)

    def wake(self, now: float) -> list[Answer]:
        """Something was finished or ended: tries the waiting OPENs again."""
        waiting, self._waiting = self._waiting, []
        answers: list[Answer] = []
        for item in waiting:
            try:
                answer = self._try_open(item, now)
            except _RefusalError as refused:
                answer = Answer(item.peer, refused.refusal)
            if answer is not None:
                answers.append(answer)
        return answers

    def expire(self, now: float) -> list[Answer]:
        """Closes every pull whose deadline has passed, and refuses the OPENs that have waited too long."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, pull = heapq.heappop(self._deadlines)
            self._close(pull)
        late = [item for item in self._waiting if item.deadline <= now]
        self._waiting = [item for item in self._waiting if item.deadline > now]
        message = f"the prefill was not finished within {self._config.open_wait_s:g} s"
        return [Answer(item.peer, Refusal("not_finished", message)) for item in late]

    def next_deadline(self) -> float | None:
        """When `expire` has something to do; None while nothing is open or waiting."""
        # Completed pulls leave their deadline behind in the heap.
        while self._deadlines and self._deadlines[0][1] not in self._entries:
            heapq.heappop(self._deadlines)
        times = [item.deadline for item in self._waiting]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return min(times, default=None)

    def forget(self, peer: bytes) -> None:
        """The connection is gone: what it had open is closed, and what it waited for is dropped."""
        for pull in [pull for pull, entry in self._entries.items() if entry.peer == peer]:
            self._close(pull)
        self._waiting = [item for item in self._waiting if item.peer != peer]

    def close(self, reason: str) -> list[Answer]:
        """The stage ends: nothing stays pinned, and whoever waits is told."""
        for pull in list(self._entries):
            self._close(pull)
        waiting, self._waiting = self._waiting, []
        return [Answer(item.peer, Refusal("failed", reason)) for item in waiting]

    def _decode(self, frames: Sequence[bytes]) -> ToStage:
        if len(frames) != 1:
            raise _RefusalError("malformed", f"a request is one frame, this one has {len(frames)}")
        try:
            return self._decoder.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _RefusalError("malformed", f"the request does not decode: {error}") from None

    def _open(self, peer: bytes, message: Open, now: float) -> Answer | None:
        if message.epoch != self._epoch:
            raise _RefusalError("wrong_epoch", f"stage {self._rank} lives in epoch {self._epoch}, not {message.epoch}")
        if len(self._entries) + len(self._waiting) >= self._config.max_open_pulls:
            raise _RefusalError("busy", f"stage {self._rank} already serves {self._config.max_open_pulls} pulls")
        return self._try_open(_Waiting(peer, message.handle, now + self._config.open_wait_s), now)

    def _try_open(self, item: _Waiting, now: float) -> Answer | None:
        try:
            pull = self._source.open_pull(item.handle)
        except HandleNotSealed:
            self._waiting.append(item)
            return None
        except HandleGone:
            raise _RefusalError("expired", "the handle was released or has expired") from None
        except UnknownHandle:
            raise _RefusalError("unknown_handle", f"stage {self._rank} does not know this handle") from None
        deadline = now + self._config.pull_timeout_s
        self._entries[pull.id] = _Entry(item.peer, pull, deadline)
        heapq.heappush(self._deadlines, (deadline, pull.id))
        opened = Opened(
            pull=pull.id,
            epoch=self._epoch,
            rank=self._rank,
            num_tokens=pull.num_tokens,
            block_size=self._block_size,
            layers=self._infos,
            max_blocks=self._config.max_blocks_per_read,
            max_reads=self._config.max_reads_in_flight,
            deadline_s=self._config.pull_timeout_s,
        )
        return Answer(item.peer, opened)

    def _read(self, peer: bytes, message: Read) -> Answer:
        pull = self._mine(peer, message.pull).pull
        layer = self._layers.get(message.layer)
        if layer is None:
            raise _RefusalError("unknown_layer", f"stage {self._rank} has no layer {message.layer!r}")
        if layer.window is Window.RECURRENT:
            if (message.first, message.count) != (0, 0):
                raise _RefusalError("bad_range", f"{layer.name} holds one state, not blocks")
            frames = self._reader.state(layer.name, pull.slot)
        else:
            blocks = -(-pull.num_tokens // self._block_size)
            first, count = message.first, message.count
            if not 1 <= count <= self._config.max_blocks_per_read or first < 0 or first + count > blocks:
                text = f"blocks {first} .. {first + count - 1} of {blocks}, {self._config.max_blocks_per_read} at most"
                raise _RefusalError("bad_range", text)
            frames = self._reader.blocks(layer.name, pull.pages[first : first + count])
        return Answer(peer, Data(message.pull, message.layer, message.first, message.count), tuple(frames))

    def _complete(self, peer: bytes, message: Complete) -> Answer:
        self._mine(peer, message.pull)
        if not self._close(message.pull):
            raise _RefusalError(
                "expired", f"pull {message.pull} ended before it was complete: its data must not be used"
            )
        return Answer(peer, Valid(message.pull))

    def _mine(self, peer: bytes, pull: int) -> _Entry:
        entry = self._entries.get(pull)
        if entry is None or entry.peer != peer:
            raise _RefusalError("unknown_pull", f"this connection has no open pull {pull}: it expired or never was")
        return entry

    def _close(self, pull: int) -> bool:
        if self._entries.pop(pull, None) is None:
            return False
        self.closed_pulls += 1
        return self._source.close_pull(pull)


def _info(layer: LayerCache) -> LayerInfo:
    tensors = tuple(TensorInfo(spec.name, spec.shape, spec.dtype) for spec in layer.tensors)
    return LayerInfo(layer.name, layer.kind, layer.window.value, tensors)
