"""WAVE on a follower, with the test in the leader's place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
import zmq
from wavepp.admission.claim import Claim
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import Failed, FromLeader, RoundDown, RoundUp, Stop, ToLeader, WaveDone
from wavepp.admission.request import Request
from wavepp.engine.inbox import CapacityGrew, FromLoop, Leave, LoopInbox, WakingQueue
from wavepp.engine.wave_follower import FollowerWave

PATIENCE_MS = 20_000
"""Far beyond what anything here takes: only a hang reaches it."""
CLAIM = Claim(Request(1, "a", b"\0" * 4, "handle"), 1, 0)


@dataclass
class Rounds:
    """Puts an order for every round, fails at round 13, and reports once when told that capacity grew."""

    inbox: LoopInbox
    grown: threading.Event = field(default_factory=threading.Event)

    def apply(self, down: RoundDown) -> RoundUp:
        if down.round == 13:
            raise RoundError("round 13 is never applied")
        self.inbox.put(CLAIM)
        return RoundUp(1, 1, down.round)

    def report(self) -> RoundUp | None:
        if not self.grown.is_set():
            return None
        self.grown.clear()
        return RoundUp(1, 1, 0, released=1)


class Stage:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.leader = context.socket(zmq.PAIR)
        self.leader.bind("inproc://rounds")
        self._mine = context.socket(zmq.PAIR)
        self._mine.connect("inproc://rounds")
        self.inbox, self.to_wave = LoopInbox(), WakingQueue[FromLoop]()
        self.rounds = Rounds(self.inbox)
        self.failures: list[str] = []
        self.stopped = threading.Event()
        self.wave = FollowerWave(
            1, 1, self._mine, self.rounds, self.inbox, self.to_wave, self._fail, on_stop=self.stopped.set
        )
        self._decoder = msgspec.msgpack.Decoder(ToLeader)

    def tell(self, message: FromLeader) -> None:
        self.leader.send(msgspec.msgpack.encode(message))

    def hear(self) -> ToLeader:
        assert self.leader.poll(PATIENCE_MS), "the follower says nothing"
        return self._decoder.decode(self.leader.recv())

    def close(self) -> None:
        self.wave.thread.join(PATIENCE_MS / 1000)
        assert not self.wave.thread.is_alive()
        self.leader.close()
        self._mine.close()

    def _fail(self, reason: str) -> None:
        # As the stage does it.
        self.failures.append(reason)
        self.wave.report_failure(reason)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with zmq.Context() as context:
        stage = Stage(context)
        stage.wave.start()
        yield stage
        stage.close()


def test_a_round_is_answered_while_loop_computes_and_its_orders_come_first(stage: Stage) -> None:
    for number in (1, 2):
        stage.tell(RoundDown(1, number))
        assert stage.hear() == RoundUp(1, 1, number)
        assert stage.inbox.take(block=False) == ([CLAIM], None), "the answer has left, so LOOP has the claim"
    stage.tell(Stop(1))
    assert stage.stopped.wait(PATIENCE_MS / 1000)
    assert stage.inbox.take(block=True) == ([Leave()], None)


def test_whatever_may_have_freed_capacity_makes_it_report(stage: Stage) -> None:
    stage.rounds.grown.set()
    stage.to_wave.put(WaveDone(1, 1, 0, 0.25))
    assert stage.hear() == WaveDone(1, 1, 0, 0.25)
    assert stage.hear() == RoundUp(1, 1, 0, released=1)
    stage.rounds.grown.set()
    stage.to_wave.put(CapacityGrew())
    assert stage.hear() == RoundUp(1, 1, 0, released=1)
    stage.tell(Stop(1))


def test_the_leader_hears_of_a_failure_on_this_thread(stage: Stage) -> None:
    stage.tell(RoundDown(1, 13))
    said = stage.hear()
    assert isinstance(said, Failed)
    assert "round 13 is never applied" in said.reason
    assert stage.failures == [said.reason]


def test_a_failure_on_another_thread_is_the_last_that_the_leader_hears(stage: Stage) -> None:
    stage.wave.report_failure("LOOP is gone")
    assert stage.hear() == Failed(1, 1, "LOOP is gone")
