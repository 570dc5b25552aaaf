"""Every config field is a flag and an environment variable, and a wrong value is one clear line."""

from __future__ import annotations

import argparse
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from wavepp.cache.config import CacheConfig
from wavepp.engine.flags import ConfigError, add_config_flags, config_from_args, flag_of, variable_of


class Sample(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=3, ge=1, le=10, description="how many, up to 100%")
    ratio: float = Field(default=0.5, gt=0, lt=1, description="how much")
    mode: Literal["fast", "slow"] = Field(default="fast", description="how")
    careful: bool = Field(default=False, description="whether")
    path: str | None = Field(default=None, description="where")
    sizes: tuple[int, ...] = Field(default=(), description="which")

    @model_validator(mode="after")
    def _together(self) -> Sample:
        if self.careful and self.mode == "fast":
            raise ValueError("careful needs mode slow")
        return self


class Sharing(BaseModel):
    count: int = Field(default=3, ge=1, le=10, description="the same thing, in other words")
    key: str | None = Field(default=None, min_length=4, repr=False, description="nobody else's business")


class Bounded(BaseModel):
    count: int = Field(default=3, ge=1, le=5, description="the same thing, with a bound of its own")


class Clashing(BaseModel):
    count: str = Field(default="many", description="another thing of that name")


def parse(*words: str, environ: dict[str, str] | None = None, **defaults: object) -> Sample:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_config_flags(parser, Sample)
    return config_from_args(Sample, parser.parse_args(words), environ=environ or {}, defaults=defaults)


def test_flags_beat_the_environment_which_beats_defaults() -> None:
    environ = {"WAVEPP_COUNT": "4", "WAVEPP_RATIO": "0.25"}
    assert parse() == Sample()
    assert parse(environ=environ).count == 4
    both = parse("--count", "5", environ=environ)
    assert (both.count, both.ratio) == (5, 0.25)
    assert (parse(count=7).count, parse("--count", "2", count=7).count) == (7, 2)


def test_every_kind_of_value_can_be_written() -> None:
    words = ["--ratio", "0.1", "--mode", "slow", "--careful", "--path", "here", "--sizes", "1, 2,3"]
    sample = parse(*words)
    assert (sample.ratio, sample.mode, sample.careful, sample.path, sample.sizes) == (
        0.1,
        "slow",
        True,
        "here",
        (1, 2, 3),
    )
    assert parse("--no-careful", environ={"WAVEPP_CAREFUL": "true", "WAVEPP_MODE": "slow"}).careful is False
    assert parse(environ={"WAVEPP_CAREFUL": "1", "WAVEPP_MODE": "slow"}).careful is True


@pytest.mark.parametrize(
    ("words", "environ", "named"),
    [
        (["--count", "11"], {}, ["--count", "'11'", "1 to 10"]),
        (["--count", "x"], {}, ["--count", "'x'", "1 to 10"]),
        ([], {"WAVEPP_COUNT": "0"}, ["WAVEPP_COUNT", "'0'", "1 to 10"]),
        (["--ratio", "1"], {}, ["--ratio", "above 0, below 1"]),
        (["--ratio", "nan"], {}, ["--ratio"]),
        (["--mode", "medium"], {}, ["--mode", "one of fast, slow"]),
        (["--sizes", "1,x"], {}, ["--sizes"]),
        ([], {"WAVEPP_CAREFUL": "perhaps"}, ["WAVEPP_CAREFUL", "true or false"]),
        (["--careful"], {}, ["--careful", "careful needs mode slow"]),
    ],
)
def test_a_wrong_value_is_one_line_with_its_source_and_its_range(words: list, environ: dict, named: list) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*words, environ=environ)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in named), message


def test_one_flag_serves_two_configs_only_when_it_means_the_same() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, Sample)
    add_config_flags(parser, Sharing)
    args = parser.parse_args(["--count", "6"])
    assert config_from_args(Sample, args, environ={}).count == 6
    assert config_from_args(Sharing, args, environ={}).count == 6
    for other in (Bounded, Clashing):
        with pytest.raises(ValueError, match="--count"):
            add_config_flags(parser, other)
    add_config_flags(parser, Clashing, prefix="other_")
    args = parser.parse_args(["--other-count", "few"])
    assert config_from_args(Clashing, args, prefix="other_", environ={}).count == "few"
    assert (flag_of("count", "other_"), variable_of("count", "other_")) == ("--other-count", "WAVEPP_OTHER_COUNT")


def test_a_program_can_have_variables_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, Sample, variables="OTHER_")
    assert "OTHER_COUNT" in parser.format_help()
    assert "WAVEPP" not in parser.format_help()
    environ = {"OTHER_COUNT": "4", "WAVEPP_COUNT": "5"}
    args = parser.parse_args([])
    assert config_from_args(Sample, args, variables="OTHER_", environ=environ).count == 4
    with pytest.raises(ConfigError, match="OTHER_COUNT"):
        config_from_args(Sample, args, variables="OTHER_", environ={"OTHER_COUNT": "0"})


def test_what_has_no_repr_is_never_shown() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, Sharing)
    with pytest.raises(ConfigError, match="--key") as caught:
        config_from_args(Sharing, parser.parse_args(["--key", "abc"]), environ={})
    assert "abc" not in str(caught.value)


def test_a_size_may_be_given_for_each_rank() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_config_flags(parser, CacheConfig)
    assert "one number for each rank" in " ".join(parser.format_help().split())

    def parsed(*words: str, **environ: str) -> CacheConfig:
        return config_from_args(CacheConfig, parser.parse_args(words), environ=environ)

    assert parsed("--num-pages", "40,60").num_pages == (40, 60)
    assert parsed("--num-pages", "40").num_pages == 40
    assert parsed(WAVEPP_HOST_PAGES="0,5").host_pages == (0, 5)
    with pytest.raises(ConfigError, match=r"--num-pages: must be at least 1.*separated by commas"):
        parsed("--num-pages", "40,0")
    with pytest.raises(ConfigError, match="--num-slots: must be an integer, or one for each rank"):
        parsed("--num-slots", "few")
