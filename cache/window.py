"""What the stage cache asks of a window, whatever it stores."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Keys
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import CacheCorrupt
from .layout import Window
from .lru import Entry, LruTable
from .pool import IdPool
from .sequence import Sequence

T = TypeVar("T", bound="LruTable")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a claim would take from a window, and what it could take: free ids and those it could reclaim without
    losing the claim's own prefix."""

    needed: int
    available: int


class CacheWindow(Generic[T]):
    """One window of a stage: a pool of ids, and the tree that keeps some of them for reuse.

    Each id is free, owned by a tree entry, or a sequence's own. Every method runs under the stage cache's mutex. What a
    sequence holds here is kept in the sequence, so that it can pass to a handle without letting go.
    """

    window: Window

    def __init__(self, tree: T, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the {self.window} window needs at least one page or slot, got {capacity}")
        self.tree = tree
        self.pool = IdPool(capacity)

    @property
    def available(self) -> int:
        """Free and reclaimable ids."""
        return self.pool.free + self.tree.evictable

    @abstractmethod
    def reach(self, keys: Keys[bytes], limit: int) -> int:
        """The longest reusable prefix, in tokens, of at most `limit` (block-aligned)."""

    @abstractmethod
    def size(self, num_tokens: int, num_snapshots: int) -> int:
        """Ids that a prompt of `num_tokens` with `num_snapshots` captured needs when it reuses nothing."""

    @abstractmethod
    def sustains(self, endpoint: int, num_tokens: int, num_snapshots: int) -> bool:
        """Whether reuse up to `endpoint` and the rest fit together if the window were otherwise empty."""

    @abstractmethod
    def demand(self, sequence: Sequence) -> Demand:
        """What claiming for `sequence` takes; its `endpoint` must be within reach."""

    @abstractmethod
    def claim(self, sequence: Sequence) -> None:
        """Pins the prefix, then takes the rest, evicting as needed. `demand` was met under the same mutex hold."""

    def resumed(self, sequence: Sequence) -> None:
        """Lets go of what was only needed to start from; harmless when that is nothing."""

    @abstractmethod
    def publish(self, sequence: Sequence, computed: int) -> None:
        """Attaches what is complete up to `computed` tokens."""

    def seal(self, sequence: Sequence) -> None:
        """Drops what a finished sequence needs no more."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Lets go of everything that `sequence` holds here."""

    @abstractmethod
    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        """For `check`: the ids that are the sequence's own, and the entries it pins, once each."""

    def take(self, count: int) -> list[int]:
        """`count` ids, evicting the least recently used entries for those that are not free."""
        while self.pool.free < count:
            victim = self.tree.evict_one()
            if victim is None:
                raise CacheCorrupt(f"{count} ids of the {self.window} window promised, {self.pool.free} available")
            self.pool.give((victim,))
        return self.pool.take(count)

    def reset(self) -> None:
        """Detaches everything that nobody holds."""
        while (victim := self.tree.evict_one()) is not None:
            self.pool.give((victim,))

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises CacheCorrupt unless every id has exactly one owner and every entry as many holders as it counts."""
        self.tree.check()
        owners = Counter(self.pool.free_ids())
        owners.update(entry.item for entry in self.tree)
        holders: Counter[bytes] = Counter()
        for sequence in sequences:
            own, pinned = self.holds(sequence)
            owners.update(own)
            holders.update(entry.key for entry in pinned)
            stray = [entry.key.hex() for entry in pinned if self.tree.get(entry.key) is not entry]
            if stray:
                raise CacheCorrupt(f"request {sequence.request} pins detached {self.window} entries: {stray}")
        wrong = {i: owners[i] for i in range(self.pool.capacity) if owners[i] != 1}
        if wrong or len(owners) != self.pool.capacity:
            raise CacheCorrupt(f"owners of {self.window} ids, where not exactly one: {wrong}")
        for entry in self.tree:
            if entry.refs != holders[entry.key]:
                raise CacheCorrupt(
                    f"{self.window} entry {entry.key.hex()} counts {entry.refs} holders of {holders[entry.key]}"
                )
