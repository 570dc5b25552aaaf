"""Stage times, and how observations correct them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageCosts, StageProfile, load_of, pairs_of
from wavepp.scheduler.profiles import KIMI_K3_GB300
from wavepp.scheduler.span import Span, WavePlan

PROFILE = StageProfile(wave_s=0.01, weight_s=0.02, token_s=1e-5, context_s=1e-9)


def plan_of(wave: int, start: int = 0, length: int = 1_000) -> WavePlan:
    return WavePlan(wave, (Span(wave, start, length, last=False),))


@given(start=st.integers(0, 60), length=st.integers(1, 60))
def test_pairs_are_a_token_and_one_before_it(start: int, length: int) -> None:
    assert pairs_of(start, length) == sum(range(start, start + length))


def test_a_waves_time_is_the_launch_the_longer_of_weights_and_tokens_and_the_contexts() -> None:
    tokens, pairs = load_of([Span(0, 0, 1_000, False), Span(1, 5_000, 500, True)])
    assert (tokens, pairs) == (1_500, 499_500 + 500 * 5_000 + 124_750)
    assert PROFILE.wave(tokens, pairs) == pytest.approx(0.01 + 0.02 + 1e-9 * pairs)
    assert PROFILE.wave(4_000, 0) == pytest.approx(0.01 + 0.04)


@given(start=st.integers(0, 300_000), length=st.integers(1, 20_000), context_s=st.sampled_from([0.0, 1e-10, 1e-8]))
def test_tokens_of_inverts_work(start: int, length: int, context_s: float) -> None:
    profile = PROFILE.model_copy(update={"context_s": context_s})
    work = profile.work(start, start + length)
    assert work == pytest.approx(sum(profile.token_s + context_s * at for at in range(start, start + length)))
    assert profile.tokens_of(start, work) == pytest.approx(length)


def test_shares_make_uneven_stages_of_the_same_average() -> None:
    profile = PROFILE.model_copy(update={"shares": (1.0, 1.0, 2.0)})
    assert profile.factors(3) == [0.75, 0.75, 1.5]
    costs = StageCosts(profile, 3)
    assert (costs.slowest, costs.transit) == (1.5, pytest.approx(1.0))
    with pytest.raises(ValueError, match="shares for 3 stages, not 4"):
        StageCosts(profile, 4)


def test_even_stages_have_p_minus_one_others() -> None:
    assert StageCosts(PROFILE, 8).transit == 7


def test_the_first_observation_replaces_and_later_ones_correct() -> None:
    costs = StageCosts(PROFILE, 2, smoothing=0.25)
    costs.launched(plan_of(0))
    expected = PROFILE.wave(*load_of(plan_of(0).spans))
    costs.observe(1, 0, 3 * expected)
    assert costs.factors == (1.0, pytest.approx(3.0))
    costs.launched(plan_of(1))
    costs.observe(1, 1, 1 * expected)
    assert costs.factors == (1.0, pytest.approx(2.5))
    assert (costs.slowest, costs.transit) == (pytest.approx(2.5), pytest.approx(0.4))


@settings(deadline=None)
@given(factor=st.floats(0.01, 100), waves=st.integers(60, 100))
def test_a_stage_of_another_speed_is_learned_through_noise(factor: float, waves: int) -> None:
    costs = StageCosts(PROFILE, 1)
    for wave in range(waves):
        plan = plan_of(wave, start=1_000 * wave)
        costs.launched(plan)
        costs.observe(0, wave, PROFILE.wave(*load_of(plan.spans)) * factor * (1.1 if wave % 2 else 0.9))
    assert costs.factors[0] == pytest.approx(factor, rel=0.02)


def test_unknown_waves_and_impossible_times_are_ignored() -> None:
    costs = StageCosts(PROFILE, 2)
    for wave in range(9):
        costs.launched(plan_of(wave))
    costs.observe(0, 0, 1.0)
    costs.observe(0, 77, 1.0)
    costs.observe(0, 8, 0.0)
    assert costs.factors == (1.0, 1.0)
    costs.observe(0, 1, 1.0)
    assert costs.factors[0] > 1


def test_a_profile_is_given_by_name_or_as_json() -> None:
    assert SchedulerConfig.model_validate({"stage_profile": "kimi-k3-gb300"}).stage_profile == KIMI_K3_GB300
    given_as_json = SchedulerConfig.model_validate({"stage_profile": '{"wave_s": 0.001, "token_s": 1e-4}'})
    assert given_as_json.stage_profile == StageProfile(wave_s=0.001, token_s=1e-4)
    again = SchedulerConfig.model_validate_json(given_as_json.model_dump_json())
    assert again == given_as_json
    for wrong in ("kimi", '{"wave_s": -1, "token_s": 1}', '{"token_s": 1e-4}', '{"wave_s": 0, "token_s": 0}'):
        with pytest.raises(ValidationError, match="stage_profile"):
            SchedulerConfig.model_validate({"stage_profile": wrong})
    with pytest.raises(ValidationError, match="shares"):
        StageProfile(wave_s=0, token_s=1, shares=(1.0, 0.0))
