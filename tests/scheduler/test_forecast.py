"""The forecast of exits against pipelines that are played through."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.forecast import ExitForecast


@settings(deadline=None)
@given(
    waves=st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 3)), min_size=1, max_size=20),
    stages=st.integers(1, 8),
)
def test_the_newest_waves_exit_is_what_a_pipeline_of_equal_stages_makes_of_it(
    waves: list[tuple[float, float]], stages: int
) -> None:
    forecast = ExitForecast()
    free = [0.0] * stages
    now = 0.0
    for wave, (seconds, pause) in enumerate(waves):
        now += pause
        forecast.launched(wave, seconds, seconds, (stages - 1) * seconds, now)
        ready = max(now, free[0])
        for stage in range(stages):
            ready = free[stage] = max(ready, free[stage]) + seconds
        assert forecast.remaining(now) == pytest.approx(free[-1] - max(now, free[0]))


def test_an_empty_pipeline_has_nothing_left() -> None:
    forecast = ExitForecast()
    assert forecast.remaining(5.0) == 0
    forecast.launched(0, 1.0, 1.0, 3.0, 5.0)
    forecast.completed(0)
    assert forecast.remaining(6.0) == 0


def test_waves_that_leave_early_move_those_behind_them() -> None:
    forecast = ExitForecast()
    for wave in range(3):
        forecast.launched(wave, 1.0, 1.0, 3.0, float(wave))
    assert forecast.remaining(3.0) == pytest.approx(3.0)
    forecast.completed(0)
    assert forecast.remaining(3.0) == pytest.approx(2.0)
    forecast.launched(3, 1.0, 1.0, 3.0, 3.0)
    assert forecast.remaining(4.0) == pytest.approx(3.0)


def test_an_error_in_every_wave_does_not_add_up() -> None:
    """Waves take a tenth of what is expected of them; the forecast stays within a ring of expectations."""
    forecast = ExitForecast()
    for wave in range(1_000):
        now = wave * 0.1
        if wave >= 8:
            forecast.completed(wave - 8)
        assert forecast.remaining(now) <= 16
        forecast.launched(wave, 1.0, 1.0, 7.0, now)
