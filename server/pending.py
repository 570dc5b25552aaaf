"""Requests that rank 0 owes an answer, and those that it has answered lately."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from ..engine.messages import Finished, Progress
from .errors import ApiError, ConflictError

Outcome = Progress | Finished | ApiError
Sink = Callable[[Outcome], None]


class Pending:
    """One request in flight. `result` ends in its `Finished` or in an `ApiError`; `sink` also hears its progress.
    Owned by the event loop."""

    def __init__(self, name: str, sink: Sink | None = None) -> None:
        self.name = name
        self.admitted = False
        self.cancelled = False
        self.result: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self.settled = asyncio.Event()
        self._sink = sink

    def progress(self, message: Progress) -> None:
        self.admitted = True
        if self._sink is not None:
            self._sink(message)

    def finish(self, message: Finished) -> None:
        if not self.result.done():
            self.result.set_result(message)
        self._tell(message)

    def fail(self, error: ApiError) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self.result.exception()  # Marks it as seen: whoever streams never awaits the future.
        self._tell(error)

    def forget(self) -> None:
        """Nobody waits any longer; the name stays taken until rank 0 has settled it."""
        self.cancelled = True
        self._sink = None
        self.result.cancel()

    def _tell(self, outcome: Outcome) -> None:
        self.settled.set()
        if self._sink is not None:
            self._sink(outcome)


class PendingTable:
    """By public id. A name is taken from its submission until rank 0's last word on it, even when its client has
    gone: an answer to the old request must never be taken for one to a new request of that name."""

    def __init__(self, remember: int = 10_000) -> None:
        self._pending: dict[str, Pending] = {}
        self._finished: OrderedDict[str, str] = OrderedDict()
        self._remember = remember

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def num_admitted(self) -> int:
        return sum(1 for pending in self._pending.values() if pending.admitted)

    def add(self, name: str, sink: Sink | None) -> Pending:
        if name in self._pending:
            raise ConflictError(f"a request with the id {name} is in flight", "duplicate")
        pending = self._pending[name] = Pending(name, sink)
        return pending

    def get(self, name: str) -> Pending | None:
        return self._pending.get(name)

    def settle(self, name: str) -> Pending | None:
        """Takes the request out: rank 0 has said its last word on it."""
        return self._pending.pop(name, None)

    def remember(self, name: str, handle: str) -> None:
        self._finished[name] = handle
        while len(self._finished) > self._remember:
            self._finished.popitem(last=False)

    def handle_of(self, name: str) -> str | None:
        """The handle of a request that finished lately."""
        return self._finished.get(name)

    def forget_handle(self, name: str) -> None:
        self._finished.pop(name, None)

    def clear(self) -> list[Pending]:
        """Empties the table: the epoch has ended, and its handles with it."""
        everything = list(self._pending.values())
        self._pending.clear()
        self._finished.clear()
        return everything
