"""The recurrent window's snapshots: each stands alone, at exactly its position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import CacheCorrupt
from .eviction import Retention
from .hint_index import HintIndex
from .layout import Window
from .table import Entry, EntryTable


class Snapshot(Entry):
    """The state after exactly `position` tokens, keyed by the block that ends there. `item` is its slot; `cost` the
    tokens from the one before it on its chain, which would have to be computed again to have it back."""

    __slots__ = ("position",)

    def __init__(self, key: bytes, slot: int, position: int, cost: int) -> None:
        super().__init__(key, slot, refs=0, cost=cost)
        self.position = position


class SnapshotTree(EntryTable[Snapshot]):
    """Attached snapshots. The chained key names the whole prefix, so no snapshot needs another, and they are evicted
    in any order of positions. Under the stage cache's mutex."""

    def __init__(self, index: HintIndex, block_size: int, retention: Retention = "lru") -> None:
        super().__init__(Window.RECURRENT, index, retention)
        self._block_size = block_size

    def match(self, keys: Sequence[bytes], limit: int, usable: Callable[[Snapshot], bool] | None = None) -> int:
        """The largest position, at most `limit` tokens, with a snapshot on the chain `keys` (and a `usable` one, where
        that is asked); 0 when there is none. One look at each block that is passed."""
        if not self._entries:
            return 0
        for block in range(min(limit // self._block_size, len(keys)) - 1, -1, -1):
            snapshot = self._entries.get(keys[block])
            if snapshot is not None and (usable is None or usable(snapshot)):
                return (block + 1) * self._block_size
        return 0

    def at(self, keys: Sequence[bytes], position: int) -> Snapshot | None:
        """The snapshot at exactly `position` tokens (block-aligned) of the chain `keys`."""
        return self._entries.get(keys[position // self._block_size - 1]) if position else None

    def attach(self, key: bytes, position: int, slot: int, cost: int = 0) -> Snapshot:
        """A new snapshot, held by nobody but the tree and now the most recently used."""
        return self.insert(Snapshot(key, slot, position, cost))

    def _position(self, entry: Snapshot) -> int:
        return entry.position

    def check(self) -> None:
        super().check()
        for snapshot in self:
            if snapshot.position <= 0 or snapshot.position % self._block_size:
                raise CacheCorrupt(f"snapshot {snapshot.key.hex()} at {snapshot.position} tokens")
