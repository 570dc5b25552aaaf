"""The requests that rank 0 has taken and not ended."""

from dataclasses import dataclass
from enum import StrEnum

from .request import Request


class State(StrEnum):
    """queued → probing → (held →) installing → running → gone; running → stopping → gone when it is cancelled there.
    From probing, held and installing back to queued, to wait for its turn or for room."""

    QUEUED = "queued"
    PROBING = "probing"
    HELD = "held"
    INSTALLING = "installing"
    RUNNING = "running"
    STOPPING = "stopping"

    @property
    def admitted(self) -> bool:
        return self in (State.RUNNING, State.STOPPING)


@dataclass(slots=True)
class Entry:
    """One request as the leader sees it. Times are on the clock of the `now` arguments, in seconds; `ttl_s` is the
    life that its handle will have, `endpoint` the reused prefix and `computed` what is there by now, both in tokens.
    `snapshots` are the positions that its newest attempt captures; `keys` are the chained keys of its full blocks,
    where the policy needs them. Of two priorities the lower number goes first; `deadline` is when the first token
    should be there."""

    request: Request
    ttl_s: float
    submitted_at: float
    priority: int = 0
    deadline: float | None = None
    state: State = State.QUEUED
    attempt: int = 0
    started_at: float = 0.0
    admitted_at: float = 0.0
    endpoint: int = 0
    computed: int = 0
    keys: tuple[bytes, ...] = ()
    snapshots: tuple[int, ...] = ()
    hinted: int = 0
    leased: int = 0
    limited_by: str = ""
    held_s: float = 0.0

    @property
    def has_wishes(self) -> bool:
        """Whether it asks for anything but its turn."""
        return self.priority != 0 or self.deadline is not None


class RequestTable:
    """By id, public name and handle; `queued` counts those not yet admitted. Owner: the leader's thread."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._names: dict[str, int] = {}
        self._handles: dict[str, int] = {}
        self._queue: set[int] = set()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._entries) - len(self._queue)

    def add(self, entry: Entry) -> None:
        request = entry.request
        self._entries[request.id] = entry
        self._queue.add(request.id)
        self._names[request.name] = self._handles[request.handle] = request.id

    def admit(self, entry: Entry) -> None:
        self._queue.remove(entry.request.id)

    def remove(self, entry: Entry) -> None:
        request = entry.request
        del self._entries[request.id], self._names[request.name], self._handles[request.handle]
        self._queue.discard(request.id)

    def get(self, request: int) -> Entry | None:
        return self._entries.get(request)

    def named(self, name: str) -> Entry | None:
        return self._entries.get(self._names.get(name, -1))

    def holds_handle(self, handle: str) -> bool:
        return handle in self._handles
