"""What both admission policies share: one try to admit a request, and what to make of the ranks' answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from .errors import RoundError
from .messages import BLOCKED, Hint, Vote
from .rank_board import RankBoard
from .table import Entry

Answer = TypeVar("Answer", Hint, Vote)


@dataclass(slots=True, eq=False)
class Attempt:
    """One try, with the number that the entry had then. Every rank was `asked` for so many tokens: the candidate, or
    after a trim what it was lowered to. `stirred` is how often the room had been stirred when its hints were asked for
    (see `Room`)."""

    entry: Entry
    asked: int
    stirred: int
    trimmed: bool = False
    votes: dict[int, Vote] = field(default_factory=dict)

    def take(self, rank: int, vote: Vote) -> None:
        """The rank's answer, unless it is one to what was asked before. RoundError when it cannot be one at all."""
        if vote.asked != self.asked:
            return
        if vote.committed:
            possible = vote.endpoint == vote.asked and not vote.reason
        else:
            possible = bool(vote.reason) or 0 <= vote.endpoint < vote.asked
        if not possible:
            raise RoundError(f"rank {rank} votes {vote}, which answers nothing that was asked")
        self.votes[rank] = vote

    @property
    def refused(self) -> bool:
        """Whether some rank had no room, or was waiting for the fate of a request that had none."""
        return any(vote.reason for vote in self.votes.values())

    @property
    def committed(self) -> bool:
        """Whether every rank that has answered has committed."""
        return all(vote.committed for vote in self.votes.values())


def lowest(answers: Mapping[int, Answer]) -> tuple[int, Answer]:
    """The first of the ranks whose endpoint is the least, and its answer."""
    return min(answers.items(), key=lambda item: (item[1].endpoint, item[0]))


def limit_name(rank: int, window: str) -> str:
    return f"rank {rank}: {window}" if window else f"rank {rank}"


@dataclass(frozen=True, slots=True)
class Lack:
    """An attempt found too little room on `ranks`: how often their capacity had grown by then, and how often the room
    had been stirred when its hints were asked for: what ended since may also have left more to reuse."""

    ranks: dict[int, int]
    stirred: int


class Room:
    """Tells whether trying again may help. Owner: the leader's thread."""

    def __init__(self, board: RankBoard) -> None:
        self._board = board
        self.stirred = 0
        """How often something has ended that may have held room, wherever."""

    def stir(self) -> None:
        self.stirred += 1

    def lack(self, attempt: Attempt) -> Lack:
        """Of an attempt that was refused. A rank that only waited for the fate of another request lacks nothing."""
        ranks = {rank: vote.released for rank, vote in attempt.votes.items() if vote.reason not in ("", BLOCKED)}
        return Lack(ranks, attempt.stirred)

    def may_have_come(self, lack: Lack) -> bool:
        """Only a rank that lacked room can make a difference: the others gave back what this attempt held, no more."""
        if lack.stirred != self.stirred:
            return True
        return all(self._board.released(rank) > then for rank, then in lack.ranks.items())
