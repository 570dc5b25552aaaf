"""MPU's persistence against a plain account of what was wanted, decision by decision."""

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.budgets import Pieces, budget_chain, choose_budget
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.mpu import MpuBudget
from wavepp.scheduler.work import Work

BLOCK = 64


def rule_of(stages: int = 4, most: int = 1_024, least: int = 128, **more: object) -> MpuBudget:
    config = SchedulerConfig.model_validate(
        {"policy": "mpu", "max_wave_tokens": most, "min_wave_tokens": least, **more}
    )
    return MpuBudget(config, BLOCK, stages)


def decide(rule: MpuBudget, *unscheduled: int, in_flight: tuple[int, ...] = (), idle: bool = False) -> int:
    budget = rule.budget(Work(unscheduled, in_flight), idle)
    assert rule.budget(Work(unscheduled, in_flight), idle) == budget, "asking decides nothing"
    rule.decided()
    return budget


def in_a_row(history: list[tuple[int, int, bool]], falling: bool) -> int:
    """How many decisions up to now wanted a one-step rise, or a fall, from the same budget."""
    count = 0
    for wanted, present, idle in reversed(history):
        rise = present - wanted
        if present != history[-1][1] or idle or not (rise < 0 if falling else rise == 1):
            break
        count += 1
    return count


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 6_000), st.integers(0, 19)), min_size=1, max_size=60),
    rise_after=st.integers(1, 4),
    fall_after=st.integers(1, 5),
    hysteresis=st.sampled_from([0.0, 0.125, 0.5]),
)
def test_the_budget_moves_only_as_the_rules_say(
    steps: list[tuple[int, int]], rise_after: int, fall_after: int, hysteresis: float
) -> None:
    rule = rule_of(rise_decisions=rise_after, fall_decisions=fall_after, hysteresis=hysteresis)
    chain = budget_chain(1_024, 128, BLOCK)
    history: list[tuple[int, int, bool]] = []
    """(wanted, present budget before, whether the ring was idle), as indices into the chain."""
    present = -1
    for tokens, draw in steps:
        idle = draw == 0
        pieces = Pieces([tokens])
        wanted = choose_budget(chain, pieces, target=12, ring=8, thinning_limit=0.125)
        history.append((wanted, present, idle))
        got = chain.index(decide(rule, tokens, idle=idle))
        if idle or present < 0 or present - wanted > 1:
            expected = wanted
        elif present - wanted == 1:
            expected = wanted if in_a_row(history, falling=False) >= rise_after else present
        elif present < wanted:
            short = pieces.waves(chain[present]) < (1 - hysteresis) * 12
            expected = wanted if in_a_row(history, falling=True) >= fall_after and short else present
        else:
            expected = present
        assert got == expected
        present = got


def test_the_defaults_wait_half_a_ring_to_rise_and_a_ring_to_fall() -> None:
    rule = rule_of(most=16_384, least=8_192)
    assert (rule.ring, rule.target, rule.budgets) == (8, 12, (16_384, 8_192))
    assert decide(rule, 60_000) == 8_192
    assert [decide(rule, 400_000) for _ in range(4)] == [8_192] * 3 + [16_384]
    assert [decide(rule, 60_000) for _ in range(8)] == [16_384] * 7 + [8_192]


def test_a_fall_needs_the_hysteresis_check() -> None:
    rule = rule_of(most=16_384, least=8_192)
    assert decide(rule, 12 * 16_384) == 16_384
    assert [decide(rule, 11 * 16_384) for _ in range(20)] == [16_384] * 20
    assert decide(rule, 10 * 16_384) == 8_192


def test_a_burst_rises_at_once() -> None:
    rule = rule_of()
    assert decide(rule, 100) == 128
    assert decide(rule, 12 * 256) == 128
    assert decide(rule, 12 * 512) == 512


def test_an_idle_pipeline_takes_what_is_wanted() -> None:
    rule = rule_of()
    assert decide(rule, 100_000) == 1_024
    assert decide(rule, 100, idle=True) == 128


def test_work_in_flight_counts_unless_told_otherwise() -> None:
    assert decide(rule_of(), 2_000, in_flight=(2_000,) * 6) == 1_024
    assert decide(rule_of(count_in_flight=False), 2_000, in_flight=(2_000,) * 6) == 128


def test_no_fill_beyond_one_is_asked_of_a_target_of_one_fill() -> None:
    """The K3 runs: M or M/2, by unscheduled tokens, for one pipeline fill."""
    rule = rule_of(stages=8, most=16_384, least=8_192, pipeline_fills=0, count_in_flight=False)
    assert rule.target == 8
    assert decide(rule, 8 * 16_384, idle=True) == 16_384
    assert decide(rule, 8 * 16_384 - 64, idle=True) == 8_192
