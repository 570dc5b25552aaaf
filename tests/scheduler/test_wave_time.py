"""The best wave against a dense search, and its estimate against a pipeline that is played through."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.cost_model import StageCosts, StageProfile
from wavepp.scheduler.wave_time import Demand, WaveTime, rounds_of


def play(waves: int, factors: list[float], wave_s: float, hop_s: float = 0.0) -> float:
    """The end of the last of equal waves, launched one behind the other into an idle pipeline."""
    free = [0.0] * len(factors)
    for _ in range(waves):
        ready = 0.0
        for stage, factor in enumerate(factors):
            ready = max(ready, free[stage]) + factor * wave_s
            free[stage] = ready
            ready += hop_s
    return free[-1]


profiles = st.builds(
    StageProfile,
    wave_s=st.floats(0, 0.1),
    weight_s=st.floats(0, 0.1),
    token_s=st.floats(1e-6, 1e-3),
    hop_s=st.floats(0, 0.01),
)
demands = st.builds(
    lambda oldest, others, rounds, tokens: Demand(oldest + others, oldest, rounds, tokens),
    st.floats(0.01, 20),
    st.just(0.0) | st.floats(0.01, 200),
    st.floats(1, 50),
    st.integers(64, 10**6),
)


@settings(deadline=None)
@given(profile=profiles, demand=demands, stages=st.integers(1, 16), slack=st.floats(0, 4))
def test_no_other_wave_serves_the_demand_much_sooner(
    profile: StageProfile, demand: Demand, stages: int, slack: float
) -> None:
    wave_time = WaveTime(StageCosts(profile, stages), stages, slack)
    least, most = 1e-4, 10.0
    best = wave_time.best(demand, least, most)
    grid = [least * (most / least) ** (step / 2_000) for step in range(2_001)]
    fastest = min(wave_time.serving_s(demand, work) for work in grid)
    assert least <= best <= most * (1 + 1e-9)
    assert wave_time.serving_s(demand, best) <= fastest * 1.02


@settings(deadline=None)
@given(profile=profiles, stages=st.integers(1, 8), waves=st.integers(1, 20), uneven=st.booleans())
def test_one_request_in_equal_waves_takes_what_the_pipeline_takes(
    profile: StageProfile, stages: int, waves: int, uneven: bool
) -> None:
    shares = tuple(1.0 + stage % 3 for stage in range(stages)) if uneven else ()
    profile = profile.model_copy(update={"shares": shares})
    tokens = 960
    costs = StageCosts(profile, stages)
    work = costs.slowest * profile.token_s * tokens
    estimate = WaveTime(costs, stages, slack=3.0).serving_s(Demand(work, work, 1.0, tokens), work / waves)
    wave_s = profile.wave_s + max(profile.weight_s, profile.token_s * tokens / waves)
    assert estimate == pytest.approx(play(waves, profile.factors(stages), wave_s, profile.hop_s))


def test_a_lone_request_balances_launches_against_filling_the_pipeline() -> None:
    """Without a floor the flow shop's best is n = sqrt((P − 1) · work / launch) waves."""
    profile = StageProfile(wave_s=0.01, token_s=1e-5)
    best = WaveTime(StageCosts(profile, 8), 8, 3.0).best(Demand(0.4, 0.4, 1.0, 40_000), 1e-3, 1.0)
    assert 0.4 / best == pytest.approx(math.sqrt(7 * 0.4 / 0.01), rel=0.05)


def test_waves_that_read_all_weights_are_not_cut_below_them() -> None:
    profile = StageProfile(wave_s=0.001, weight_s=0.05, token_s=1e-5)
    best = WaveTime(StageCosts(profile, 8), 8, 0.0).best(Demand(0.4, 0.4, 1.0, 40_000), 1e-3, 1.0)
    assert best == pytest.approx(0.05, rel=0.05)


def test_under_saturation_the_largest_wave_is_best() -> None:
    profile = StageProfile(wave_s=0.01, token_s=1e-5)
    demand = Demand(32 * 0.4, 0.4, 50.0, 32 * 40_000)
    assert WaveTime(StageCosts(profile, 8), 8, 3.0).best(demand, 1e-3, 0.3) == pytest.approx(0.3, rel=0.02)


def test_in_steady_state_waves_are_as_large_as_keeps_all_stages_busy() -> None:
    """Four requests, each replaced as it leaves: N = 4m waves, and m + P − 1 must be there."""
    profile = StageProfile(wave_s=0.01, token_s=1e-5)
    best = WaveTime(StageCosts(profile, 8), 8, 0.0).best(Demand(4 * 0.7, 0.7, 50.0, 280_000), 1e-3, 10.0)
    assert 0.7 / best == pytest.approx(7 / 3, rel=0.05)


def test_waves_are_smaller_where_work_will_run_out() -> None:
    profile = StageProfile(wave_s=0.01, token_s=1e-5)
    wave_time = WaveTime(StageCosts(profile, 8), 8, 0.0)
    lasting, ending = (wave_time.best(Demand(16.0, 0.4, rounds, 10**6), 1e-3, 10.0) for rounds in (50.0, 1.0))
    assert ending < lasting / 2
    assert 16.0 / ending == pytest.approx(math.sqrt(7 * 16.0 / 0.01), rel=0.05)


def test_rounds_follow_from_how_many_completions_were_followed_by_an_arrival() -> None:
    assert rounds_of(0, 0) == 2
    assert rounds_of(9, 9) == pytest.approx(11)
    assert rounds_of(0, 9) == pytest.approx(1.1)
    assert rounds_of(500, 3) == 50
