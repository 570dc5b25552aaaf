"""What the leader last heard from each rank, and which of them owe it an answer."""

from dataclasses import dataclass, field

from .errors import RoundError
from .messages import Gauges, RoundUp


@dataclass(slots=True)
class _Rank:
    answered: int = 0
    released: int = 0
    waiting_since: float | None = None
    wave_since: float | None = None
    gauges: Gauges = field(default_factory=Gauges)


class RankBoard:
    """Owner: the leader's thread. Times are on the clock of the `now` arguments, in seconds."""

    def __init__(
        self, num_ranks: int, epoch: int, silence_s: float, wave_timeout_s: float, *, answers_in_waves: bool
    ) -> None:
        """A rank that owes an answer may be silent for `silence_s`. A wave may take `wave_timeout_s`: where ranks do
        not answer within waves, that is how long one may be silent then; otherwise it is a limit of its own."""
        self._epoch = epoch
        self._silence_s, self._wave_timeout_s = silence_s, wave_timeout_s
        self._answers_in_waves = answers_in_waves
        self._round = 0
        self._ranks = [_Rank() for _ in range(num_ranks)]

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def gauges(self) -> tuple[Gauges, ...]:
        return tuple(rank.gauges for rank in self._ranks)

    def released(self, rank: int) -> int:
        """How often the rank's capacity had grown by its newest answer."""
        return self._ranks[rank].released

    def sent(self, number: int, now: float) -> None:
        self._round = number
        for rank in self._ranks:
            if rank.waiting_since is None:
                rank.waiting_since = now

    def hear(self, up: RoundUp, now: float) -> None:
        """A sign of life, and news unless it is older than what was heard before."""
        if up.epoch != self._epoch:
            raise RoundError(f"rank {up.rank} answers in epoch {up.epoch}, but this is epoch {self._epoch}")
        if not 0 <= up.rank < len(self._ranks):
            raise RoundError(f"an answer from rank {up.rank}, but there are {len(self._ranks)} ranks")
        if not 0 <= up.round <= self._round:
            raise RoundError(f"rank {up.rank} answers round {up.round}; the newest is {self._round}")
        rank = self._ranks[up.rank]
        if up.round >= rank.answered:
            rank.answered, rank.gauges = up.round, up.gauges
        rank.released = max(rank.released, up.released)
        rank.waiting_since = None if rank.answered == self._round else now

    def alive(self, number: int, now: float, in_wave: bool) -> None:
        """The rank was heard from on another way: it has begun a wave, or ended one. What it owes stays owed."""
        rank = self._ranks[number]
        rank.wave_since = now if in_wave else None
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
        """Ranks that owe an answer, or the end of a wave, and have not been heard from for too long."""
        limits = enumerate(map(self._silent_at, self._ranks))
        return tuple(number for number, at in limits if at is not None and now >= at)

    def all_answered(self, number: int) -> bool:
        return all(rank.answered >= number for rank in self._ranks)

    def _silent_at(self, rank: _Rank) -> float | None:
        if not self._answers_in_waves:
            if rank.waiting_since is None:
                return None
            return rank.waiting_since + (self._silence_s if rank.wave_since is None else self._wave_timeout_s)
        limits = (rank.waiting_since, self._silence_s), (rank.wave_since, self._wave_timeout_s)
        return min((since + limit for since, limit in limits if since is not None), default=None)
