"""Virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Act = Callable[[], object]


class Clock:
    """Lets things happen in the order of their times, and those of one time in the order in which they were planned.
    Seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Act]] = []

    def at(self, time: float, act: Act) -> None:
        """A time that is past counts as now."""
        heapq.heappush(self._due, (max(time, self.now), next(self._order), act))

    def after(self, seconds: float, act: Act) -> None:
        self.at(self.now + seconds, act)

    def step(self) -> bool:
        """The next thing; False when nothing is planned."""
        if not self._due:
            return False
        self.now, _, act = heapq.heappop(self._due)
        act()
        return True


class Alarm:
    """One thing that happens at the earliest of the times that were asked for, and then forgets them."""

    def __init__(self, clock: Clock, act: Act) -> None:
        self._clock, self._act = clock, act
        self._set: float | None = None

    def set(self, time: float) -> None:
        """No later than at `time`."""
        time = max(time, self._clock.now)
        if self._set is None or time < self._set:
            self._set = time
            self._clock.at(time, lambda: self._ring(time))

    def _ring(self, time: float) -> None:
        if self._set == time:
            self._set = None
            self._act()
