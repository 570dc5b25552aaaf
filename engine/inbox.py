"""The mailbox between threads: what LOOP is told, and what WAVE is told back."""

from __future__ import annotations

import os
import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..admission.claim import Order
from ..admission.effects import Admitted, StopPlanning
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
class WaveFinished:
    """Rank 0: the last stage has finished the wave; its place in the ring is free."""

    wave: int


@dataclass(frozen=True, slots=True)
class StageTimed:
    """Rank 0: the wave kept the stage for `seconds`."""

    rank: int
    wave: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CapacityGrew:
    """To whoever owns the participant: pages or slots may have become free; a blocked leader wants to know."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The epoch ends; the thread returns."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """LOOP → WAVE on rank 0: nothing more of the request will be planned; `after_wave` named it last (-1: none)."""

    request: int
    after_wave: int


@dataclass(frozen=True, slots=True)
class WavePlanned:
    """LOOP → WAVE on rank 0: the wave carries each request up to so many tokens."""

    wave: int
    chunks: tuple[tuple[int, int], ...]


FromLoop = RoundUp | WavePlanned | WaveStarted | WaveDone | Failed | Stopped | CapacityGrew | Leave
Control = Order | RoundDown | Admitted | StopPlanning | StageTimed | WaveFinished | CapacityGrew | Leave
ToLoop = Control | WaveArrived


class LoopInbox:
    """Many writers, one reader (LOOP). Nobody waits to write, and what one writer puts stays in its order. Bounded by
    the protocol: two received waves, a few orders a request, and in lockstep a round for each answer."""

    def __init__(self) -> None:
        # Appending to it is one step of the interpreter: no lock that a preempted writer could keep from LOOP.
        self._arrived: queue.SimpleQueue[ToLoop] = queue.SimpleQueue()
        self._waves: deque[WaveArrived] = deque()
        self.admitting = False
        """Rank 0: whether a request is being committed. WAVE writes it once the orders that follow from the same
        decisions are in, and LOOP only reads it: a wave that is held back for it goes with the next order of WAVE that
        opens a lane or ends a wave, whatever becomes of the request."""
        self.busy_since = time.monotonic()
        """When the reader last found something after it had had to wait, on the monotonic clock."""

    def put(self, event: ToLoop) -> None:
        self._arrived.put(event)

    def take(self, block: bool) -> tuple[list[Control], WaveArrived | None]:
        """All that has arrived but for waves, in order, and the oldest wave: control goes before waves, so that it
        waits for one at most. With `block` there is at least one of either."""
        control: list[Control] = []
        if block and not self._waves:
            waits = self._arrived.empty()
            self._sort(self._arrived.get(), control)
            if waits:
                self.busy_since = time.monotonic()
        # There is no other reader: what is not empty now can be taken without waiting.
        while not self._arrived.empty():
            self._sort(self._arrived.get(), control)
        return control, self._waves.popleft() if self._waves else None

    def _sort(self, event: ToLoop, control: list[Control]) -> None:
        if isinstance(event, WaveArrived):
            self._waves.append(event)
        else:
            control.append(event)


class WakingQueue(Generic[T]):
    """Many writers, one reader that waits in a poller on `fileno()` (WAVE)."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signalled = False

    def fileno(self) -> int:
        return self._event

    def put(self, item: T) -> None:
        self._items.append(item)
        # The system call gives the interpreter away: one for each time that the reader looks is enough. An item that
        # is appended while the flag stands is seen, since the reader lowers the flag before it takes.
        if not self._signalled:
            self._signalled = True
            os.eventfd_write(self._event, 1)

    def drain(self) -> list[T]:
        if not self._signalled:
            return []
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            # A writer has raised the flag and is about to signal: it will be looked for again.
            return []
        self._signalled = False
        taken: list[T] = []
        while self._items:
            taken.append(self._items.popleft())
        return taken
