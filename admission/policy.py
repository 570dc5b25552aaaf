"""What an admission policy must do for the leader."""

from typing import Protocol

from .messages import Hint, Vote
from .table import Entry


class AdmissionPolicy(Protocol):
    """Decides which queued request all ranks commit, and where its reuse ends. Speaks through the outbox; the leader
    calls `advance` after everything that it is told."""

    def on_hint(self, rank: int, hint: Hint) -> None:
        """Answers about a request or an attempt that is no longer open are ignored."""
        ...

    def on_vote(self, rank: int, vote: Vote) -> None: ...

    def drop(self, entry: Entry) -> None:
        """The entry, still not admitted, is about to leave the queue: nothing that it holds may stay."""
        ...

    def room_may_have_come(self) -> None:
        """A request finished or a handle ended: what lacked room may be tried again."""
        ...

    def advance(self, now: float) -> list[Entry]:
        """Does what can be done now, and returns the entries just admitted, first to last."""
        ...
