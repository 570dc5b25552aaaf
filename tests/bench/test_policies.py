"""The comparison of policies runs each alike, and reckons its ratios round by round."""

from __future__ import annotations

from collections import Counter

import pytest
from wavepp.bench import policies
from wavepp.bench.load import Report
from wavepp.bench.load_config import LoadConfig
from wavepp.bench.policies import POLICIES, Setting, compared, main, table

SETTING = Setting(("cold-64k", "mixed"), (1, 4), scale=64, requests=2, rounds=3)


def report(tokens_s: float, load: LoadConfig | None = None, **changes: object) -> Report:
    values = {
        "workload": load.workload if load else "mixed/64",
        "concurrency": load.concurrency if load else 4,
        "rate": None,
        "requests": 8,
        "completed": 8,
        "errors": {},
        "wall_s": 1.0,
        "tokens_s": tokens_s,
        "requests_s": 8.0,
        "p50_s": 0.1,
        "p95_s": 0.2,
        "mean_s": 0.1,
        "cached": 0.5,
        "expected_cached": 0.5,
        "good_hits": 1.0,
        "bubble": 0.25,
        "waves": 9,
        "prefixes": 4,
        "seed": 0,
        "unreleased": 0,
    }
    return Report(**{**values, **changes})  # pyright: ignore[reportArgumentType]


def test_ratios_compare_the_same_round_and_not_the_medians() -> None:
    # The machine was slow in the second round, for all: the medians alone would say 1.0.
    rounds = {
        "static": [report(100), report(10), report(120)],
        "mpu": [report(100), report(10), report(100)],
        "cost": [report(120), report(15), report(100)],
    }
    (cell,) = compared({("mixed", 4): rounds})
    assert (cell.workload, cell.concurrency, cell.requests, cell.rounds) == ("mixed/64", 4, 8, 3)
    assert [cell.policies[policy].tokens_s for policy in POLICIES] == [100, 100, 100]
    ratio = cell.ratios["cost/static"]
    assert (ratio.median, ratio.least, ratio.greatest) == (1.2, 100 / 120, 1.5)
    assert cell.ratios["cost/mpu"].median == 1.2
    *_, last = table([cell]).splitlines()
    assert [part.strip() for part in last.split("|")[1:-1]] == [
        *("mixed/64", "4", "cost", "100", "0.100", "0.200", "25%", "9"),
        *("1.20 (0.83 to 1.50)", "1.20 (1.00 to 1.50)"),
    ]


def test_every_round_has_tokens_of_its_own_and_the_same_workloads() -> None:
    first, second = list(SETTING.loads(0)), list(SETTING.loads(1))
    assert [(load.workload, load.concurrency, load.requests) for load in first] == [
        ("cold-64k", 1, 4),
        ("cold-64k", 4, 8),
        ("mixed", 1, 4),
        ("mixed", 4, 8),
    ]
    assert [load.model_copy(update={"seed": 1}) for load in first] == second


class NoServer:
    """Stands for a server; its address is its policy."""

    def __init__(self, _folder: object, _pp: int, *flags: str) -> None:
        self.url = flags[flags.index("--policy") + 1]
        assert flags[:2] == ("--threads-per-stage", "1")

    def __enter__(self) -> NoServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_policies_take_turns_at_being_first_with_the_same_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[tuple[str, LoadConfig]] = []

    def one_run(url: str, load: LoadConfig) -> Report:
        sent.append((url, load))
        return report(100.0, load)

    monkeypatch.setattr(policies, "LocalServer", NoServer)
    monkeypatch.setattr(policies, "one_run", one_run)
    monkeypatch.setattr(policies, "resolve_model", lambda name: name)
    assert main(["--quick"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 3 * 6
    measured = sent[len(POLICIES) :]
    assert len(measured) == 3 * 6 * len(POLICIES)
    turns = [measured[at : at + 3] for at in range(0, len(measured), 3)]
    for turn in turns:
        assert sorted(policy for policy, _ in turn) == sorted(POLICIES)
        assert len({load.model_dump_json() for _, load in turn}) == 1
    assert Counter(turn[0][0] for turn in turns) == dict.fromkeys(POLICIES, 6)
