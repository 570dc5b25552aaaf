"""Keyed, reference-counted entries with least-recently-used eviction: what the trees of both windows share."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from .errors import CacheCorrupt


class Entry:
    """Something attached under a key. `item` is its page or slot; `refs` counts holders, the tree not among them."""

    __slots__ = ("item", "key", "refs")

    def __init__(self, key: bytes, item: int, refs: int) -> None:
        self.key = key
        self.item = item
        self.refs = refs


E = TypeVar("E", bound=Entry)


class LruTable(Generic[E]):
    """Attached entries by key, and the unreferenced ones among them from the least to the most recently used.

    An entry's last use is the moment its last holder let go of it. Under the stage cache's mutex.
    """

    __slots__ = ("_entries", "_unreferenced")

    def __init__(self) -> None:
        self._entries: dict[bytes, E] = {}
        self._unreferenced: OrderedDict[bytes, E] = OrderedDict()

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

    @property
    def evictable(self) -> int:
        """How many calls of `evict_one` would succeed in a row. O(1)."""
        return len(self._unreferenced)

    def pin(self, entry: E) -> None:
        """One more holder: the entry cannot be evicted until `unpin`."""
        if entry.refs == 0:
            del self._unreferenced[entry.key]
        entry.refs += 1

    def unpin(self, entry: E) -> None:
        """One holder less; the last makes the entry the most recently used of the unreferenced."""
        if entry.refs <= 0:
            raise CacheCorrupt(f"unpin of {entry.key.hex()}, which nobody holds")
        entry.refs -= 1
        if entry.refs == 0:
            self._unreferenced[entry.key] = entry

    def evict_one(self) -> int | None:
        """Detaches the least recently used unreferenced entry; its page or slot, or None when all are held."""
        if not self._unreferenced:
            return None
        return self._detach(next(iter(self._unreferenced.values()))).item

    def eviction_order(self) -> list[E]:
        """The unreferenced entries, next victim first. O(evictable)."""
        return list(self._unreferenced.values())

    def _attach(self, entry: E) -> E:
        self._entries[entry.key] = entry
        if entry.refs == 0:
            self._unreferenced[entry.key] = entry
        return entry

    def _detach(self, entry: E) -> E:
        del self._unreferenced[entry.key]
        del self._entries[entry.key]
        return entry

    def check(self) -> None:
        """Raises CacheCorrupt when the unreferenced entries are not exactly those without a holder."""
        unreferenced = {key for key, entry in self._entries.items() if entry.refs == 0}
        if unreferenced != set(self._unreferenced):
            raise CacheCorrupt(f"{len(unreferenced)} entries without holder, {len(self._unreferenced)} evictable")
        for key, entry in self._entries.items():
            if entry.key != key or entry.refs < 0:
                raise CacheCorrupt(f"entry {entry.key.hex()} under {key.hex()} with {entry.refs} holders")
