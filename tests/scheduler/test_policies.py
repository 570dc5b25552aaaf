"""What holds under every policy, driven at random."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import load_of
from wavepp.scheduler.planner import Planner
from wavepp.scheduler.profiles import KIMI_K3_GB300
from wavepp.scheduler.span import Span, WavePlan

BLOCK = 4
POLICIES = ("static", "mpu", "cost")


class Driver:
    """Admissions, waves, completions and stops as they are drawn, against an account of every request's tokens."""

    def __init__(self, policy: str, stages: int, max_spans: int) -> None:
        profile = {"wave_s": 0.01, "weight_s": 0.02, "token_s": 0.001, "context_s": 1e-6}
        config = SchedulerConfig.model_validate(
            {
                "policy": policy,
                "max_wave_tokens": 64,
                "min_wave_tokens": 16,
                "max_spans": max_spans,
                "stage_profile": profile,
            }
        )
        self.planner = Planner(config, BLOCK, stages)
        self.stages, self.max_spans = stages, max_spans
        self.position: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.in_flight: deque[WavePlan] = deque()
        self.now = 0.0
        self.held = False

    def admit(self, blocks: int, suffix: int, wish: int) -> None:
        request = len(self.end)
        endpoint = blocks * BLOCK
        deadline = self.now + suffix / 100 if wish == 1 else None
        self.planner.admit(request, 0, endpoint, endpoint + suffix, priority=int(wish == 2), deadline=deadline)
        self.held = False
        self.position[request], self.end[request] = endpoint, endpoint + suffix

    def wave(self, admitting: bool = False) -> None:
        self.now += 0.1
        plan = self.planner.plan(self.now, admitting)
        assert plan == self.planner.plan(self.now, admitting)
        if plan is None:
            waits = self.planner.runnable and len(self.in_flight) < 2 * self.stages
            assert not waits or (self.in_flight and (admitting or self.held))
            self.held = waits
            return
        self.held = False
        assert 0 < plan.tokens <= 64
        assert 0 < len(plan.spans) <= self.max_spans
        self.planner.accept(plan)
        for span in plan.spans:
            assert span.start == self.position[span.request]
            assert span.start % BLOCK == 0
            assert span.last == (span.end == self.end[span.request])
            assert span.last or span.end % BLOCK == 0
            self.position[span.request] = span.end
        self.in_flight.append(plan)

    def complete(self) -> None:
        plan = self.in_flight.popleft()
        self.held = False
        for rank in range(self.stages):
            self.planner.observe(rank, plan.wave, 0.01 * (1 + rank) * plan.tokens)
        assert self.planner.complete(plan.wave) == plan.spans

    def stop(self, request: int) -> None:
        self.planner.stop(request)
        self.end[request] = self.position[request]

    def finish(self) -> None:
        """Left alone, every request comes to its end within as many waves as there are blocks."""
        for _ in range(sum(end - self.position[request] for request, end in self.end.items()) + len(self.end)):
            if self.planner.can_plan:
                self.wave()
            elif self.in_flight:
                self.complete()
        while self.in_flight:
            self.complete()
        assert self.position == self.end
        assert not self.planner.runnable


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), stages=st.integers(1, 4), max_spans=st.integers(1, 5))
def test_every_token_is_planned_once_in_order_and_in_blocks(
    policy: str, data: st.DataObject, stages: int, max_spans: int
) -> None:
    driver = Driver(policy, stages, max_spans)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["admit", "wave", "wave", "admitting", "complete", "stop"])):
            case "admit":
                driver.admit(data.draw(st.integers(0, 6)), data.draw(st.integers(1, 200)), data.draw(st.integers(0, 2)))
            case "complete":
                if driver.in_flight:
                    driver.complete()
            case "stop":
                if driver.end:
                    driver.stop(data.draw(st.sampled_from(sorted(driver.end))))
            case "admitting":
                driver.wave(admitting=True)
            case _:
                driver.wave()
    driver.finish()


def planner_of(policy: str, stages: int = 8) -> Planner:
    return Planner(SchedulerConfig.model_validate({"policy": policy}), 64, stages)


def lone_request(planner: Planner, endpoint: int, num_tokens: int) -> list[int]:
    """The lengths of the waves that the request makes with nothing beside it."""
    planner.admit(0, 0, endpoint, num_tokens)
    lengths: list[int] = []
    while planner.runnable:
        plan = planner.plan(0.0)
        if plan is None:
            planner.complete(len(lengths) - planner.in_flight)
            continue
        planner.accept(plan)
        lengths.append(plan.tokens)
    return lengths


def test_cost_cuts_a_lone_short_suffix_into_equal_waves_for_all_stages() -> None:
    lengths = lone_request(planner_of("cost"), 117_952, 131_072)
    assert 8 <= len(lengths) <= 12
    assert max(lengths) < min(lengths) * 1.15
    assert max(lengths) < 2_048


def test_cost_shortens_spans_as_contexts_grow() -> None:
    lengths = lone_request(planner_of("cost"), 0, 262_144)
    assert lengths[0] > 2 * lengths[-1]
    assert all(later <= earlier + 64 for earlier, later in itertools.pairwise(lengths))


def test_cost_fills_waves_when_there_is_plenty() -> None:
    planner = planner_of("cost")
    for request in range(32):
        planner.admit(request, 0, 0, 131_072)
    plan = planner.plan(0.0)
    assert plan is not None
    assert plan.spans == (Span(0, 0, 16_384, False),)


def test_cost_takes_larger_waves_where_one_stage_is_slower() -> None:
    """While the slow stage is busy, the others' idleness costs nothing: filling them is a smaller part of the time."""
    lengths: dict[float, int] = {}
    for slow in (1.0, 4.0):
        planner = planner_of("cost")
        planner.admit(0, 0, 0, 16_384)
        for wave in range(2):
            plan = planner.plan(0.0)
            assert plan is not None
            planner.accept(plan)
            lengths[slow] = plan.tokens
            if wave == 0:
                expected = KIMI_K3_GB300.wave(*load_of(plan.spans))
                for rank in range(8):
                    planner.observe(rank, 0, expected * (slow if rank == 3 else 1.0))
    assert lengths[4.0] > 1.3 * lengths[1.0]
