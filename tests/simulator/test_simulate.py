"""`wavepp simulate`: what it prints, and what it refuses."""

from __future__ import annotations

import json

import pytest
from wavepp.server.cli import main

QUICK = ["simulate", "--workload", "mixed", "--scale", "64", "--requests", "12", "-c", "3", "--pp", "8"]
SMALL = ["--max-wave-tokens", "1024", "--min-wave-tokens", "512", "--snapshot-interval", "512"]


def simulated(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main([*QUICK, *SMALL, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_says_what_was_found_and_what_was_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(capsys, "--policy", "cost")
    assert found["workload"] == "mixed/64" and found["requests"] == 12
    # Nine of twelve requests are warm, of 2,048 tokens each, and three cold, of 4,096.
    assert found["cached"] == pytest.approx(9 * 1_792 / (9 * 2_048 + 3 * 4_096))
    assert 0 < float(str(found["bubble"])) < 1
    assert found["scheduler"]["policy"] == "cost"  # type: ignore[index]
    # Unless it is told otherwise, the planner believes what is so.
    assert found["scheduler"]["stage_profile"]["name"] == "kimi-k3-gb300"  # type: ignore[index]


def test_the_same_flags_give_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (simulated(capsys, "--rate", "3", "--jitter", "0.2", "--seed", "7") for _ in range(2))
    assert {**first, "simulated_in_s": 0} == {**again, "simulated_in_s": 0}


def test_a_slow_stage_costs_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    equal, slow = simulated(capsys), simulated(capsys, "--slow-stage", "2:1.5")
    assert float(str(slow["tokens_s"])) < float(str(equal["tokens_s"]))


def test_text_says_throughput_and_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, *SMALL]) == 0
    text = capsys.readouterr().out
    assert "input tokens a second" in text and "bubble" in text and "8 stages of kimi-k3-gb300" in text


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--workload", "none"], "--workload"),
        (["--pp", "65"], "--pp"),
        (["--pp", "4"], "more stages"),
        (["--slow-stage", "9:1.2"], "--slow-stage"),
        (["--slow-stage", "1:fast"], "--slow-stage"),
        (["--profile", "none"], "--profile"),
        (["--num-pages", "100"], "num_slots"),
        (["--num-pages", "4", "--num-slots", "4"], "cannot serve"),
        (["--max-wave-tokens", "1000"], "max_wave_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(capsys: pytest.CaptureFixture[str], flags: list[str], named: str) -> None:
    assert main([*QUICK, *SMALL, *flags]) == 2
    assert named in capsys.readouterr().err
