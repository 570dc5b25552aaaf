"""What an admission policy must do for the leader."""

from typing import Protocol

from .messages import Hint, Vote
from .request import Request
from .table import Entry


class Keys(Protocol):
    """Makes and remembers the chained block keys of prompts."""

    def of(self, request: Request) -> tuple[bytes, ...]: ...

    def forget(self, request_id: int) -> None: ...


class AdmissionPolicy(Protocol):
    """Decides which queued request all ranks commit, and where its reuse ends. Speaks through the outbox; the leader
    calls `advance` after everything that it is told."""

    @property
    def busy(self) -> bool:
        """Whether a hint or a vote is outstanding that `repeat` could ask for again."""
        ...

    @property
    def installing(self) -> bool:
        """Whether ranks are being asked to commit a request, which may be admitted very soon."""
        ...

    def add(self, entry: Entry) -> None:
        """The entry is in the queue now, and its announcement in the outbox."""
        ...

    def on_hint(self, rank: int, hint: Hint) -> None:
        """Answers about a request or an attempt that is no longer open are ignored."""
        ...

    def on_vote(self, rank: int, vote: Vote) -> None: ...

    def drop(self, entry: Entry) -> None:
        """The entry, still not admitted, is about to leave the queue: nothing that it holds may stay."""
        ...

    def published(self, entry: Entry) -> None:
        """`entry.computed` of a running entry has grown: every rank offers that much of its prefix to others."""
        ...

    def stopping(self, entry: Entry) -> None:
        """The running entry will publish nothing more."""
        ...

    def ended(self, entry: Entry) -> None:
        """The entry, which was admitted, is gone."""
        ...

    def room_may_have_come(self) -> None:
        """A request finished or a handle ended: what lacked room may be tried again."""
        ...

    def advance(self, now: float) -> list[Entry]:
        """Does what can be done now, and returns the entries just admitted, first to last."""
        ...

    def next_deadline(self) -> float | None:
        """When to call `advance` again, if nothing happens before."""
        ...

    def repeat(self) -> None:
        """Asks the ranks again what they have not answered, for the round that goes out now."""
        ...
