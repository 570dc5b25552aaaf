"""What the leader last heard from each rank, and which of them owe it an answer."""

from dataclasses import dataclass, field

from .errors import RoundError
from .messages import Gauges, RoundUp


@dataclass(slots=True)
class _Rank:
    answered: int = 0
    released: int = 0
    waiting_since: float | None = None
    in_wave: bool = False
    gauges: Gauges = field(default_factory=Gauges)


class RankBoard:
    """Owner: the leader's thread. Times are on the clock of the `now` arguments, in seconds."""

    def __init__(self, num_ranks: int, epoch: int, silence_s: float, wave_timeout_s: float) -> None:
        """A rank that owes an answer may be silent for `silence_s`, and within a wave for `wave_timeout_s`."""
        self._epoch = epoch
        self._silence_s, self._wave_timeout_s = silence_s, wave_timeout_s
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

    def alive(self, number: int, now: float, in_wave: bool) -> None:
        """The rank was heard from on another way, and is now within a wave or not; what it owes stays owed."""
        rank = self._ranks[number]
        rank.in_wave = in_wave
        if rank.waiting_since is not None:
            rank.waiting_since = now

    @property
    def owing(self) -> bool:
        """Whether any rank owes an answer."""
        return any(rank.waiting_since is not None for rank in self._ranks)

    def silence_at(self) -> float | None:
        """When the first rank has been silent for too long, if none of them is heard from before."""
        return min((at for at in map(self._silent_at, self._ranks) if at is not None), default=None)

    def silent(self, now: float) -> tuple[int, ...]:
        """Ranks that owe an answer and have not been heard from for too long."""
        limits = enumerate(map(self._silent_at, self._ranks))
        return tuple(number for number, at in limits if at is not None and now >= at)

    def _silent_at(self, rank: _Rank) -> float | None:
        if rank.waiting_since is None:
            return None
        return rank.waiting_since + (self._wave_timeout_s if rank.in_wave else self._silence_s)

    def all_answered(self, number: int) -> bool:
        return all(rank.answered >= number for rank in self._ranks)
