"""In which order unreferenced blocks and snapshots give up their storage."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar

Retention = Literal["lru", "cost"]


class Evictable(Protocol):
    """What an order keeps: known by its key; `cost` is what losing it would cost, in tokens to compute again."""

    @property
    def key(self) -> bytes: ...

    @property
    def cost(self) -> int: ...


E = TypeVar("E", bound=Evictable)


class EvictionOrder(Protocol[E]):
    """The unreferenced entries of one tier of one window, next victim first. Under the stage cache's mutex."""

    def __len__(self) -> int: ...

    def __contains__(self, entry: E) -> bool: ...

    def add(self, entry: E) -> None:
        """Its last holder let go of it just now: it is the most recently used."""
        ...

    def discard(self, entry: E) -> None:
        """It is held again, or gone. Harmless when it is not among them."""
        ...

    def touch(self, entry: E) -> None:
        """It was used without being held. Harmless when it is not among them."""
        ...

    def first(self) -> E | None:
        """The next victim; None when there is none."""
        ...

    def pop(self) -> E | None:
        """The next victim, which goes now."""
        ...

    def in_order(self) -> Iterator[E]:
        """All of them, next victim first. For tests and diagnosis where the order is not a plain list."""
        ...


class LeastRecentlyUsed(EvictionOrder[E]):
    """The one that was let go of the longest time ago goes first. Every operation is O(1)."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, E] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: E) -> bool:
        return entry.key in self._entries

    def add(self, entry: E) -> None:
        self._entries[entry.key] = entry

    def discard(self, entry: E) -> None:
        self._entries.pop(entry.key, None)

    def touch(self, entry: E) -> None:
        if entry.key in self._entries:
            self._entries.move_to_end(entry.key)

    def first(self) -> E | None:
        return next(iter(self._entries.values()), None)

    def pop(self) -> E | None:
        return self._entries.popitem(last=False)[1] if self._entries else None

    def in_order(self) -> Iterator[E]:
        return iter(self._entries.values())


class GreedyDual(EvictionOrder[E]):
    """Weighs what an entry saves against how long ago it was used (Young's GreedyDual; all snapshots of a stage have
    the same size, so cost against bytes is cost).

    An entry's priority is its cost plus the clock at its last use; the lowest goes first, and its priority becomes the
    clock, so that what is never used again is overtaken by what is, however costly it was. Marconi weighs the same two
    by a weight that has to be tuned; this one needs none. Ties go to the older use. O(log n).
    """

    __slots__ = ("_clock", "_entries", "_heap", "_uses")

    def __init__(self) -> None:
        self._clock = 0
        self._uses = 0
        self._entries: dict[bytes, tuple[int, int, E]] = {}
        """By key: (priority, number of the use, entry)."""
        self._heap: list[tuple[int, int, bytes]] = []
        """What `_entries` says, and places that are out of date, which are found out at the top."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: E) -> bool:
        return entry.key in self._entries

    def add(self, entry: E) -> None:
        self._uses += 1
        priority = self._clock + entry.cost
        self._entries[entry.key] = (priority, self._uses, entry)
        heapq.heappush(self._heap, (priority, self._uses, entry.key))
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [(at, use, key) for key, (at, use, _) in self._entries.items()]
            heapq.heapify(self._heap)

    def discard(self, entry: E) -> None:
        self._entries.pop(entry.key, None)

    def touch(self, entry: E) -> None:
        if entry.key in self._entries:
            self.add(entry)

    def first(self) -> E | None:
        while self._heap:
            _, use, key = self._heap[0]
            known = self._entries.get(key)
            if known is not None and known[1] == use:
                return known[2]
            heapq.heappop(self._heap)
        return None

    def pop(self) -> E | None:
        victim = self.first()
        if victim is not None:
            self._clock = heapq.heappop(self._heap)[0]
            del self._entries[victim.key]
        return victim

    def in_order(self) -> Iterator[E]:
        return (entry for _, _, entry in sorted(self._entries.values(), key=lambda known: known[:2]))


def make_order(retention: Retention) -> EvictionOrder[E]:
    return GreedyDual() if retention == "cost" else LeastRecentlyUsed()
