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


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """The request waits until `provider` has published `upto` tokens on all ranks."""

    request: int
    provider: int
    upto: int
    since: float


class Herd:
    """Knows who is computing what, and who waits for it. Only requests that are being admitted or run are waited for,
    and those wait for nobody here, so that no circle can close; and nobody waits for a request of a less urgent
    priority than its own. Owner: the leader's thread.

    `join`, `leave`, `published` and `overdue` return the waits that end by that, and perhaps some that had ended before
    (see `waits`). A wait counts until it is let go.
    """

    def __init__(self, config: AdmissionConfig, capacity: GroupCapacity) -> None:
        self._wait_s, self._min_tokens = config.herd_wait_s, config.herd_min_tokens
        self._block_size = capacity.block_size
        self._at_snapshots = capacity.min_slots is not None
        self._providers: dict[int, Entry] = {}
        self._holds: dict[int, Hold] = {}
        self._waiting: dict[int, dict[int, list[Hold]]] = {}
        """By provider and tokens waited for; those that have ended some other way are still among them."""
        self._until: dict[int, float] = {}
        """When the patience of a request ends that has waited or waits; its waits share one `herd_wait_s`."""
        self._deadlines: list[tuple[float, int]] = []

    def join(self, entry: Entry) -> list[Hold]:
        """The entry computes from its candidate on, with its snapshots as planned; an earlier plan no longer holds."""
        freed = self.leave(entry)
        if self._wait_s:
            self._providers[entry.request.id] = entry
        return freed

    def leave(self, entry: Entry) -> list[Hold]:
        """The entry publishes nothing more, or begins anew some time later."""
        self._providers.pop(entry.request.id, None)
        return [hold for holds in self._waiting.pop(entry.request.id, {}).values() for hold in holds]

    def published(self, entry: Entry) -> list[Hold]:
        """All ranks have published the entry's first `entry.computed` tokens."""
        waiting = self._waiting.get(entry.request.id, {})
        reached = [upto for upto in waiting if upto <= entry.computed]
        return [hold for upto in reached for hold in waiting.pop(upto)]

    def overdue(self, now: float) -> list[Hold]:
        """Those whose patience has ended."""
        freed: list[Hold] = []
        while (due := self.next_deadline()) is not None and due <= now:
            freed.append(self._holds[heapq.heappop(self._deadlines)[1]])
        return freed

    def next_deadline(self) -> float | None:
        """When the first patience ends, of those that wait."""
        while self._deadlines:
            until, request = self._deadlines[0]
            if request in self._holds:
                return until
            heapq.heappop(self._deadlines)
        return None

    def hold(self, entry: Entry, candidate: int, now: float) -> bool:
        """Whether the entry, which could reuse `candidate` tokens by now, waits from now on."""
        request = entry.request.id
        if not self._providers or self._until.get(request, now + 1) <= now:
            return False
        provider, upto = self._best(entry, candidate)
        if upto < candidate + self._min_tokens:
            return False
        if request not in self._until:
            self._until[request] = now + self._wait_s
        hold = self._holds[request] = Hold(request, provider, upto, now)
        self._waiting.setdefault(provider, {}).setdefault(upto, []).append(hold)
        heapq.heappush(self._deadlines, (self._until[request], request))
        return True

    def waits(self, hold: Hold) -> bool:
        """Whether this wait still counts."""
        return self._holds.get(hold.request) is hold

    def let_go(self, request: int) -> None:
        """Its wait has ended."""
        self._holds.pop(request, None)

    def forget(self, request: int) -> None:
        """The request does not wait any more, ever."""
        self._holds.pop(request, None)
        self._until.pop(request, None)

    def _best(self, entry: Entry, candidate: int) -> tuple[int, int]:
        """Of those that compute more of the entry's prefix than the candidate: who will publish the most of it, and how
        many tokens that is (0: none does)."""
        block, provider, best = candidate // self._block_size, 0, 0
        if block >= len(entry.keys):
            return 0, 0
        key = entry.keys[block]
        for request, other in self._providers.items():
            # Whoever is less urgent may itself have to wait for others.
            if other.priority > entry.priority:
                continue
            if len(other.keys) > block and other.keys[block] == key:
                usable = self._usable(entry, other, block + 1)
                if usable > max(best, other.computed):
                    provider, best = request, usable
        return provider, best

    def _usable(self, entry: Entry, other: Entry, shared: int) -> int:
        """How many tokens of the entry's prefix the other publishes in all, when they share so many blocks."""
        usable = min(
            common_blocks(entry.keys, other.keys, shared) * self._block_size,
            reuse_limit(entry.request.num_tokens, self._block_size),
            reuse_limit(other.request.num_tokens, self._block_size),
        )
        if not self._at_snapshots:
            return usable
        passed = bisect_right(other.snapshots, usable)
        return other.snapshots[passed - 1] if passed else 0
