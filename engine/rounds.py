"""Where a rank applies the leader's rounds: on WAVE while LOOP computes, or in lockstep on LOOP between waves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..admission.claim import Order
from ..admission.messages import RoundDown, RoundUp
from .inbox import LoopInbox
from .trace import Tracer


class RankRounds(Protocol):
    """This rank's side of the rounds plane, as WAVE sees it."""

    def apply(self, down: RoundDown) -> RoundUp | None:
        """The rank's answer; None when LOOP will give it."""
        ...

    def report(self) -> RoundUp | None:
        """An answer that nobody asked for, since capacity has grown; None when there is nothing to say."""
        ...


class RoundApplier(Protocol):
    """What is asked of the participant here."""

    def apply(self, down: RoundDown) -> RoundUp: ...
    def take_orders(self) -> list[Order]: ...
    def report(self) -> RoundUp | None: ...


class OwnRounds:
    """Owns the participant and applies rounds in the thread that calls: WAVE under leases, LOOP in lockstep."""

    def __init__(
        self,
        participant: RoundApplier,
        hand_over: Callable[[Order], object],
        handles_changed: Callable[[], None],
        tracer: Tracer,
    ) -> None:
        """`hand_over` brings what was decided to LOOP's claims."""
        self._participant, self._hand_over = participant, hand_over
        self._handles_changed, self._tracer = handles_changed, tracer

    def apply(self, down: RoundDown) -> RoundUp:
        """LOOP's orders are handed over before the answer is returned, so that no wave can be ahead of them."""
        with self._tracer.span("round", round=down.round, announces=len(down.announces), installs=len(down.installs)):
            up = self._participant.apply(down)
            for order in self._participant.take_orders():
                self._hand_over(order)
        if down.releases or down.cancels:
            self._handles_changed()
        return up

    def report(self) -> RoundUp | None:
        return self._participant.report()


class LoopRounds:
    """WAVE only carries the rounds: LOOP applies and answers them. Owner: WAVE."""

    def __init__(self, inbox: LoopInbox) -> None:
        self._inbox = inbox

    def apply(self, down: RoundDown) -> None:
        self._inbox.put(down)

    def report(self) -> None:
        return None
