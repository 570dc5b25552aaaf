"""What must always hold in a group, checked as it happens, and how often everything has happened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ..admission.config import AdmissionConfig
from ..admission.effects import Admitted, Completed, Ended
from ..admission.leader import Leader
from ..admission.messages import BLOCKED, Install, RoundDown, RoundUp
from ..admission.table import Entry, State
from .rank import Rank


def entry_of(leader: Leader, name: str) -> Entry | None:
    """The leader's own record of a request that has not ended."""
    return leader._table.named(name)


@dataclass(slots=True)
class _Waiting:
    """One that is neither admitted nor ended: what it asked for, the how many'th it is, and which ranks have hinted."""

    number: int
    priority: int
    deadline: float | None
    since: float
    hinted: set[int] = field(default_factory=set)
    turned_away: bool = False


class Witness:
    """Follows every request by its name. Raises AssertionError."""

    def __init__(
        self,
        leader: Leader,
        ranks: Sequence[Rank],
        config: AdmissionConfig,
        ageing_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._leader, self._ranks, self._max_batch = leader, ranks, config.max_batch
        self._ageing_s, self._clock = ageing_s, clock
        leased = config.admission == "lease"
        self._ready = len(ranks) if leased else 0
        """Hints after which a request may be admitted."""
        self._begun = {State.INSTALLING} if leased else {State.PROBING, State.INSTALLING}
        self.seen: Counter[str] = Counter()
        self.waiting: dict[str, _Waiting] = {}
        """Neither admitted nor ended, in the order in which they were submitted."""
        self._names: dict[int, str] = {}
        """Of those that were announced, by number."""
        self.submitted: set[str] = set()
        self.admitted: dict[str, Admitted] = {}
        self.completed: dict[str, Completed] = {}
        self.ended: dict[str, Ended] = {}
        self._installing: list[str] = []
        """In the order in which their admission began."""
        self._held: set[str] = set()
        self._asked: dict[int, Install] = {}

    def taken(self, name: str, priority: int, deadline: float | None) -> None:
        assert name not in self.submitted
        self.waiting[name] = _Waiting(len(self.submitted), priority, deadline, self._clock())
        self.submitted.add(name)
        self.seen["submitted"] += 1

    def cancelled(self, name: str) -> None:
        entry = entry_of(self._leader, name)
        self.seen[f"cancelled {entry.state}" if entry is not None else "cancelled finished"] += 1

    def sent(self, down: RoundDown) -> None:
        seen = self.seen
        seen["rounds"] += 1
        seen["trims"] += len(down.trims)
        seen["resets"] += down.reset
        self._names.update((request.id, request.name) for request in down.announces)
        refused = {verdict.request for verdict in down.verdicts if not verdict.admitted}
        for install in down.installs:
            before = self._asked.get(install.request)
            if before is None or before.attempt != install.attempt:
                seen["installs"] += 1
                lower = before is not None and install.candidate < before.candidate
                seen["released and lowered"] += lower and install.request in refused
            else:
                seen["asked again"] += 1
            self._asked[install.request] = install

    def heard(self, up: RoundUp) -> None:
        for hint in up.hints:
            if (waiting := self.waiting.get(self._names[hint.request])) is not None:
                waiting.hinted.add(up.rank)
        for vote in up.votes:
            if vote.reason == BLOCKED:
                self.seen["blocked votes"] += 1
            elif vote.reason:
                self.seen["lacked room"] += 1
                if (waiting := self.waiting.get(self._names[vote.request])) is not None:
                    waiting.turned_away = True
            elif not vote.committed:
                self.seen["lower votes"] += 1

    def admits(self, effect: Admitted) -> None:
        name = effect.request.name
        assert name in self.waiting and name not in self.admitted, "admitted twice, or after its end"
        del self.waiting[name]
        self.admitted[name] = effect
        if name in self._installing:
            before = self._installing[: self._installing.index(name)]
            assert not before, f"{name} was admitted before {before}, who came to be installed first"
            self._installing.remove(name)
        assert self._leader.running <= self._max_batch
        agreed = {rank.agreed(effect.request.id) for rank in self._ranks}
        assert len(agreed) == 1, f"ranks have committed {agreed}"
        assert {(effect.attempt, effect.endpoint)} == {(attempt, endpoint) for attempt, endpoint, _ in agreed}
        assert 0 <= effect.endpoint < effect.num_tokens
        self.seen["admitted"] += 1
        self.seen["reused"] += effect.endpoint > 0

    def completes(self, effect: Completed) -> None:
        assert effect.name in self.admitted, "finished without admission"
        self._end(effect.name)
        self.completed[effect.name] = effect
        self.seen["completed"] += 1

    def ends(self, effect: Ended) -> None:
        assert effect.code == "cancelled", f"{effect.name} ended: {effect.code}: {effect.message}"
        self._end(effect.name)
        self.ended[effect.name] = effect
        self.seen["ended"] += 1

    def look(self) -> None:
        """After everything that the leader was told: who passes whom?"""
        states = {name: self._state(name) for name in self.waiting}
        held = {name for name, state in states.items() if state is State.HELD}
        self.seen["herd holds"] += len(held - self._held)
        self._held = held
        still = [name for name in self._installing if states.get(name) in self._begun]
        new = [name for name, state in states.items() if state in self._begun and name not in still]
        if new:
            others = [name for name, state in states.items() if state not in self._begun and name not in held]
            still += self._in_turn(new, others)
            self.seen["passed the held"] += sum(name > min(held) for name in new) if held else 0
        self._installing = still
        assert self._leader.queued == len(self.waiting)

    def first(self) -> str:
        """Whose turn it is of those that wait."""
        return min(self.waiting, key=self._turn)

    def _in_turn(self, new: Collection[str], others: Collection[str]) -> list[str]:
        """Those whose admission begins, first to last. Nobody of the others who is ready should have been before one of
        them."""
        for name in new:
            own, turn = self.waiting[name], self._turn(name)
            for other in others:
                waiting = self.waiting[other]
                passed = self._turn(other) < turn and len(waiting.hinted) >= self._ready
                assert not passed, f"{name} passes {other}, whose turn it is and who is not held"
                self.seen["went before who had come first"] += waiting.number < own.number
                self.seen["went before who was turned away"] += waiting.number < own.number and waiting.turned_away
        return sorted(new, key=self._turn)

    def _turn(self, name: str) -> tuple[int, float, int]:
        """The rule: lower priorities first, less one for each period of ageing that is over; then deadlines that are to
        come; then in the order in which they came."""
        waiting, now, periods = self.waiting[name], self._clock(), 0
        while waiting.since + (periods + 1) * self._ageing_s <= now:
            periods += 1
        lost = waiting.deadline is None or waiting.deadline <= now
        return waiting.priority - periods, math.inf if lost else waiting.deadline or 0.0, waiting.number

    def _state(self, name: str) -> State:
        entry = entry_of(self._leader, name)
        assert entry is not None, f"{name} is lost"
        return entry.state

    def _end(self, name: str) -> None:
        assert name in self.submitted
        assert name not in self.completed and name not in self.ended, f"{name} ended twice"
        self.waiting.pop(name, None)
