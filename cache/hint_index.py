"""How much of a prompt a stage could reuse, told from counters instead of the trees."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from threading import Lock

from .answers import Reach
from .errors import CacheCorrupt
from .layout import Window


class _Counters:
    """One window's counters by key, in shards of a power of two chosen by the key's first byte. A shard's lock is for
    changes; to look a key up in a dict is one step of the interpreter, and takes none."""

    __slots__ = ("counts", "locks", "mask")

    def __init__(self, shards: int) -> None:
        self.mask = shards - 1
        self.counts: list[dict[bytes, int]] = [{} for _ in range(shards)]
        self.locks = [Lock() for _ in range(shards)]


class _Positions:
    """After how many tokens snapshots were taken: far fewer numbers than a long prompt has blocks, so that a search
    backward looks at these alone. `ascending` is replaced as a whole, and read without the lock."""

    __slots__ = ("_counts", "_lock", "ascending")

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[int, int] = {}
        self.ascending: tuple[int, ...] = ()

    def add(self, position: int) -> None:
        with self._lock:
            count = self._counts.get(position, 0)
            self._counts[position] = count + 1
            if not count:
                place = bisect_left(self.ascending, position)
                self.ascending = (*self.ascending[:place], position, *self.ascending[place:])

    def remove(self, position: int) -> None:
        with self._lock:
            self._counts[position] -= 1
            if not self._counts[position]:
                del self._counts[position]
                place = bisect_left(self.ascending, position)
                self.ascending = (*self.ascending[:place], *self.ascending[place + 1 :])


class HintIndex:
    """Counts the attached entries of every (window, key): +1 on attach, -1 on detach, gone at zero (paper §4.2).

    Any thread may read it, without the stage cache's mutex and without waiting for whoever changes it: a change takes
    the lock of its key's shard, a look none. It holds no block and keeps nothing alive, so what it says may be out of
    date by the time it is used; the lease decides. Where an entry's contents are, on the device or on the host, is
    nothing to it.
    """

    def __init__(self, windows: Collection[Window], block_size: int, shards: int = 16) -> None:
        if shards < 1 or shards > 256 or shards & (shards - 1):
            raise ValueError(f"shards must be a power of two up to 256, not {shards}")
        self._block_size = block_size
        self._windows = {window: _Counters(shards) for window in Window if window in windows}
        self._attention = self._windows.get(Window.ATTENTION)
        self._recurrent = self._windows.get(Window.RECURRENT)
        self._positions = _Positions()

    def add(self, window: Window, key: bytes, position: int = 0) -> None:
        """`position` is a snapshot's, in tokens, and nothing to blocks. It is found from then on."""
        if position:
            self._positions.add(position)
        counters = self._windows[window]
        shard = key[0] & counters.mask
        counts = counters.counts[shard]
        with counters.locks[shard]:
            counts[key] = counts.get(key, 0) + 1

    def remove(self, window: Window, key: bytes, position: int = 0) -> None:
        """With the position that it was added with. Raises CacheCorrupt for a key that is not counted."""
        counters = self._windows[window]
        shard = key[0] & counters.mask
        counts = counters.counts[shard]
        with counters.locks[shard]:
            count = counts.get(key, 0)
            if count < 1:
                raise CacheCorrupt(f"{window} key {key.hex()} was detached more often than attached")
            if count == 1:
                del counts[key]
            else:
                counts[key] = count - 1
        if position:
            self._positions.remove(position)

    def count(self, window: Window, key: bytes) -> int:
        counters = self._windows[window]
        return counters.counts[key[0] & counters.mask].get(key, 0)

    def counts(self, window: Window) -> dict[bytes, int]:
        """All counters of a window. For checks: O(everything)."""
        counters = self._windows[window]
        merged: dict[bytes, int] = {}
        for lock, counts in zip(counters.locks, counters.counts, strict=True):
            with lock:
                merged.update(counts)
        return merged

    def reach(self, keys: Sequence[bytes], limit: int) -> Reach:
        """The local hint: the longest prefix of `keys` of at most `limit` tokens (block-aligned) that every window here
        supports; `limit` where there is no window."""
        reach = Reach(limit)
        if self._attention is not None:
            blocks = _gallop(self._attention, keys, min(limit // self._block_size, len(keys)))
            if blocks * self._block_size < limit:
                reach = Reach(blocks * self._block_size, str(Window.ATTENTION))
        if self._recurrent is not None:
            position = self._scan_back(self._recurrent, keys, reach.endpoint)
            if position < reach.endpoint:
                reach = Reach(position, str(Window.RECURRENT))
        return reach

    def _scan_back(self, counters: _Counters, keys: Sequence[bytes], limit: int) -> int:
        """The largest position, at most `limit`, with a snapshot at exactly it; 0 when there is none."""
        counts, mask, size = counters.counts, counters.mask, self._block_size
        positions = self._positions.ascending
        for place in range(bisect_right(positions, min(limit, len(keys) * size)) - 1, -1, -1):
            key = keys[positions[place] // size - 1]
            if key in counts[key[0] & mask]:
                return positions[place]
        return 0


def _gallop(counters: _Counters, keys: Sequence[bytes], most: int) -> int:
    """How many of the first `most` keys are there, looking at depths 1, 2, 4, … up to the first miss and then bisecting
    between it and the last match: O(log most) looks."""
    counts, mask = counters.counts, counters.mask
    found, depth = 0, 1
    while depth <= most and (key := keys[depth - 1]) in counts[key[0] & mask]:
        found, depth = depth, 2 * depth
    missed = min(depth, most + 1)
    while missed - found > 1:
        middle = (found + missed) // 2
        if (key := keys[middle - 1]) in counts[key[0] & mask]:
            found = middle
        else:
            missed = middle
    return found
