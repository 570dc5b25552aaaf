"""Requests that wait, in the order in which they are served."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Protocol

from .table import Entry

Key = tuple[int, float, int]
"""Level, deadline, and the number of the request: that is when it came."""


class Urgency(Protocol):
    """(level, deadline, until) at the time `now` of a request that waits since `since`: the lower level goes first,
    and within one the earlier deadline. They hold until just before `until`, which is after `now`; by them, nobody who
    came later and asked for no more may ever be before it."""

    def __call__(
        self, priority: int, deadline: float | None, since: float, now: float, /
    ) -> tuple[int, float, float]: ...


def first_come_first_served(
    priority: int, deadline: float | None, since: float, now: float, /
) -> tuple[int, float, float]:
    """Whatever was asked for."""
    return 0, math.inf, math.inf


@dataclass(slots=True)
class _Standing:
    entry: Entry
    key: Key
    until: float


class Line:
    """In order of urgency, and of arrival among those who are equally urgent. Places count from 0. The order is as of
    the last `refresh`, which takes the logarithm of the line for each request whose urgency has changed. Owner: the
    leader's thread."""

    def __init__(self, urgency: Urgency) -> None:
        self._urgency = urgency
        self._keys: list[Key] = []
        self._standing: dict[int, _Standing] = {}
        self._changes: list[tuple[float, int]] = []
        """When whose urgency changes: a heap, in which some are out of date."""
        self._wishes = 0
        self._now = -math.inf

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, place: int) -> int:
        """The request at this place."""
        return self._keys[place][2]

    @property
    def first(self) -> Entry | None:
        return self._standing[self._keys[0][2]].entry if self._keys else None

    def add(self, entry: Entry) -> None:
        """An entry that is not in the line."""
        self._wishes += entry.has_wishes
        self._stand(entry)

    def discard(self, request: int) -> None:
        standing = self._standing.pop(request, None)
        if standing is None:
            return
        self._wishes -= standing.entry.has_wishes
        del self._keys[bisect_left(self._keys, standing.key)]
        if len(self._changes) > 2 * len(self._standing) + 64:
            self._changes = [(each.until, number) for number, each in self._standing.items() if each.until < math.inf]
            heapq.heapify(self._changes)

    def refresh(self, now: float) -> None:
        """Orders the line as of now."""
        self._now = now
        while self._changes and self._changes[0][0] <= now:
            standing = self._standing.get(heapq.heappop(self._changes)[1])
            if standing is not None and standing.until <= now:
                del self._keys[bisect_left(self._keys, standing.key)]
                self._stand(standing.entry)

    def next_change(self) -> float | None:
        """When the order may next change by itself; never while nobody has asked for anything."""
        return self._changes[0][0] if self._wishes and self._changes else None

    def _stand(self, entry: Entry) -> None:
        level, deadline, until = self._urgency(entry.priority, entry.deadline, entry.submitted_at, self._now)
        key = (level, deadline, entry.request.id)
        insort(self._keys, key)
        self._standing[entry.request.id] = _Standing(entry, key, until)
        if until < math.inf:
            heapq.heappush(self._changes, (until, entry.request.id))
