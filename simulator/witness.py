"""What must always hold in a group, checked as it happens, and how often everything has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..admission.effects import Admitted, Completed, Ended
from ..admission.leader import Leader
from ..admission.messages import BLOCKED, Install, RoundDown, RoundUp
from ..admission.table import Entry, State
from .rank import Rank


def entry_of(leader: Leader, name: str) -> Entry | None:
    """The leader's own record of a request that has not ended."""
    return leader._table.named(name)


class Witness:
    """Follows every request by its name. Raises AssertionError."""

    def __init__(self, leader: Leader, ranks: Sequence[Rank], max_batch: int) -> None:
        self._leader, self._ranks, self._max_batch = leader, ranks, max_batch
        self.seen: Counter[str] = Counter()
        self.waiting: dict[str, None] = {}
        """Neither admitted nor ended, in the order in which they were submitted."""
        self.submitted: set[str] = set()
        self.admitted: dict[str, Admitted] = {}
        self.completed: dict[str, Completed] = {}
        self.ended: dict[str, Ended] = {}
        self._installing: list[str] = []
        """In the order in which their installation began."""
        self._held: set[str] = set()
        self._asked: dict[int, Install] = {}

    def taken(self, name: str) -> None:
        assert name not in self.submitted
        self.submitted.add(name)
        self.waiting[name] = None
        self.seen["submitted"] += 1

    def cancelled(self, name: str) -> None:
        entry = entry_of(self._leader, name)
        self.seen[f"cancelled {entry.state}" if entry is not None else "cancelled finished"] += 1

    def sent(self, down: RoundDown) -> None:
        seen = self.seen
        seen["rounds"] += 1
        seen["trims"] += len(down.trims)
        seen["resets"] += down.reset
        refused = {verdict.request for verdict in down.verdicts if not verdict.admitted}
        for install in down.installs:
            before = self._asked.get(install.request)
            if before is None or before.attempt != install.attempt:
                seen["installs"] += 1
                if before is not None and install.request in refused and install.candidate < before.candidate:
                    seen["released and lowered"] += 1
            else:
                seen["asked again"] += 1
            self._asked[install.request] = install

    def heard(self, up: RoundUp) -> None:
        for vote in up.votes:
            if vote.reason == BLOCKED:
                self.seen["blocked votes"] += 1
            elif vote.reason:
                self.seen["lacked room"] += 1
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
        still = [name for name in self._installing if states.get(name) is State.INSTALLING]
        passed: list[str] = []
        for name, state in states.items():
            if state is State.INSTALLING:
                if name not in still:
                    assert not passed, f"{name} passes {passed}, who are not held"
                    self.seen["passed the held"] += bool(held) and name > min(held)
                    still.append(name)
            elif state is not State.HELD:
                passed.append(name)
        self._installing = still
        assert self._leader.queued == len(self.waiting)

    def _state(self, name: str) -> State:
        entry = entry_of(self._leader, name)
        assert entry is not None, f"{name} is lost"
        return entry.state

    def _end(self, name: str) -> None:
        assert name in self.submitted
        assert name not in self.completed and name not in self.ended, f"{name} ended twice"
        self.waiting.pop(name, None)
