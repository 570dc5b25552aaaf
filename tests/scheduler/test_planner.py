"""The planner, driven at random against an account of every token, and by worked examples."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.lanes import DuplicateLane, PositionMismatch
from wavepp.scheduler.packer import Packer
from wavepp.scheduler.planner import Planner
from wavepp.scheduler.policy import BudgetedWaves
from wavepp.scheduler.ring import RingError, UnknownWave, WaveOutOfOrder
from wavepp.scheduler.span import Span, WavePlan
from wavepp.scheduler.work import Work

BLOCK = 4


def planner_of(most: int = 16, least: int = 8, stages: int = 2, **more: object) -> Planner:
    config = SchedulerConfig.model_validate({"max_wave_tokens": most, "min_wave_tokens": least, **more})
    return Planner(config, BLOCK, stages)


def run_wave(planner: Planner, now: float = 0.0) -> WavePlan:
    plan = planner.plan(now)
    assert plan is not None
    planner.accept(plan)
    return plan


@dataclass
class Account:
    """What one request is owed: the oracle's own bookkeeping."""

    end: int
    next: int
    named_by: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def remaining(self) -> int:
        return 0 if self.stopped else self.end - self.next


class PlannerMachine(RuleBasedStateMachine):
    """Admissions, waves, partial acceptance, completions and stops in any order."""

    @initialize(
        blocks=st.integers(2, 8),
        floor=st.integers(1, 2),
        stages=st.integers(1, 3),
        max_spans=st.integers(1, 3),
        avoid=st.booleans(),
    )
    def start(self, blocks: int, floor: int, stages: int, max_spans: int, avoid: bool) -> None:
        self.most, self.floor, self.capacity = blocks * BLOCK, floor * BLOCK, 2 * stages
        self.max_spans, self.avoid = max_spans, avoid
        self.planner = planner_of(self.most, self.floor, stages, max_spans=max_spans, avoid_fragments=avoid)
        self.accounts: dict[int, Account] = {}
        self.in_flight: list[WavePlan] = []
        self.next_wave = 0

    @rule(blocks=st.integers(0, 5), suffix=st.integers(1, 60))
    def admit(self, blocks: int, suffix: int) -> None:
        request = len(self.accounts)
        endpoint = blocks * BLOCK
        self.planner.admit(request, attempt=1, endpoint=endpoint, num_tokens=endpoint + suffix)
        self.accounts[request] = Account(end=endpoint + suffix, next=endpoint)

    @rule(data=st.data(), whole=st.booleans())
    def wave(self, data: st.DataObject, whole: bool) -> None:
        plan = self.planner.plan(0.0)
        assert plan == self.planner.plan(0.0)
        runnable = any(account.remaining for account in self.accounts.values())
        if plan is None:
            assert len(self.in_flight) == self.capacity or not runnable
            return
        assert runnable
        assert len(self.in_flight) < self.capacity
        self.check(plan)
        accepted = plan if whole else WavePlan(plan.wave, self.cut_down(data, plan.spans))
        self.planner.accept(accepted)
        for span in accepted.spans:
            account = self.accounts[span.request]
            assert span.start == account.next
            account.next = span.end
            account.named_by.append(plan.wave)
        self.in_flight.append(accepted)
        self.next_wave += 1

    def check(self, plan: WavePlan) -> None:
        assert plan.wave == self.next_wave
        assert 0 < plan.tokens <= self.most
        assert 0 < len(plan.spans) <= self.max_spans
        spans = {span.request: span for span in plan.spans}
        assert list(spans) == sorted(spans)
        room = self.most
        for request, account in self.accounts.items():
            span = spans.get(request)
            if span is None:
                fragment = room - room % BLOCK
                useless = account.remaining > room and fragment == 0
                barred = self.avoid and account.remaining > room and fragment < max(self.floor, self.most / 2)
                batch_full = len([r for r in spans if r < request]) == self.max_spans
                assert account.remaining == 0 or useless or (barred and room < self.most) or batch_full
                continue
            assert span.start == account.next
            assert span.length == min(account.remaining, room if account.remaining <= room else room - room % BLOCK)
            assert span.last == (span.end == account.end)
            assert span.start % BLOCK == 0
            assert span.last or span.end % BLOCK == 0
            room -= span.length

    def cut_down(self, data: st.DataObject, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        kept = data.draw(st.lists(st.sampled_from(spans), min_size=1, unique=True))
        shortest = data.draw(st.sampled_from(kept))
        if shortest.length > BLOCK:
            kept = [span for span in kept if span is not shortest]
            blocks = data.draw(st.integers(1, (shortest.length - 1) // BLOCK))
            kept.append(Span(shortest.request, shortest.start, blocks * BLOCK, last=False))
        return tuple(kept)

    @precondition(lambda self: bool(self.in_flight))
    @rule()
    def complete(self) -> None:
        plan = self.in_flight.pop(0)
        assert self.planner.complete(plan.wave) == plan.spans

    @precondition(lambda self: bool(self.accounts))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.accounts)))
        account = self.accounts[request]
        had_lane = account.remaining > 0
        flying = [plan.wave for plan in self.in_flight if any(span.request == request for span in plan.spans)]
        expected = max(account.named_by, default=-1) if had_lane else max(flying, default=-1)
        assert self.planner.stop(request) == expected
        account.stopped = True

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "planner"):
            return
        lanes = sum(account.remaining > 0 for account in self.accounts.values())
        assert self.planner.num_lanes == lanes
        assert self.planner.runnable == (lanes > 0)
        assert self.planner.in_flight == len(self.in_flight) <= self.capacity
        assert self.planner.can_plan == (lanes > 0 and len(self.in_flight) < self.capacity)

    def teardown(self) -> None:
        """Left alone, everything that was not stopped runs to its end, every token once and in order."""
        while hasattr(self, "planner") and (self.planner.runnable or self.in_flight):
            if self.in_flight and not self.planner.can_plan:
                self.complete()
                continue
            plan = run_wave(self.planner)
            self.check(plan)
            for span in plan.spans:
                self.accounts[span.request].next = span.end
            self.in_flight.append(plan)
            self.next_wave += 1
        if hasattr(self, "planner"):
            assert all(account.remaining == 0 for account in self.accounts.values())
            assert all(account.stopped or account.next == account.end for account in self.accounts.values())


