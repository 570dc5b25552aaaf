"""The escrow: capacity for the uncached suffix, promised before it is taken.

A promise is a number of ids in each window, covered by free ids and by entries that nobody holds, in the window's own
order of eviction. Those victims stay attached and usable by anybody until LOOP's materialisation evicts them; one that
somebody comes to hold meanwhile is replaced by the next in the same mutex hold, by the way that promises are counted.
Their places on the host are found then, each before its page is let go of. A page for a leased block that is on the
host is promised once, however many requests count on it. An escrow is always released before its lease.
"""

from __future__ import annotations

from collections.abc import Sequence as Windows
from dataclasses import dataclass

from .answers import NoRoom, Prepared
from .layout import Window
from .sequence import Sequence
from .window import CacheWindow


@dataclass(frozen=True, slots=True)
class Floors:
    """Pages and slots that a commit must leave free or reclaimable, and not promised, for what runs already."""

    pages: int = 0
    slots: int = 0

    def of(self, window: Window) -> int:
        return self.pages if window is Window.ATTENTION else self.slots


def revise(
    windows: Windows[CacheWindow], sequence: Sequence, endpoint: int, planned: tuple[int, ...], floors: Floors
) -> Prepared | NoRoom:
    """Makes the promise to `sequence` what it needs at `endpoint`, or at the highest lower one at which the lease can
    go on; the lease is lowered to it. `planned` are the snapshots to be captured; those within the prefix do not count.

    `floors` are kept only when it is `endpoint` itself. All or nothing: after `NoRoom` lease and promise are what they
    were.
    """
    target = min(endpoint, sequence.endpoint)
    limited_by = sequence.limited_by
    for window in windows:
        lower = window.lowest(sequence, target, planned)
        if lower < target:
            target, limited_by = lower, str(window.window)
    needs: list[int] = []
    for window in windows:
        floor = floors.of(window.window) if target == endpoint else 0
        available = window.slack + window.own_promise(sequence) + window.regained(sequence, target) - floor
        needed = window.demand(sequence, target, planned)
        if needed > available:
            return NoRoom(str(window.window), needed, max(0, available))
        needs.append(needed)
    give_back(windows, sequence)
    for window in windows:
        window.trim(sequence, target)
    sequence.endpoint = sequence.computed = target
    sequence.limited_by = limited_by
    sequence.planned = tuple([position for position in planned if position > target])
    free = offload = evict = 0
    for window, needed in zip(windows, needs, strict=True):
        promised, at_hand = window.promised, window.pool.free
        from_free = min(needed, max(0, at_hand - promised))
        to_host = min(needed - from_free, max(0, window.host.room - max(0, promised - at_hand)))
        free, offload, evict = free + from_free, offload + to_host, evict + needed - from_free - to_host
        window.promise(sequence)
    sequence.escrowed = True
    return Prepared(target, free, offload, evict)


def give_back(windows: Windows[CacheWindow], sequence: Sequence) -> None:
    """Nothing is promised to the sequence any more."""
    for window in windows:
        window.give_back(sequence)
    sequence.escrowed = False
