"""What the stage cache asks of a window, whatever it stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Keys
from typing import Generic, TypeVar

from .errors import CacheCorrupt
from .host_tier import HostTier
from .layout import Window
from .moves import Copies
from .pool import IdPool
from .sequence import Sequence
from .table import Entry, EntryTable

T = TypeVar("T", bound=EntryTable)


class CacheWindow(Generic[T]):
    """One window of a stage: its device ids, the tree that keeps some of them for reuse, its host tier, and how many
    ids are promised.

    Each device id is free, a resident tree entry's, or a sequence's own. What is promised is always covered by what is
    free or reclaimable: `slack` is never negative when the mutex is let go of. Which entries will make way is not
    recorded anywhere: they are always the next victims in the window's own order, so that one which somebody comes to
    hold is replaced at once by the next. Every method runs under the stage cache's mutex. What a sequence holds here is
    kept in the sequence, so that it can pass to a handle without letting go.
    """

    window: Window

    def __init__(self, tree: T, capacity: int, host_capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the {self.window} window needs at least one page or slot, got {capacity}")
        self.tree = tree
        self.pool = IdPool(capacity)
        self.host = HostTier(tree, host_capacity)
        self.promised = 0

    @property
    def available(self) -> int:
        """Free and reclaimable ids, promised or not."""
        return self.pool.free + len(self.tree.device)

    @property
    def slack(self) -> int:
        """How many more ids could be promised, or entries of the device held."""
        return self.pool.free + len(self.tree.device) - self.promised

    def victims(self) -> list[Entry]:
        """The entries that will make way for what is promised, next one first, as things stand. O(reclaimable)."""
        return list(self.tree.device.in_order())[: max(0, self.promised - self.pool.free)]

    # The lease.

    @abstractmethod
    def reach(self, keys: Keys[bytes], limit: int) -> int:
        """The longest reusable prefix, in tokens, of at most `limit` (block-aligned)."""

    @abstractmethod
    def leasable(self, keys: Keys[bytes], limit: int) -> int:
        """The longest prefix of at most `limit` tokens that can be held without breaking a promise."""

    @abstractmethod
    def pin(self, sequence: Sequence) -> None:
        """Holds what `sequence` reuses up to its endpoint, which is leasable."""

    def lowest(self, sequence: Sequence, endpoint: int, planned: tuple[int, ...]) -> int:
        """The highest endpoint, at most `endpoint` and the lease's, at which the lease can go on with snapshots to be
        captured at `planned`."""
        return endpoint

    @abstractmethod
    def regained(self, sequence: Sequence, endpoint: int) -> int:
        """By how much `available` grows when the lease is trimmed to `endpoint` (may be negative)."""

    @abstractmethod
    def trim(self, sequence: Sequence, endpoint: int) -> None:
        """Lowers the lease to `endpoint`. Takes hold of what it needs there before it lets go of anything."""

    # The escrow.

    @abstractmethod
    def size(self, num_tokens: int, num_snapshots: int) -> int:
        """Ids that a prompt of `num_tokens` with `num_snapshots` captured needs when it reuses nothing."""

    def sustains(self, num_tokens: int, num_snapshots: int) -> bool:
        """Whether such a prompt fits the window when nothing else is in it."""
        return self.size(num_tokens, num_snapshots) <= self.pool.capacity

    @abstractmethod
    def demand(self, sequence: Sequence, endpoint: int, planned: tuple[int, ...]) -> int:
        """Ids that must be promised for the prompt, and are not promised to others anyway, when it is reused up to
        `endpoint`."""

    def own_promise(self, sequence: Sequence) -> int:
        """By how much `promised` would fall if the escrow of `sequence` were given back."""
        return sequence.promised.get(self.window, 0)

    @abstractmethod
    def outstanding(self, sequence: Sequence) -> int:
        """Ids for the suffix that an escrowed sequence has not taken yet."""

    def promise(self, sequence: Sequence) -> None:
        """Promises `sequence`, to which nothing is promised, what it needs at its endpoint."""
        self._set_promise(sequence, self.outstanding(sequence))

    def give_back(self, sequence: Sequence) -> None:
        """Nothing is promised to `sequence` here any more."""
        self._set_promise(sequence, 0)

    def _set_promise(self, sequence: Sequence, count: int) -> None:
        self.promised += count - sequence.promised.pop(self.window, 0)
        if count:
            sequence.promised[self.window] = count

    # Materialisation.

    @abstractmethod
    def bring(self, sequence: Sequence, limit: int | None, copies: Copies) -> None:
        """Brings what is reused to the device, by at most `limit` copies."""

    @abstractmethod
    def arrived(self, sequence: Sequence) -> bool:
        """Whether `bring` would find nothing to copy."""

    @abstractmethod
    def extend(self, sequence: Sequence, upto: int, copies: Copies) -> bool:
        """Takes what the tokens below `upto` write to; whether that was anything. All that is reused is there."""

    def take(self, sequence: Sequence, count: int, copies: Copies) -> list[int]:
        """`count` of the ids promised to `sequence` for its suffix."""
        left = sequence.promised.get(self.window, 0) - count
        if left < 0:
            raise CacheCorrupt(
                f"request {sequence.request} takes {-left} {self.window} ids that are not promised to it"
            )
        self._set_promise(sequence, left)
        return self._acquire(count, copies)

    def _acquire(self, count: int, copies: Copies) -> list[int]:
        """`count` ids, promised no more, evicting the next victims for those that are not free."""
        while self.pool.free < count:
            victim = self.tree.device.pop()
            if victim is None:
                raise CacheCorrupt(f"{count} {self.window} ids were promised, of which {self.pool.free} can be had")
            self.pool.give((self.host.receive(victim, copies),))
        return self.pool.take(count)

    # Afterwards.

    def resumed(self, sequence: Sequence) -> None:
        """Lets go of what was only needed to start from; harmless when that is nothing."""

    @abstractmethod
    def publish(self, sequence: Sequence, computed: int) -> None:
        """Attaches what is complete up to `computed` tokens."""

    @abstractmethod
    def covers(self, sequence: Sequence, computed: int) -> bool:
        """Whether what the tokens below `computed` write to has been taken."""

    @abstractmethod
    def seal(self, sequence: Sequence) -> None:
        """Drops what a finished sequence needs no more."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Lets go of everything that `sequence` holds here; nothing is promised to it any more."""

    @abstractmethod
    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        """For `check`: the ids that are the sequence's own, and the entries it pins, once each."""

    def reset(self) -> None:
        """Detaches everything that nobody holds. What is on the host goes first: no block there has one on the device
        below it."""
        self.host.clear()
        while (entry := self.tree.device.pop()) is not None:
            self.tree.detach(entry)
            self.pool.give((entry.item,))
