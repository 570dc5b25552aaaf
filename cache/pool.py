"""The free ids of a window: pages or slots."""

from collections.abc import Iterable

from .errors import CacheCorrupt


class IdPool:
    """Ids 0..capacity-1, each free or taken. Owned by a window, under the stage cache's mutex.

    Allocation is deterministic: fresh ids in ascending order, then last given back, first taken.
    """

    __slots__ = ("_free", "_taken", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._taken = bytearray(capacity)

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` ids, now taken. Raises CacheCorrupt when fewer are free: the caller has counted wrongly."""
        if count > len(self._free):
            raise CacheCorrupt(f"{count} ids wanted, {len(self._free)} free of {self.capacity}")
        split = len(self._free) - count
        ids = self._free[split:]
        del self._free[split:]
        ids.reverse()
        for taken in ids:
            self._taken[taken] = 1
        return ids

    def give(self, ids: Iterable[int]) -> None:
        """Returns ids. Raises CacheCorrupt for one that is free already or does not exist."""
        for back in ids:
            if not 0 <= back < self.capacity or not self._taken[back]:
                raise CacheCorrupt(f"id {back} given back, but it is not taken")
            self._taken[back] = 0
            self._free.append(back)

    def free_ids(self) -> frozenset[int]:
        """For integrity checks: O(capacity)."""
        return frozenset(self._free)
