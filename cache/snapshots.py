"""The recurrent window's snapshots: each stands alone, at exactly its position."""

from collections.abc import Sequence

from .errors import CacheCorrupt
from .lru import Entry, LruTable


class Snapshot(Entry):
    """The state after exactly `position` tokens, keyed by the block that ends there. `item` is its slot."""

    __slots__ = ("position",)

    def __init__(self, key: bytes, slot: int, position: int) -> None:
        super().__init__(key, slot, refs=0)
        self.position = position


class SnapshotTree(LruTable[Snapshot]):
    """Attached snapshots. The chained key names the whole prefix, so no snapshot needs another, and they are evicted
    in any order of positions. Under the stage cache's mutex."""

    __slots__ = ("_block_size",)

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self._block_size = block_size

    def match(self, keys: Sequence[bytes], limit: int) -> int:
        """The largest position, at most `limit` tokens, with a snapshot on the chain `keys`; 0 when there is none."""
        if not self._entries:
            return 0
        for block in range(min(limit // self._block_size, len(keys)) - 1, -1, -1):
            if keys[block] in self._entries:
                return (block + 1) * self._block_size
        return 0

    def at(self, keys: Sequence[bytes], position: int) -> Snapshot | None:
        """The snapshot at exactly `position` tokens (block-aligned) of the chain `keys`."""
        return self._entries.get(keys[position // self._block_size - 1]) if position else None

    def attach(self, key: bytes, position: int, slot: int) -> Snapshot:
        """The snapshot of `key`, held by nobody but the tree and now the most recently used.

        One that is attached already stays, with its own slot: then the result's `item` is not `slot`, which
        remains the caller's.
        """
        snapshot = self._entries.get(key)
        if snapshot is None:
            return self._attach(Snapshot(key, slot, position))
        if snapshot.refs == 0:
            self._unreferenced.move_to_end(key)
        return snapshot

    def check(self) -> None:
        super().check()
        for snapshot in self:
            if snapshot.position <= 0 or snapshot.position % self._block_size:
                raise CacheCorrupt(f"snapshot {snapshot.key.hex()} at {snapshot.position} tokens")
