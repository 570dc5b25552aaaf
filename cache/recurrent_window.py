"""The recurrent window: a request needs one state at exactly its endpoint, and one slot to go on in."""

from collections.abc import Sequence as Keys

from .errors import CacheCorrupt
from .layout import Window
from .lru import Entry
from .sequence import Sequence
from .snapshots import SnapshotTree
from .window import CacheWindow, Demand


class RecurrentWindow(CacheWindow[SnapshotTree]):
    """Slots and their snapshots. Under the stage cache's mutex.

    A sequence pins the snapshot that it resumes from until that has been copied to its live slot. The snapshots it
    captures are the tree's as soon as they are published, and from then on it holds none: its state is the live one.
    """

    window = Window.RECURRENT

    def __init__(self, num_slots: int, block_size: int) -> None:
        super().__init__(SnapshotTree(block_size), num_slots)
        self._block_size = block_size

    def reach(self, keys: Keys[bytes], limit: int) -> int:
        return self.tree.match(keys, limit)

    def size(self, num_tokens: int, num_snapshots: int) -> int:
        return 1 + num_snapshots

    def sustains(self, endpoint: int, num_tokens: int, num_snapshots: int) -> bool:
        source = 1 if endpoint else 0
        return self.size(num_tokens, num_snapshots) + source <= self.pool.capacity

    def demand(self, sequence: Sequence) -> Demand:
        source = self.tree.at(sequence.keys, sequence.endpoint)
        reclaimable_source = 1 if source is not None and source.refs == 0 else 0
        return Demand(1 + len(sequence.planned), self.available - reclaimable_source)

    def claim(self, sequence: Sequence) -> None:
        source = self.tree.at(sequence.keys, sequence.endpoint)
        if source is not None:
            self.tree.pin(source)
            sequence.source, sequence.source_slot = source, source.item
        sequence.slot, *captures = self.take(1 + len(sequence.planned))
        sequence.snapshots = tuple(zip(sequence.planned, captures, strict=True))

    def resumed(self, sequence: Sequence) -> None:
        if sequence.source is not None:
            self.tree.unpin(sequence.source)
            sequence.source, sequence.source_slot = None, -1

    def publish(self, sequence: Sequence, computed: int) -> None:
        done = 0
        for position, slot in sequence.snapshots:
            if position > computed:
                break
            if self.tree.attach(sequence.keys[position // self._block_size - 1], position, slot).item != slot:
                self.pool.give((slot,))
            done += 1
        sequence.snapshots = sequence.snapshots[done:]

    def seal(self, sequence: Sequence) -> None:
        self.resumed(sequence)
        self.pool.give(slot for _, slot in reversed(sequence.snapshots))
        sequence.snapshots = ()

    def release(self, sequence: Sequence) -> None:
        if sequence.slot < 0:
            raise CacheCorrupt(f"request {sequence.request} has no live slot to release")
        self.resumed(sequence)
        self.pool.give(reversed(sequence.own_slots()))
        sequence.snapshots, sequence.slot = (), -1

    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        return sequence.own_slots(), [sequence.source] if sequence.source is not None else []
