"""LOOP's steps, one by one: what was decided comes first, then a bounded part of a prefix, then a wave."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from wavepp.admission.claims import Claims
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.effects import Admitted, Effect, StopPlanning
from wavepp.admission.leader import Leader
from wavepp.admission.messages import FirstToken, Hello, RoundUp, WaveDone, WaveStarted
from wavepp.admission.participant import Participant
from wavepp.admission.prompt_keys import PromptKeys
from wavepp.admission.request import Sampling
from wavepp.cache.keys import KeySpace
from wavepp.cache.layout import Window
from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache
from wavepp.engine.header import WaveHeader
from wavepp.engine.inbox import (
    CapacityGrew,
    FromLoop,
    Leave,
    LoopInbox,
    Stopped,
    WakingQueue,
    WaveFinished,
    WavePlanned,
)
from wavepp.engine.loop import Loop
from wavepp.engine.materialiser import Materialiser
from wavepp.engine.rounds import LoopRounds, OwnRounds, RankRounds
from wavepp.engine.trace import NullTracer
from wavepp.models.batch import Activations
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.planner import Planner

BLOCK = 4
CONFIG = SchedulerConfig(max_wave_tokens=16, min_wave_tokens=8)


class Device:
    """Takes the copies of every step."""

    def __init__(self) -> None:
        self.steps: list[Moves] = []

    def execute(self, moves: Moves) -> None:
        self.steps.append(moves)


@dataclass
class Executor:
    """Computes nothing, and keeps the books as the real one does."""

    cache: StageCache
    claims: Claims
    materialiser: Materialiser
    ran: list[tuple[tuple[int, int, int], ...]] = field(default_factory=list)
    """(request, start, end) of every span, wave by wave."""

    def forward(self, header: WaveHeader, inputs: Activations) -> tuple[Activations, float]:
        for span in header.spans:
            assert self.claims.find(span.request) is not None
            self.materialiser.upto(span.request, span.end)
        self.ran.append(tuple((span.request, span.start, span.end) for span in header.spans))
        return {}, 0.5

    def sample(self, header: WaveHeader, outputs: Activations) -> tuple[FirstToken, ...]:
        return tuple(FirstToken(span.request, 7, -0.5) for span in header.spans if span.last)

    def settle(self, header: WaveHeader) -> bool:
        for span in header.spans:
            self.cache.publish(span.request, span.end)
            if span.last:
                self.cache.seal(span.request)
                self.claims.finished(span.request)
        return self.claims.wave_completed(header.wave)

    def took(self, forward_s: float) -> float:
        return forward_s + 0.25


class Stage:
    """Rank 0 of a group of one, with a test in the place of both threads: `wave` does what WAVE would, `step` one step
    of LOOP."""

    def __init__(
        self,
        policy: Literal["lease", "lockstep"] = "lease",
        num_pages: int = 8,
        batch: int = 2,
        scheduler: SchedulerConfig = CONFIG,
    ) -> None:
        self.cache = StageCache(frozenset({Window.ATTENTION}), num_pages, 0, BLOCK, host_pages=8)
        self.inbox, self.to_wave = LoopInbox(), WakingQueue[FromLoop]()
        self.device = Device()
        self.changes = 0
        leased = policy == "lease"
        keys = PromptKeys(KeySpace("m"), BLOCK)
        self.claims = Claims(self.cache)
        participant = Participant(0, 1, self.cache, keys, BLOCK, self.cache.hint if leased else self.cache.probe)
        own = OwnRounds(participant, self.inbox.put if leased else self.claims.take, self._changed, NullTracer())
        self._own: RankRounds = own if leased else LoopRounds(self.inbox)
        materialiser = Materialiser(self.cache, self.device, NullTracer(), batch)
        self.executor = Executor(self.cache, self.claims, materialiser)
        self.loop = Loop(
            rank=0,
            epoch=1,
            inbox=self.inbox,
            to_wave=self.to_wave,
            cache=self.cache,
            claims=self.claims,
            rounds=None if leased else own,
            materialiser=materialiser,
            executor=self.executor,
            planner=Planner(scheduler, BLOCK, 1),
            receiver=None,
            sender=None,
            tracer=NullTracer(),
            handles_changed=self._changed,
            prepare=lambda: None,
            fail=lambda reason: None,
        )
        hello = Hello(0, "1", "m", "", (0, 1), ("attention",), num_pages, 0, 0, 0, "")
        config = AdmissionConfig(admission=policy, snapshot_interval=BLOCK, headroom=0)
        self.leader = Leader(config, 1, [hello], BLOCK, 16, PromptKeys(KeySpace("m"), BLOCK))
        self.effects: list[Effect] = []
        self.heard: list[FromLoop] = []

    def submit(self, name: str, first: int, length: int, *, priority: int = 0, deadline: float | None = None) -> None:
        """A prompt of consecutive numbers."""
        tokens = b"".join(number.to_bytes(4, "little") for number in range(first, first + length))
        wishes = {"priority": priority, "deadline": deadline}
        assert self.leader.submit(name, tokens, Sampling(), "", "", 60, f"handle of {name}", 0.0, **wishes) is None

    def wave(self) -> list[FromLoop]:
        """Tells the leader what LOOP has said, and holds all rounds that follow from it; returns what LOOP has said."""
        said = self.to_wave.drain()
        for message in said:
            match message:
                case RoundUp():
                    self.leader.on_round_up(message, 0.0)
                case Stopped():
                    self.leader.on_stopped(message.request, message.after_wave, 0.0)
                case WaveDone():
                    self.inbox.put(WaveFinished(message.wave))
                    for token in message.first_tokens:
                        self.leader.on_first_token(token, 0.0)
        self._carry_out()
        while (down := self.leader.next_round(0.0)) is not None:
            up = self._own.apply(down)
            if up is not None:
                self.leader.on_round_up(up, 0.0)
            self._carry_out()
        self.heard += said
        return said

    def step(self) -> None:
        # Never waits: a test that expects too much shall fail, not hang.
        self.inbox.put(CapacityGrew())
        assert self.loop.step()

    def finish(self, *names: str) -> None:
        """Both threads take turns until the requests are done."""
        for _ in range(200):
            self.wave()
            if self.leader.queued == self.leader.running == 0:
                return
            self.step()
        raise AssertionError(f"{names} do not finish")

    def _carry_out(self) -> None:
        for effect in self.leader.take_effects():
            self.effects.append(effect)
            if isinstance(effect, Admitted | StopPlanning):
                self.inbox.put(effect)
        self.inbox.admitting = self.leader.installing

    def _changed(self) -> None:
        self.changes += 1


def test_under_leases_rounds_need_no_step_of_loop_and_one_step_then_runs_the_wave() -> None:
    stage = Stage()
    stage.submit("a", 0, 10)
    stage.wave()
    assert isinstance(stage.effects[0], Admitted), "admitted while LOOP was somewhere else"
    assert stage.executor.ran == []
    stage.step()
    assert stage.executor.ran == [((1, 0, 10),)]
    assert stage.wave() == [
        WavePlanned(0, ((1, 10),)),
        WaveStarted(1, 0, 0),
        WaveDone(1, 0, 0, 0.75, (FirstToken(1, 7, -0.5),)),
    ]


def test_in_lockstep_rounds_wait_for_loops_steps() -> None:
    stage = Stage("lockstep")
    stage.submit("a", 0, 10)
    stage.wave()
    assert not stage.effects, "LOOP has not taken a step"
    stage.finish("a")
    assert stage.executor.ran == [((1, 0, 10),)]
    assert any(isinstance(message, RoundUp) for message in stage.heard)


def offloaded(stage: Stage) -> None:
    """Leaves the first 16 tokens of the prompt that begins with 0 on the host alone."""
    for name, first, length in (("old", 0, 17), ("crowd", 1000, 32)):
        stage.submit(name, first, length)
        stage.finish(name)
        stage.leader.release_handle(f"handle of {name}", 0.0)
        stage.wave()
    gauges = stage.cache.gauges()
    assert gauges.offloaded >= 4
    assert gauges.host_pages_total - gauges.host_pages_free >= 4
    stage.device.steps.clear()
    stage.executor.ran.clear()
    stage.to_wave.drain()


def test_a_prefix_on_the_host_comes_in_batches_and_waves_of_others_run_in_between() -> None:
    stage = Stage(batch=1)
    offloaded(stage)
    stage.submit("again", 0, 20)
    stage.submit("other", 500, 8)
    stage.wave()
    assert [effect.endpoint for effect in stage.effects if isinstance(effect, Admitted)][-2:] == [16, 0]
    stage.step()
    assert [len(moves.onboards) for moves in stage.device.steps if moves.onboards] == [1]
    assert stage.executor.ran == [((4, 0, 8),)], "it needs nothing from the host, and waits for nobody"
    for _ in range(6):
        stage.step()
        stage.wave()
    assert stage.executor.ran[1:] == [((3, 16, 20),)], "planned when its prefix was there, from where it ends"
    assert [len(moves.onboards) for moves in stage.device.steps if moves.onboards] == [1] * 4


def test_a_request_that_is_stopped_while_its_prefix_comes_is_never_planned() -> None:
    stage = Stage(batch=1)
    offloaded(stage)
    stage.submit("again", 0, 20)
    stage.wave()
    stage.step()
    stage.leader.cancel("again", 0.0)
    stage.wave()
    stage.step()
    assert Stopped(3, -1) in stage.wave()
    stage.step()
    assert stage.executor.ran == []
    assert stage.cache.gauges().leases == 0
    assert len(stage.claims) == 0
    stage.cache.check()


def test_who_speaks_for_the_rank_is_told_when_an_end_has_made_room() -> None:
    stage = Stage()
    stage.submit("a", 0, 30)
    stage.wave()
    stage.step()
    stage.leader.cancel("a", 0.0)
    stage.wave()
    before = stage.changes
    stage.step()
    stage.wave()
    stage.step()
    assert CapacityGrew() in stage.to_wave.drain()
    assert stage.changes > before, "pullers that wait for the handle are woken"
    assert stage.cache.gauges().leases == 0


def test_told_to_leave_it_leaves_without_running_what_else_has_come() -> None:
    stage = Stage()
    stage.submit("a", 0, 10)
    stage.wave()
    stage.inbox.put(Leave())
    assert not stage.loop.step()
    assert stage.executor.ran == []


def test_lanes_are_served_by_priority_and_deadline_as_they_were_asked_for() -> None:
    stage = Stage()
    soon = time.monotonic() + 1_000
    stage.submit("plain", 0, 4)
    stage.submit("late", 100, 4, deadline=soon + 1)
    stage.submit("soon", 200, 4, deadline=soon)
    stage.submit("urgent", 300, 4, priority=-1)
    stage.wave()
    stage.step()
    assert stage.executor.ran == [((4, 0, 4), (3, 0, 4), (2, 0, 4), (1, 0, 4))]


LONE = SchedulerConfig(max_wave_tokens=16, min_wave_tokens=8, lone_wave_wait=True)
"""A last wave of less than half a wave waits for what is being admitted, while another wave is on its way."""


def with_a_rest() -> Stage:
    """A wave of 16 tokens is in the ring, and 4 tokens are left."""
    stage = Stage(scheduler=LONE)
    stage.submit("a", 0, 20)
    stage.wave()
    stage.step()
    assert stage.executor.ran == [((1, 0, 16),)]
    return stage


def test_a_lone_wave_waits_for_a_request_that_is_being_committed_and_takes_it_along() -> None:
    stage = with_a_rest()
    stage.inbox.admitting = True
    for _ in range(3):
        stage.step()
    assert len(stage.executor.ran) == 1
    stage.submit("b", 500, 8)
    for effect in admitted_without_loop(stage):
        stage.inbox.put(effect)
    stage.step()
    assert stage.executor.ran[1:] == [((1, 16, 20), (2, 0, 8))]


def admitted_without_loop(stage: Stage) -> list[Admitted]:
    """Rounds go on; what LOOP has said is not heard yet."""
    while (down := stage.leader.next_round(0.0)) is not None:
        up = stage._own.apply(down)
        assert up is not None
        stage.leader.on_round_up(up, 0.0)
    return [effect for effect in stage.leader.take_effects() if isinstance(effect, Admitted)]


def test_a_lone_wave_goes_when_the_next_one_is_finished_whatever_becomes_of_the_request() -> None:
    stage = with_a_rest()
    stage.inbox.admitting = True
    stage.step()
    assert len(stage.executor.ran) == 1
    stage.inbox.put(WaveFinished(0))
    stage.step()
    assert stage.executor.ran[1:] == [((1, 16, 20),)], "it does not wait twice, though the word still stands"


def test_a_lone_wave_waits_for_nobody_when_nothing_is_being_admitted_or_nothing_is_on_its_way() -> None:
    stage = with_a_rest()
    stage.step()
    assert stage.executor.ran[1:] == [((1, 16, 20),)]
    stage = Stage(scheduler=LONE)
    stage.submit("a", 0, 4)
    stage.wave()
    stage.inbox.admitting = True
    stage.step()
    assert stage.executor.ran == [((1, 0, 4),)]