TestPlannerMachine = PlannerMachine.TestCase
TestPlannerMachine.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


def test_several_chunks_of_one_request_fly_together_until_the_ring_is_full() -> None:
    planner = planner_of(stages=2)
    planner.admit(5, attempt=2, endpoint=8, num_tokens=100)
    waves = [run_wave(planner) for _ in range(4)]
    assert [(w.wave, w.spans[0].start, w.tokens) for w in waves] == [(0, 8, 16), (1, 24, 16), (2, 40, 16), (3, 56, 16)]
    assert planner.plan(0.0) is None
    lane = planner.lane(5)
    assert lane is not None
    assert (lane.attempt, lane.endpoint) == (2, 8)
    planner.complete(0)
    assert run_wave(planner).spans == (Span(5, 72, 16, False),)


def test_two_budgets_of_work_make_two_full_waves() -> None:
    planner = planner_of(most=16, stages=4)
    planner.admit(0, 0, 0, 20)
    planner.admit(1, 0, 0, 12)
    assert [run_wave(planner).tokens for _ in range(2)] == [16, 16]
    assert not planner.runnable


def test_a_stopped_request_is_named_by_no_later_wave() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 100)
    planner.admit(1, 0, 0, 100)
    assert planner.stop(1) == -1
    for _ in range(3):
        run_wave(planner)
    planner.complete(0)
    assert planner.stop(0) == 2
    assert planner.plan(0.0) is None
    assert planner.stop(9) == -1


def test_the_last_wave_is_known_after_it_has_completed_while_the_lane_lives() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 100)
    run_wave(planner)
    planner.complete(0)
    assert planner.stop(0) == 0


def test_a_stop_after_the_last_chunk_finds_it_in_the_ring_only() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 20)
    run_wave(planner)
    run_wave(planner)
    assert planner.num_lanes == 0
    assert planner.stop(0) == 1
    planner.complete(0)
    planner.complete(1)
    assert planner.stop(0) == -1


def test_a_request_in_flight_cannot_be_admitted_again() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 3)
    with pytest.raises(DuplicateLane):
        planner.admit(0, 1, 0, 3)
    run_wave(planner)
    with pytest.raises(DuplicateLane):
        planner.admit(0, 1, 0, 3)


def test_a_wave_that_does_not_fit_is_refused_whole() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 100)
    planner.admit(1, 0, 0, 100)
    good, other = Span(0, 0, 4, False), Span(1, 4, 4, False)
    for error, wrong in (
        (PositionMismatch, WavePlan(0, (good, other))),
        (WaveOutOfOrder, WavePlan(1, (good,))),
        (ValueError, WavePlan(0, ())),
        (ValueError, WavePlan(0, (good, good))),
    ):
        with pytest.raises(error):
            planner.accept(wrong)
    assert planner.in_flight == 0
    assert run_wave(planner).spans == (Span(0, 0, 16, False),)


def test_a_plan_made_before_a_stop_is_a_mismatch_after_it() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 100)
    plan = planner.plan(0.0)
    assert plan is not None
    planner.stop(0)
    with pytest.raises(PositionMismatch):
        planner.accept(plan)


def test_completing_out_of_turn_is_an_error_with_a_name() -> None:
    planner = planner_of()
    planner.admit(0, 0, 0, 100)
    run_wave(planner)
    run_wave(planner)
    for error, wave in ((WaveOutOfOrder, 1), (UnknownWave, 2)):
        assert issubclass(error, RingError)
        with pytest.raises(error):
            planner.complete(wave)


