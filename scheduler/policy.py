"""What chooses the spans of the next wave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .lanes import Lane
from .packer import Packer
from .ring import Ring
from .span import Span, WavePlan
from .work import Work


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision is made from. `lanes` are those with tokens left, at least one, in the order of service;
    `overdue` are requests that may not be held back any longer. `now` in seconds."""

    lanes: Sequence[Lane]
    ring: Ring
    overdue: frozenset[int]
    now: float


class WavePolicy(Protocol):
    """Owner: the planner."""

    def spans(self, situation: Situation) -> tuple[Span, ...]:
        """At least one span, at most one a lane. Asked again in the same situation it answers the same: decisions
        count when they are accepted."""
        ...

    def admitted(self, lane: Lane) -> None:
        """A new lane."""
        ...

    def stopped(self, request: int) -> None:
        """The request's lane is gone before its end."""
        ...

    def accepted(self, plan: WavePlan) -> None:
        """The wave is in the ring. It may be less than what was last proposed, or something else."""
        ...

    def completed(self, wave: int, spans: tuple[Span, ...]) -> None:
        """The wave has left the ring with these spans."""
        ...


class BudgetRule(Protocol):
    """How many tokens the next wave may have."""

    def budget(self, work: Work, idle: bool) -> int:
        """At least one block, at most M. `idle`: nothing is in flight. Changes nothing."""
        ...

    def decided(self) -> None:
        """The budget last given out was used."""
        ...


class BudgetedWaves:
    """A budget in tokens, filled in the order of service: the paper's policies."""

    def __init__(self, rule: BudgetRule, packer: Packer) -> None:
        self._rule, self._packer = rule, packer

    def spans(self, situation: Situation) -> tuple[Span, ...]:
        work = Work(
            unscheduled=tuple(lane.remaining for lane in situation.lanes),
            in_flight=situation.ring.latest_chunks(),
        )
        budget = self._rule.budget(work, idle=len(situation.ring) == 0)
        return self._packer.pack(situation.lanes, budget, situation.overdue)

    def admitted(self, lane: Lane) -> None:
        pass

    def stopped(self, request: int) -> None:
        pass

    def accepted(self, plan: WavePlan) -> None:
        self._rule.decided()

    def completed(self, wave: int, spans: tuple[Span, ...]) -> None:
        pass
