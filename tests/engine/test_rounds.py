"""Where rounds are applied, and what has left by the time they are answered."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp.admission.claim import Claim, Grant, Order
from wavepp.admission.messages import RoundDown, RoundUp
from wavepp.admission.request import Request
from wavepp.engine.inbox import LoopInbox
from wavepp.engine.rounds import LoopRounds, OwnRounds
from wavepp.engine.trace import NullTracer

CLAIM = Claim(Request(1, "a", b"\0" * 4, "handle"), 1, 0)


class ScriptedParticipant:
    """Answers every round with the orders that it was given."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = list(orders)
        self.applied: list[int] = []
        self.grown = False

    def apply(self, down: RoundDown) -> RoundUp:
        self.applied.append(down.round)
        return RoundUp(1, 0, down.round)

    def take_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    def report(self) -> RoundUp | None:
        return RoundUp(1, 0, 7, released=1) if self.grown else None


def test_orders_are_with_loop_in_their_order_before_the_answer_is_given() -> None:
    inbox = LoopInbox()
    rounds = OwnRounds(ScriptedParticipant([CLAIM, Grant(1, 1)]), inbox.put, lambda: None, NullTracer())
    up = rounds.apply(RoundDown(1, 5))
    assert up.round == 5
    assert inbox.take(block=False) == ([CLAIM, Grant(1, 1)], None)


def test_pullers_are_woken_by_rounds_that_end_handles_or_requests_and_by_no_other() -> None:
    woken: list[int] = []
    rounds = OwnRounds(ScriptedParticipant([]), lambda _: None, lambda: woken.append(1), NullTracer())
    rounds.apply(RoundDown(1, 1))
    assert woken == []
    rounds.apply(RoundDown(1, 2, releases=("handle",)))
    assert woken == [1]


def test_capacity_that_grew_is_reported_by_whoever_owns_the_participant() -> None:
    participant = ScriptedParticipant([])
    rounds = OwnRounds(participant, lambda _: None, lambda: None, NullTracer())
    assert rounds.report() is None
    participant.grown = True
    assert rounds.report() == RoundUp(1, 0, 7, released=1)


def test_in_lockstep_loop_gets_the_round_itself_and_wave_has_nothing_to_say() -> None:
    inbox = LoopInbox()
    rounds = LoopRounds(inbox)
    assert rounds.apply(RoundDown(1, 5)) is None
    assert rounds.report() is None
    assert inbox.take(block=False) == ([RoundDown(1, 5)], None)
