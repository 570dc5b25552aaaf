"""What the leader last heard from each rank, and which of them owe it an answer."""

from dataclasses import dataclass, field

from .errors import RoundError
from .messages import Gauges, RoundUp


@dataclass(slots=True)
class _Rank:
    answered: int = 0
    released: int = 0
    waiting_since: float | None = None
    gauges: Gauges = field(default_factory=Gauges)


class RankBoard:
    """Owner: the leader's thread. Times are on the clock of the `now` arguments, in seconds."""

    def __init__(self, num_ranks: int, epoch: int) -> None:
        self._epoch = epoch
        self._round = 0
        self._ranks = [_Rank() for _ in range(num_ranks)]

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def gauges(self) -> tuple[Gauges, ...]:
        return tuple(rank.gauges for rank in self._ranks)

    def released(self, rank: int) -> int:
        return self._ranks[rank].released

    def sent(self, number: int, now: float) -> None:
        self._round = number
        for rank in self._ranks:
            if rank.waiting_since is None:
                rank.waiting_since = now

    def hear(self, up: RoundUp, now: float) -> None:
        if up.epoch != self._epoch:
            raise RoundError(f"rank {up.rank} answers in epoch {up.epoch}, but this is epoch {self._epoch}")
        if not 0 <= up.rank < len(self._ranks):
            raise RoundError(f"an answer from rank {up.rank}, but there are {len(self._ranks)} ranks")
        rank = self._ranks[up.rank]
        if not rank.answered <= up.round <= self._round:
            raise RoundError(
                f"rank {up.rank} answers round {up.round} after round {rank.answered}; the newest is {self._round}"
            )
        rank.answered, rank.released, rank.gauges = up.round, up.released, up.gauges
        rank.waiting_since = None if up.round == self._round else now

    def alive(self, rank: int, now: float) -> None:
        """The rank was heard from on another way; what it owes stays owed."""
        if self._ranks[rank].waiting_since is not None:
            self._ranks[rank].waiting_since = now

    @property
    def owing(self) -> bool:
        """Whether any rank owes an answer."""
        return any(rank.waiting_since is not None for rank in self._ranks)

    def silence_at(self, limit: float) -> float | None:
        """When the first rank has been silent for `limit` seconds, if none of them is heard from before."""
        return min((r.waiting_since + limit for r in self._ranks if r.waiting_since is not None), default=None)

    def silent(self, now: float, limit: float) -> tuple[int, ...]:
        """Ranks that owe an answer and have not been heard from for `limit` seconds."""
        return tuple(
            number
            for number, rank in enumerate(self._ranks)
            if rank.waiting_since is not None and now >= rank.waiting_since + limit
        )

    def all_answered(self, number: int) -> bool:
        return all(rank.answered >= number for rank in self._ranks)
