"""Keyed, reference-counted entries on the device or on the host: what the trees of both windows share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from .errors import CacheCorrupt
from .eviction import EvictionOrder, Retention, make_order
from .hint_index import HintIndex
from .layout import Window


class Entry:
    """Something attached under a key. Its contents are in `item`, a page or slot of the device, or in `host`, one of
    the host tier: exactly one of the two is -1. `refs` counts holders, the tree not among them; `cost` is the tokens
    that would have to be computed again without it."""

    __slots__ = ("cost", "host", "item", "key", "refs")

    def __init__(self, key: bytes, item: int, refs: int, cost: int = 0) -> None:
        self.key = key
        self.item = item
        self.host = -1
        self.refs = refs
        self.cost = cost

    @property
    def resident(self) -> bool:
        return self.item >= 0


E = TypeVar("E", bound=Entry)


class EntryTable(Generic[E]):
    """Attached entries by key. Those that nobody holds wait for eviction in one order a tier: `device` and `host`.

    An entry's last use is the moment its last holder let go of it. The hint index hears of every attachment and
    detachment, and of nothing else. Under the stage cache's mutex.
    """

    def __init__(self, window: Window, index: HintIndex, retention: Retention = "lru") -> None:
        self._window, self._index = window, index
        self._entries: dict[bytes, E] = {}
        self.device: EvictionOrder[E] = make_order(retention)
        self.host: EvictionOrder[E] = make_order(retention)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[E]:
        return iter(self._entries.values())

    def __getitem__(self, key: bytes) -> E:
        return self._entries[key]

    def get(self, key: bytes) -> E | None:
        return self._entries.get(key)

    def pin(self, entry: E) -> None:
        """One more holder: the entry stays attached until `unpin`."""
        if entry.refs == 0:
            (self.device if entry.item >= 0 else self.host).discard(entry)
        entry.refs += 1

    def unpin(self, entry: E) -> None:
        """One holder less; the last makes the entry the most recently used of the unreferenced."""
        if entry.refs <= 0:
            raise CacheCorrupt(f"unpin of {entry.key.hex()}, which nobody holds")
        entry.refs -= 1
        if entry.refs == 0:
            (self.device if entry.item >= 0 else self.host).add(entry)

    def to_host(self, entry: E, host: int) -> int:
        """Moves an unreferenced entry that has just left the device's order to the host id `host`: its device id."""
        item, entry.item, entry.host = entry.item, -1, host
        self.host.add(entry)
        return item

    def to_device(self, entry: E, item: int) -> int:
        """Moves an entry to the device id `item`: its host id."""
        if entry.refs == 0:
            self.host.discard(entry)
        host, entry.host, entry.item = entry.host, -1, item
        if entry.refs == 0:
            self.device.add(entry)
        return host

    def insert(self, entry: E) -> E:
        """Attaches an entry whose key is not attached."""
        self._entries[entry.key] = entry
        self._index.add(self._window, entry.key, self._position(entry))
        if entry.refs == 0:
            self.device.add(entry)
        return entry

    def detach(self, entry: E) -> None:
        """Forgets an unreferenced entry that has left its order already."""
        del self._entries[entry.key]
        self._index.remove(self._window, entry.key, self._position(entry))

    def _position(self, entry: E) -> int:
        """What the hint index must know of the entry's place in its prompt, in tokens: nothing of a block's."""
        return 0

    def check(self) -> None:
        """Raises CacheCorrupt when an order does not hold exactly the unreferenced entries of its tier, or the index
        does not count exactly what is attached."""
        for name, order, resident in (("device", self.device, True), ("host", self.host, False)):
            waiting = {key for key, entry in self._entries.items() if entry.refs == 0 and entry.resident is resident}
            ordered = [entry.key for entry in order.in_order()]
            if waiting != set(ordered) or not len(waiting) == len(ordered) == len(order):
                raise CacheCorrupt(f"{len(waiting)} {name} entries without holder, {len(ordered)} in its order")
        for key, entry in self._entries.items():
            if entry.key != key or entry.refs < 0:
                raise CacheCorrupt(f"entry {entry.key.hex()} under {key.hex()} with {entry.refs} holders")
            if (entry.item >= 0) == (entry.host >= 0):
                raise CacheCorrupt(f"entry {key.hex()} on the device at {entry.item} and on the host at {entry.host}")
        if self._index.counts(self._window) != dict.fromkeys(self._entries, 1):
            raise CacheCorrupt(f"the hint index does not count the {len(self._entries)} {self._window} entries")
