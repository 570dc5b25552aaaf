"""The recurrent window: a request needs one state at exactly its endpoint, and one slot to go on in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Keys

from .errors import CacheCorrupt
from .eviction import Retention
from .hint_index import HintIndex
from .layout import Window
from .moves import Copies
from .sequence import Sequence
from .snapshots import Snapshot, SnapshotTree
from .table import Entry
from .window import CacheWindow


class RecurrentWindow(CacheWindow[SnapshotTree]):
    """Slots and their snapshots. Under the stage cache's mutex.

    A sequence pins the snapshot that it resumes from until that has been copied to its live slot; one on the host is
    copied straight there, and never takes a slot of its own. The snapshots that a sequence captures are the tree's as
    soon as they are published, and from then on it holds none: its state is the live one. Slots are interchangeable,
    so they are promised by count, and taken when a chunk needs them.
    """

    window = Window.RECURRENT

    def __init__(
        self, num_slots: int, block_size: int, index: HintIndex, host_slots: int = 0, retention: Retention = "lru"
    ) -> None:
        super().__init__(SnapshotTree(index, block_size, retention), num_slots, host_slots)
        self._block_size = block_size

    def reach(self, keys: Keys[bytes], limit: int) -> int:
        return self.tree.match(keys, limit)

    def leasable(self, keys: Keys[bytes], limit: int) -> int:
        spare, beside = self.slack > 0, self.pool.capacity > 1

        def usable(snapshot: Snapshot) -> bool:
            return snapshot.item < 0 or (beside and (spare or snapshot.refs > 0))

        return self.tree.match(keys, limit, usable)

    def pin(self, sequence: Sequence) -> None:
        sequence.source = self.tree.at(sequence.keys, sequence.endpoint)
        if sequence.source is not None:
            self.tree.pin(sequence.source)

    def lowest(self, sequence: Sequence, endpoint: int, planned: tuple[int, ...]) -> int:
        # Waiting would never make room for a source beside the rest, computing it again does: so look lower. Where even
        # that does not fit, nothing is gained by it.
        fits = self.sustains(sequence.num_tokens, len(planned))

        def usable(snapshot: Snapshot) -> bool:
            beside = 2 + _beyond(planned, snapshot.position)
            return snapshot.item < 0 or not fits or beside <= self.pool.capacity

        return self.tree.match(sequence.keys, endpoint, usable)

    def regained(self, sequence: Sequence, endpoint: int) -> int:
        source = sequence.source
        if endpoint == sequence.endpoint or source is None:
            return 0
        earlier = self.tree.at(sequence.keys, endpoint)
        acquired = earlier is not None and earlier.item >= 0 and earlier.refs == 0
        return int(source.item >= 0 and source.refs == 1) - int(acquired)

    def trim(self, sequence: Sequence, endpoint: int) -> None:
        if endpoint == sequence.endpoint:
            return
        later, sequence.source = sequence.source, self.tree.at(sequence.keys, endpoint)
        if sequence.source is not None:
            self.tree.pin(sequence.source)
        if later is not None:
            self.tree.unpin(later)

    def size(self, num_tokens: int, num_snapshots: int) -> int:
        return 1 + num_snapshots

    def demand(self, sequence: Sequence, endpoint: int, planned: tuple[int, ...]) -> int:
        return 1 + _beyond(planned, endpoint)

    def outstanding(self, sequence: Sequence) -> int:
        return (sequence.slot < 0) + len(sequence.planned) - sequence.captures

    def bring(self, sequence: Sequence, limit: int | None, copies: Copies) -> None:
        source = sequence.source
        if source is None or source.item >= 0 or limit == 0:
            return
        (sequence.slot,) = self.take(sequence, 1, copies)
        copies.onboard(source.host, sequence.slot)
        self.host.onboarded += 1
        # Not before the slot is taken, or its place could be given to a victim in this very step.
        self.tree.unpin(source)
        sequence.source = None

    def arrived(self, sequence: Sequence) -> bool:
        return sequence.source is None or sequence.source.item >= 0

    def extend(self, sequence: Sequence, upto: int, copies: Copies) -> bool:
        due = bisect_right(sequence.planned, upto)
        live, captures = sequence.slot < 0, due - sequence.captures
        if not live and captures <= 0:
            return False
        slots = self.take(sequence, live + max(0, captures), copies)
        if live:
            if sequence.source is not None:
                sequence.source_slot = sequence.source.item
            sequence.slot = slots.pop(0)
        if slots:
            positions = sequence.planned[sequence.captures : due]
            sequence.snapshots = (*sequence.snapshots, *zip(positions, slots, strict=True))
            sequence.captures = due
        return True

    def covers(self, sequence: Sequence, computed: int) -> bool:
        return sequence.slot >= 0 and sequence.captures >= bisect_right(sequence.planned, computed)

    def resumed(self, sequence: Sequence) -> None:
        if sequence.source is not None and sequence.slot >= 0:
            self.tree.unpin(sequence.source)
            sequence.source, sequence.source_slot = None, -1

    def publish(self, sequence: Sequence, computed: int) -> None:
        done = bisect_right(sequence.snapshots, (computed, self.pool.capacity))
        for position, slot in sequence.snapshots[:done]:
            self._attach(sequence, position, slot)
        sequence.snapshots = sequence.snapshots[done:]

    def _attach(self, sequence: Sequence, position: int, slot: int) -> None:
        tree, key = self.tree, sequence.keys[position // self._block_size - 1]
        snapshot = tree.get(key)
        if snapshot is None:
            tree.attach(key, position, slot, position - max(sequence.captured, sequence.endpoint))
        elif snapshot.item < 0:
            self.host.bring_back(snapshot, slot)
        else:
            tree.device.touch(snapshot)
            self.pool.give((slot,))
        sequence.captured = position

    def seal(self, sequence: Sequence) -> None:
        self.resumed(sequence)
        self.pool.give(slot for _, slot in reversed(sequence.snapshots))
        sequence.snapshots = ()

    def release(self, sequence: Sequence) -> None:
        if self.window in sequence.promised:
            raise CacheCorrupt(f"request {sequence.request} lets go of its snapshot before its slots' promise")
        if sequence.source is not None:
            self.tree.unpin(sequence.source)
            sequence.source, sequence.source_slot = None, -1
        self.pool.give(reversed(sequence.own_slots()))
        sequence.snapshots, sequence.slot = (), -1

    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        return sequence.own_slots(), [sequence.source] if sequence.source is not None else []


def _beyond(planned: tuple[int, ...], position: int) -> int:
    """How many of the ascending `planned` positions lie beyond `position`."""
    return len(planned) - bisect_right(planned, position)
