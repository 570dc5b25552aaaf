"""The rungs of the paper's ablation: where a rank takes part in admission, and what waits for it.

R1, naive lockstep: one request at a time, two walks, each of which every rank makes between waves and in the order in
which its loop was told; rank 0 plans nothing while ranks are asked, so the pipeline runs dry; and a wave is handed to
the next stage face to face, while both wait.
R2, wave admission and transport: messages travel beside the waves, and so do activations, so nobody waits for others
in order. But nothing protects what a walk has found: still one request at a time, and both walks between two waves.
R3, lease and capacity escrow: many at a time, all of it beside the waves.
R4 is R3 with the policy `mpu`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..admission.messages import RoundDown, RoundUp
from .rank import Rank
from .timed_loop import TimedLoop

Answered = Callable[[int, RoundUp | None], None]
"""(rank, its answer; None where LOOP will give it)."""


class Door(Protocol):
    """How rounds come into a rank."""

    def round(self, down: RoundDown, planned: int) -> None:
        """A round has come, before which `planned` waves had been planned."""
        ...

    def wave_run(self) -> None:
        """The rank has run a wave."""
        ...


@dataclass(frozen=True)
class Rung:
    """`admits`: where the second walk is made. `hand_over_token_s` is the blocking transport's time for each token of
    a wave, on R1 alone."""

    name: str
    admits: Literal["in order", "between waves", "beside waves"]
    hand_over_token_s: float = 0.0

    @property
    def leased(self) -> bool:
        return self.admits == "beside waves"

    @property
    def blocking(self) -> bool:
        return self.admits == "in order"

    def hand_over_s(self, tokens: int) -> float:
        return self.hand_over_token_s * tokens

    def door(self, rank: Rank, loop: TimedLoop, answered: Answered) -> Door:
        match self.admits:
            case "in order":
                return InOrder(rank, loop, answered)
            case _:
                return AtOnce(rank, answered)


NAIVE = Rung("R1", "in order", hand_over_token_s=9 * 7168 * 2 / 900e9)
"""Nine hidden states of a token over an NVLink of 900 GB/s."""
DECOUPLED = Rung("R2", "between waves")
LEASED = Rung("R3", "beside waves")


class AtOnce:
    """WAVE answers, or LOOP does before its next wave: as the rank was made."""

    def __init__(self, rank: Rank, answered: Answered) -> None:
        self._rank, self._answered = rank, answered

    def round(self, down: RoundDown, planned: int) -> None:
        self._answered(self._rank.number, self._rank.apply(down))

    def wave_run(self) -> None:
        pass


class InOrder:
    """LOOP takes a round when it has run every wave that had been planned before it."""

    def __init__(self, rank: Rank, loop: TimedLoop, answered: Answered) -> None:
        self._rank, self._loop, self._answered = rank, loop, answered
        self._held: deque[tuple[int, RoundDown]] = deque()

    def round(self, down: RoundDown, planned: int) -> None:
        self._held.append((planned, down))
        self._let_in()
        self._answered(self._rank.number, None)

    def wave_run(self) -> None:
        self._let_in()

    def _let_in(self) -> None:
        while self._held and self._held[0][0] <= self._loop.waves:
            self._rank.loop.put(self._held.popleft()[1])
