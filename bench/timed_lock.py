"""A lock that keeps account of how long it was held and how long threads waited for it."""

from __future__ import annotations

from threading import Lock, get_ident
from time import perf_counter
from types import TracebackType


class TimedLock:
    """To be given to a StageCache as its mutex. Seconds, by time.perf_counter; any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._since = 0.0
        self.held_s: list[float] = []
        """How long each hold took, in order. Appended to before the lock is let go of."""
        self.waited_s: dict[int, float] = {}
        """By thread, all that it has waited for another holder; each thread changes its own entry only."""

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            begun = perf_counter()
            self._lock.acquire()
            thread = get_ident()
            self.waited_s[thread] = self.waited_s.get(thread, 0.0) + perf_counter() - begun
        self._since = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.held_s.append(perf_counter() - self._since)
        self._lock.release()

    def take_held_s(self) -> float:
        """All holds since this was last asked, together."""
        held, self.held_s = self.held_s, []
        return sum(held)
