"""What the brute-force model of a stage cache is made of: requests, windows, and who waits for eviction."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Held:
    """What one request ought to hold. `pinned` blocks and the `source` key are shared; other ids are its alone."""

    request: int
    attempt: int
    handle: str
    keys: tuple[bytes, ...]
    num_tokens: int
    endpoint: int = 0
    limited_by: str = ""
    phase: str = "leased"
    planned: tuple[int, ...] = ()
    pinned: int = 0
    pages: tuple[int, ...] = ()
    slot: int = -1
    source: bytes | None = None
    pending: list[tuple[int, int]] = field(default_factory=list)
    captures: int = 0
    captured: int = 0
    computed: int = 0
    ended: bool = False
    pulls: set[int] = field(default_factory=set)

    @property
    def sealed(self) -> bool:
        return self.phase == "sealed"


class Waiting:
    """Keys of one tier that nobody holds, each with its priority and its last use; the lowest pair goes first."""

    def __init__(self, by_cost: bool) -> None:
        self._by_cost = by_cost
        self._clock = self._uses = 0
        self._since: dict[bytes, tuple[int, int]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._since

    def __len__(self) -> int:
        return len(self._since)

    def add(self, key: bytes, cost: int) -> None:
        self._uses += 1
        self._since[key] = (self._clock + cost if self._by_cost else 0, self._uses)

    def discard(self, key: bytes) -> None:
        self._since.pop(key, None)

    def in_order(self) -> list[bytes]:
        return sorted(self._since, key=self._since.__getitem__)

    def pop(self) -> bytes | None:
        if not self._since:
            return None
        first = min(self._since, key=self._since.__getitem__)
        self._clock = self._since.pop(first)[0]
        return first


class Window:
    """One window: the ids of what is attached, by key and tier, and who waits for eviction there."""

    def __init__(self, name: str, capacity: int, host_capacity: int, by_cost: bool) -> None:
        self.name, self.capacity, self.host_capacity = name, capacity, host_capacity
        self.device: dict[bytes, int] = {}
        self.host: dict[bytes, int] = {}
        self.cost: dict[bytes, int] = {}
        self.waiting, self.waiting_host = Waiting(by_cost), Waiting(by_cost)

    def attached(self, key: bytes) -> bool:
        return key in self.device or key in self.host

    def wait(self, key: bytes) -> None:
        """The last holder let go of it, or it was used."""
        (self.waiting if key in self.device else self.waiting_host).add(key, self.cost[key])

    def hold(self, key: bytes) -> None:
        self.waiting.discard(key)
        self.waiting_host.discard(key)

    def detach(self, key: bytes) -> None:
        self.device.pop(key, None)
        self.host.pop(key, None)
        del self.cost[key]
