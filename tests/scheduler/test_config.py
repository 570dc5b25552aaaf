"""The scheduler's settings."""

import pytest
from pydantic import ValidationError
from wavepp.scheduler.config import SchedulerConfig, check_block_alignment


def test_the_defaults_are_the_papers() -> None:
    config = SchedulerConfig()
    assert (config.policy, config.max_wave_tokens, config.min_wave_tokens) == ("static", 16_384, 8_192)
    assert config.max_spans == 128
    check_block_alignment(config, 64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "greedy"},
        {"max_wave_tokens": 0},
        {"max_wave_tokens": 4_096},
        {"min_wave_tokens": 32_768},
        {"max_spans": 0},
        {"progress_deadline_s": 0.0},
        {"wave_tokens": 5},
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SchedulerConfig.model_validate(wrong)


@pytest.mark.parametrize(
    ("most", "least", "name"),
    [(500, 64, "max_wave_tokens"), (512, 100, "min_wave_tokens"), (512, 32, "min_wave_tokens")],
)
def test_budgets_off_the_block_size_are_refused_by_name(most: int, least: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive multiple of the block size, 64"):
        check_block_alignment(SchedulerConfig(max_wave_tokens=most, min_wave_tokens=least), 64)
