"""How much of a prompt a stage could reuse, told from counters instead of the trees."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock

from .answers import Reach
from .errors import CacheCorrupt
from .layout import Window


class _Shard:
    __slots__ = ("counts", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.counts: dict[bytes, int] = {}


class _Counters:
    """One window's counters by key, in shards of a power of two chosen by the key's first byte."""

    __slots__ = ("_mask", "shards")

    def __init__(self, shards: int) -> None:
        self._mask = shards - 1
        self.shards = [_Shard() for _ in range(shards)]

    def shard(self, key: bytes) -> _Shard:
        return self.shards[key[0] & self._mask]

    def __contains__(self, key: bytes) -> bool:
        shard = self.shards[key[0] & self._mask]
        with shard.lock:
            return key in shard.counts

    def __bool__(self) -> bool:
        return any(shard.counts for shard in self.shards)


class HintIndex:
    """Counts the attached entries of every (window, key): +1 on attach, -1 on detach, gone at zero (paper §4.2).

    Any thread may read it, without the stage cache's mutex: each shard has its own lock, held for one look. It holds no
    block and keeps nothing alive, so what it says may be out of date by the time it is used; the lease decides. Where
    an entry's contents are, on the device or on the host, is nothing to it.
    """

    def __init__(self, windows: Collection[Window], block_size: int, shards: int = 16) -> None:
        if shards < 1 or shards > 256 or shards & (shards - 1):
            raise ValueError(f"shards must be a power of two up to 256, not {shards}")
        self._block_size = block_size
        self._windows = {window: _Counters(shards) for window in Window if window in windows}
        self._attention = self._windows.get(Window.ATTENTION)
        self._recurrent = self._windows.get(Window.RECURRENT)

    def add(self, window: Window, key: bytes) -> None:
        shard = self._windows[window].shard(key)
        with shard.lock:
            shard.counts[key] = shard.counts.get(key, 0) + 1

    def remove(self, window: Window, key: bytes) -> None:
        """Raises CacheCorrupt for a key that is not counted."""
        shard = self._windows[window].shard(key)
        with shard.lock:
            count = shard.counts.get(key, 0)
            if count < 1:
                raise CacheCorrupt(f"{window} key {key.hex()} was detached more often than attached")
            if count == 1:
                del shard.counts[key]
            else:
                shard.counts[key] = count - 1

    def count(self, window: Window, key: bytes) -> int:
        shard = self._windows[window].shard(key)
        with shard.lock:
            return shard.counts.get(key, 0)

    def counts(self, window: Window) -> dict[bytes, int]:
        """All counters of a window. For checks: O(everything)."""
        merged: dict[bytes, int] = {}
        for shard in self._windows[window].shards:
            with shard.lock:
                merged.update(shard.counts)
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
            most = min(reach.endpoint // self._block_size, len(keys))
            blocks = _scan_back(self._recurrent, keys, most)
            if blocks * self._block_size < reach.endpoint:
                reach = Reach(blocks * self._block_size, str(Window.RECURRENT))
        return reach


def _gallop(counters: _Counters, keys: Sequence[bytes], most: int) -> int:
    """How many of the first `most` keys are there, looking at depths 1, 2, 4, … up to the first miss and then bisecting
    between it and the last match: O(log most) looks."""
    found, depth = 0, 1
    while depth <= most and keys[depth - 1] in counters:
        found, depth = depth, 2 * depth
    missed = min(depth, most + 1)
    while missed - found > 1:
        middle = (found + missed) // 2
        if keys[middle - 1] in counters:
            found = middle
        else:
            missed = middle
    return found


def _scan_back(counters: _Counters, keys: Sequence[bytes], most: int) -> int:
    """The longest prefix, in blocks up to `most`, with a snapshot at exactly its end; 0 when there is none."""
    if not counters:
        return 0
    for block in range(most, 0, -1):
        if keys[block - 1] in counters:
            return block
    return 0
