"""Where a window's victims go instead of being lost: places in host memory."""

from __future__ import annotations

from typing import Generic, TypeVar

from .moves import Copies
from .pool import IdPool
from .table import Entry, EntryTable

E = TypeVar("E", bound=Entry)


class HostTier(Generic[E]):
    """The host ids of one window: each is free or an offloaded entry's. With capacity 0 there is no host tier, and
    victims leave the cache. Under the stage cache's mutex; the contents are copied by LOOP, as `Copies` say.

    An offloaded entry stays attached and usable. When nobody holds it, it may be dropped to make room for another, in
    the host's own order of eviction. Nothing here is ever promised: the host tier only ever saves what the device would
    otherwise lose.
    """

    def __init__(self, table: EntryTable[E], capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"the host tier cannot have {capacity} places")
        self._table = table
        self.pool = IdPool(capacity)
        self.offloaded = self.onboarded = self.dropped = 0
        """Entries since the start: copied to the host, copied back, and gone from the cache to make room."""

    @property
    def reclaimable(self) -> int:
        """Places of entries that could be dropped."""
        return len(self._table.host)

    @property
    def room(self) -> int:
        """How many victims could be kept at once."""
        return self.pool.free + len(self._table.host)

    def receive(self, victim: E, copies: Copies) -> int:
        """Takes over an unreferenced entry that has just left the device's order, or has it detached when there is no
        place for it: its device id, which is the caller's now. The place is found before the device id is let go of."""
        host = self._place(copies)
        if host < 0:
            self._table.detach(victim)
            self.dropped += 1
            return victim.item
        item = self._table.to_host(victim, host)
        copies.offload(item, host)
        self.offloaded += 1
        return item

    def bring_back(self, entry: E, item: int, copies: Copies | None = None) -> None:
        """Moves an entry to the device id `item`: by a copy, or, without `copies`, because `item` has the same contents
        already. Within a step, only after all of its device ids have been taken: until the copies are made, nothing
        else may be copied to the place that this frees."""
        host = self._table.to_device(entry, item)
        self.pool.give((host,))
        if copies is not None:
            copies.onboard(host, item)
            self.onboarded += 1

    def clear(self) -> None:
        """Detaches every entry that nobody holds."""
        while (entry := self._table.host.pop()) is not None:
            self._table.detach(entry)
            self.pool.give((entry.host,))

    def _place(self, copies: Copies) -> int:
        """A host id, now taken; -1 when all are held."""
        if self.pool.free == 0:
            entry = self._table.host.pop()
            if entry is None:
                return -1
            self._table.detach(entry)
            self.dropped += 1
            if copies.cancel(entry.host):
                self.offloaded -= 1
            return entry.host
        return self.pool.take(1)[0]