def test_the_deadline_ends_the_holding_back_of_fragments() -> None:
    planner = planner_of(stages=8, avoid_fragments=True, progress_deadline_s=1.0)
    planner.admit(0, 0, 0, 44)
    planner.admit(1, 0, 0, 100)
    assert [run_wave(planner, now).spans for now in (10.0, 10.5)] == [
        (Span(0, 0, 16, False),),
        (Span(0, 16, 16, False),),
    ]
    held_back, overdue = planner.plan(10.9), planner.plan(11.0)
    assert held_back is not None
    assert overdue is not None
    assert held_back.spans == (Span(0, 32, 12, True),)
    assert overdue.spans == (Span(0, 32, 12, True), Span(1, 0, 4, False))


def test_the_deadline_counts_from_the_last_span() -> None:
    planner = planner_of(avoid_fragments=True, progress_deadline_s=1.0)
    planner.admit(0, 0, 0, 20)
    planner.admit(1, 0, 0, 100)
    assert planner.plan(10.0) is not None
    planner.accept(WavePlan(0, (Span(0, 0, 8, False), Span(1, 0, 4, False))))
    assert planner.plan(10.9) == planner.plan(11.5) == WavePlan(1, (Span(0, 8, 12, True),))
    assert planner.plan(11.9) == WavePlan(1, (Span(0, 8, 12, True), Span(1, 4, 4, False)))


def test_the_policy_sees_what_is_unscheduled_and_the_latest_chunks_in_flight() -> None:
    seen: list[Work] = []
    decided: list[int] = []

    class Halving:
        def budget(self, work: Work, idle: bool) -> int:
            assert idle == (not seen)
            seen.append(work)
            return 8

        def decided(self) -> None:
            decided.append(len(seen))

    config = SchedulerConfig(max_wave_tokens=16, min_wave_tokens=8)
    planner = Planner(config, BLOCK, num_stages=2, policy=BudgetedWaves(Halving(), Packer(BLOCK, 8)))
    planner.admit(0, 0, 4, 30)
    planner.admit(1, 0, 0, 5)
    assert [run_wave(planner).tokens for _ in range(4)] == [8, 8, 8, 7]
    assert seen[0] == Work(unscheduled=(26, 5), in_flight=())
    assert seen[2] == Work(unscheduled=(10, 5), in_flight=(8,))
    assert seen[2].tokens == 23
    assert decided == [1, 2, 3, 4]


def test_budgets_off_the_block_size_are_refused() -> None:
    with pytest.raises(ValueError, match="max_wave_tokens"):
        planner_of(most=18)


def held_planner(lone_wave_wait: bool | None = None) -> Planner:
    """One wave in flight, and the last 7 tokens of request 0 to plan, of the 16 that a wave may have."""
    planner = planner_of(most=16, least=16, policy="mpu", lone_wave_wait=lone_wave_wait)
    planner.admit(0, 0, 0, 23)
    assert run_wave(planner).tokens == 16
    return planner


def test_a_lone_small_wave_waits_for_a_request_under_admission_and_takes_it_along() -> None:
    planner = held_planner()
    for _ in range(2):
        assert planner.plan(0.0, admitting=True) is None
        assert planner.runnable
        assert not planner.can_plan
    planner.admit(1, 0, 0, 3)
    assert planner.can_plan
    assert planner.plan(0.0) == WavePlan(1, (Span(0, 16, 7, True), Span(1, 0, 3, True)))


def test_a_lone_wave_waits_until_the_next_wave_completes_and_only_once() -> None:
    planner = held_planner()
    planner.accept(WavePlan(1, (Span(0, 16, 4, False),)))
    assert planner.plan(0.0, admitting=True) is None
    planner.complete(0)
    assert planner.can_plan
    assert planner.plan(0.0, admitting=True) == WavePlan(2, (Span(0, 20, 3, True),))


@pytest.mark.parametrize(
    "reason", ["nothing is admitted", "nothing is in flight", "half full", "switched off", "overdue"]
)
def test_a_lone_wave_does_not_wait_in_vain(reason: str) -> None:
    planner = held_planner(lone_wave_wait=reason != "switched off")
    if reason == "nothing is in flight":
        planner.complete(0)
    if reason == "half full":
        planner.admit(1, 0, 0, 9)
        planner.stop(0)
    now = 0.0
    if reason == "overdue":
        assert planner.plan(0.0) is not None
        now = 5.0
    assert planner.plan(now, admitting=reason != "nothing is admitted") is not None


def test_urgent_requests_and_early_deadlines_are_planned_first() -> None:
    planner = planner_of(most=8, stages=4)
    planner.admit(0, 0, 0, 8)
    planner.admit(1, 0, 0, 8, deadline=60.0)
    planner.admit(2, 0, 0, 8, deadline=50.0)
    planner.admit(3, 0, 0, 8, priority=-1)
    assert [run_wave(planner).spans[0].request for _ in range(4)] == [3, 2, 1, 0]


def test_a_low_priority_is_served_in_the_end() -> None:
    planner = planner_of(most=8, stages=4, ageing_s=10.0)
    planner.admit(0, 0, 0, 8, priority=1)
    served: list[int] = []
    for step in range(12):
        planner.admit(step + 1, 0, 0, 8)
        served.append(run_wave(planner, now=float(step)).spans[0].request)
        planner.complete(step)
    assert served == [*range(1, 11), 0, 11]
