"""The handles that are alive, by rank 0's word."""

import heapq
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class HandleInfo:
    """One finished prefill that can be pulled. `expires_at` is on the clock of the `now` arguments."""

    handle: str
    name: str
    num_tokens: int
    first_token: int
    expires_at: float


class HandleRegistry:
    """Live handles with their expiries, and the last ended ones, so that a late puller hears `expired_handle` and
    not `unknown_handle`. Owner: the leader's thread."""

    def __init__(self, max_tombstones: int) -> None:
        self._live: dict[str, HandleInfo] = {}
        self._by_name: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._max_tombstones = max_tombstones

    def __len__(self) -> int:
        return len(self._live)

    def add(self, info: HandleInfo) -> None:
        self._live[info.handle] = info
        self._by_name[info.name] = info.handle
        heapq.heappush(self._heap, (info.expires_at, info.handle))

    def find(self, handle: str) -> HandleInfo | None:
        return self._live.get(handle)

    def named(self, name: str) -> str | None:
        """The live handle of the finished request of that name."""
        return self._by_name.get(name)

    def ended(self, handle: str) -> bool:
        return handle in self._ended

    def renew(self, handle: str, expires_at: float) -> None:
        """Never shortens a life."""
        info = self._live[handle]
        info.expires_at = max(info.expires_at, expires_at)

    def end(self, handle: str) -> None:
        """Released, expired, or never given out."""
        info = self._live.pop(handle, None)
        if info is not None:
            del self._by_name[info.name]
        self._ended[handle] = None
        while len(self._ended) > self._max_tombstones:
            self._ended.popitem(last=False)

    def expire(self, now: float) -> list[str]:
        """Ends every handle whose time is up, and returns them."""
        expired: list[str] = []
        while (due := self.next_expiry()) is not None and due <= now:
            handle = heapq.heappop(self._heap)[1]
            self.end(handle)
            expired.append(handle)
        return expired

    def next_expiry(self) -> float | None:
        """When the next handle expires, unless it is renewed."""
        # A handle has one place in the heap: renewing leaves it, and it is moved when it comes to the top.
        while self._heap:
            at, handle = self._heap[0]
            info = self._live.get(handle)
            if info is None:
                heapq.heappop(self._heap)
            elif info.expires_at > at:
                heapq.heapreplace(self._heap, (info.expires_at, handle))
            else:
                return at
        return None
