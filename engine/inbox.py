"""The mailbox between threads: what LOOP is told, and what WAVE is told back."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..admission.messages import Failed, RoundDown, RoundUp, WaveDone, WaveStarted
from ..models.batch import Activations
from .header import WaveHeader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaveArrived:
    """From the data plane: a wave to run. `buffer` is the receive buffer to give back once it has been read."""

    header: WaveHeader
    inputs: Activations
    buffer: int


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Rank 0: the request is admitted; its suffix may be planned."""

    request: int
    attempt: int
    endpoint: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Rank 0: plan nothing more of the request, and say which wave named it last."""

    request: int


@dataclass(frozen=True, slots=True)
class WaveFinished:
    """Rank 0: the last stage has finished the wave; its place in the ring is free."""

    wave: int


@dataclass(frozen=True, slots=True)
class CapacityGrew:
    """From the transfer thread: pulls have ended, and what they kept may be free; a blocked leader wants to know."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The epoch ends; the thread returns."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """LOOP → WAVE on rank 0: nothing more of the request will be planned; `after_wave` named it last (-1: none)."""

    request: int
    after_wave: int


@dataclass(frozen=True, slots=True)
class ChunksDone:
    """LOOP → WAVE on rank 0: (request, tokens computed so far) of a wave that has left the pipeline."""

    chunks: tuple[tuple[int, int], ...]


FromLoop = RoundUp | WaveStarted | WaveDone | Failed | Stopped | ChunksDone | Leave
ToLoop = RoundDown | WaveArrived | PlanRequest | StopRequest | WaveFinished | CapacityGrew | Leave


class LoopInbox:
    """Many writers, one reader (LOOP). Control goes before waves, so that admission waits for one wave at most.
    Bounded by the protocol: at most two received waves, and a round for each answer of this rank."""

    def __init__(self) -> None:
        self._control: deque[ToLoop] = deque()
        self._waves: deque[WaveArrived] = deque()
        self._ready = threading.Condition()

    def put(self, event: ToLoop) -> None:
        with self._ready:
            if isinstance(event, WaveArrived):
                self._waves.append(event)
            else:
                self._control.append(event)
            self._ready.notify()

    def get(self, block: bool) -> ToLoop | None:
        """The next event; None when there is none and `block` is false."""
        with self._ready:
            while not self._control and not self._waves:
                if not block:
                    return None
                self._ready.wait()
            return self._control.popleft() if self._control else self._waves.popleft()


class WakingQueue(Generic[T]):
    """Many writers, one reader that waits in a poller on `fileno()` (WAVE, the transfer thread)."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def put(self, item: T) -> None:
        self._items.append(item)
        os.eventfd_write(self._event, 1)

    def drain(self) -> list[T]:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        taken: list[T] = []
        while self._items:
            taken.append(self._items.popleft())
        return taken
