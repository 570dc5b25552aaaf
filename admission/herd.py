"""Requests that wait for another one which is computing their prefix, rather than compute it again beside it."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass

from .capacity import GroupCapacity
from .config import AdmissionConfig
from .forks import common_blocks
from .snapshot_plan import reuse_limit
from .table import Entry


@dataclass(frozen=True, slots=True)
class Hold:
    """The request waits until `provider` has published `upto` tokens on all ranks."""

    provider: int
    upto: int
    since: float


class Herd:
    """Knows who is computing what, and who waits for it. Only requests that are being admitted or run are waited for,
    and those wait for nobody here, so that no circle can close. Owner: the leader's thread."""

    def __init__(self, config: AdmissionConfig, capacity: GroupCapacity) -> None:
        self._wait_s, self._min_tokens = config.herd_wait_s, config.herd_min_tokens
        self._block_size = capacity.block_size
        self._at_snapshots = capacity.min_slots is not None
        self._providers: dict[int, Entry] = {}
        self._waiting: dict[int, list[tuple[int, int]]] = {}
        """By provider, a heap of (tokens waited for, request); those that no longer wait are found out at the top."""
        self._holds: dict[int, Hold] = {}
        self._until: dict[int, float] = {}
        """When the patience of a request ends that has waited or waits; its waits share one `herd_wait_s`."""
        self._deadlines: list[tuple[float, int]] = []

    def join(self, entry: Entry) -> list[int]:
        """The entry computes from its candidate on, with its snapshots as planned. Returns those that waited for it
        under an earlier plan, in any order, and let go now; `leave` and `published` do so too."""
        freed = self.leave(entry)
        if self._wait_s:
            self._providers[entry.request.id] = entry
        return freed

    def leave(self, entry: Entry) -> list[int]:
        """The entry publishes nothing more, or begins anew some time later."""
        self._providers.pop(entry.request.id, None)
        waiting = self._waiting.pop(entry.request.id, ())
        return [request for upto, request in waiting if self._waits(request, entry, upto)]

    def published(self, entry: Entry) -> list[int]:
        """All ranks have published the entry's first `entry.computed` tokens."""
        waiting, freed = self._waiting.get(entry.request.id), []
        while waiting and waiting[0][0] <= entry.computed:
            upto, request = heapq.heappop(waiting)
            if self._waits(request, entry, upto):
                freed.append(request)
        return freed

    def hold(self, entry: Entry, candidate: int, now: float) -> bool:
        """Whether the entry, which could reuse `candidate` tokens by now, waits from now on."""
        if not self._providers or self._until.get(entry.request.id, now + 1) <= now:
            return False
        upto, _, provider = max(
            ((*self._usable(entry, other, candidate), request) for request, other in self._providers.items()),
            key=lambda item: item[:2],
        )
        if upto < candidate + self._min_tokens:
            return False
        request = entry.request.id
        until = self._until.setdefault(request, now + self._wait_s)
        self._holds[request] = Hold(provider, upto, now)
        heapq.heappush(self._waiting.setdefault(provider, []), (upto, request))
        heapq.heappush(self._deadlines, (until, request))
        return True

    def let_go(self, request: int) -> Hold | None:
        """Ends the request's wait, for whatever reason; None when it did not wait."""
        return self._holds.pop(request, None)

    def forget(self, request: int) -> None:
        """The request does not wait any more, ever."""
        self._holds.pop(request, None)
        self._until.pop(request, None)

    def overdue(self, now: float) -> list[int]:
        """Those whose patience has ended."""
        freed: list[int] = []
        while (due := self.next_deadline()) is not None and due <= now:
            freed.append(heapq.heappop(self._deadlines)[1])
        return freed

    def next_deadline(self) -> float | None:
        """When the first patience ends, of those that wait."""
        while self._deadlines:
            until, request = self._deadlines[0]
            if request in self._holds and self._until[request] == until:
                return until
            heapq.heappop(self._deadlines)
        return None

    def _usable(self, entry: Entry, other: Entry, candidate: int) -> tuple[int, int]:
        """How many tokens of the entry's prefix the other will have published that it has not yet (0: none beyond the
        candidate), and how many it has."""
        first, second = entry.keys, other.keys
        block = candidate // self._block_size
        if block >= min(len(first), len(second)) or first[block] != second[block]:
            return 0, 0
        usable = min(
            common_blocks(first, second, block + 1) * self._block_size,
            reuse_limit(entry.request.num_tokens, self._block_size),
            reuse_limit(other.request.num_tokens, self._block_size),
        )
        if self._at_snapshots:
            passed = bisect_right(other.snapshots, usable)
            usable = other.snapshots[passed - 1] if passed else 0
        return (usable, other.computed) if usable > other.computed else (0, 0)

    def _waits(self, request: int, entry: Entry, upto: int) -> bool:
        hold = self._holds.get(request)
        return hold is not None and (hold.provider, hold.upto) == (entry.request.id, upto)
