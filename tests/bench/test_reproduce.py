"""The report of the reproduction, from figures at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wavepp.bench import reproduce
from wavepp.bench.emulated import Pair
from wavepp.bench.reproduce import Found, as_json
from wavepp.bench.reproduction_plots import draw
from wavepp.bench.reproduction_report import write
from wavepp.simulator import ablation, retention
from wavepp.simulator.ablation import Step
from wavepp.simulator.closed_loop import Outcome
from wavepp.simulator.paper_k3 import MEASURED
from wavepp.simulator.pipeline import POLICIES
from wavepp.simulator.retention import Retained, turns


def outcome(tokens_s: float) -> Outcome:
    return Outcome(tokens_s, 2.0, 3.0, 2.5, 0.25, 10.0, 64, 100)


@pytest.fixture
def found() -> Found:
    grid = {cell: {policy: outcome(1.05 * paper.tokens_s) for policy in POLICIES} for cell, paper in MEASURED.items()}
    return Found(
        cells=grid,
        alone=grid,
        ablation=[
            Step(name, mechanism, cell, outcome(50_000.0), ablation.PAPER.get((name, cell)))
            for name, mechanism, _, _ in ablation.RUNGS
            for cell in ablation.CELLS
        ],
        retention=[
            Retained(kind, rate, 0.9, 100, 1.0, 80) for kind in ("pipeline", "tensor") for rate in retention.RATES
        ],
        stages=dict.fromkeys(reproduce.MORE_STAGES, grid),
        stages_whole={
            count: {cell: outcome(9.0) for cell in reproduce.ON_CLUSTER_TOO} for count in reproduce.MORE_STAGES
        },
        slow=grid,
        emulated=[Pair("mixed", 8, 32, 99.0, 1.0, 2.0, 0.5, 100.0, 1.0, 2.0)],
        fit="fitted",
        sensitivity="sensitive",
    )


def test_json_has_every_cell_under_every_policy_beside_the_paper(found: Found) -> None:
    cells = json.loads(json.dumps(as_json(found)))["cells"]
    assert len(cells) == 28 * 3
    wanted = {"family", "input_tokens", "concurrency", "policy", "throughput", "p50_s", "p95_s", "bubble", "paper"}
    for row in cells:
        assert wanted <= row.keys()
        assert row["throughput"] == pytest.approx(1.05 * row["paper"], rel=1e-3)
    assert {row["policy"] for row in cells} == {"static", "mpu", "cost"}


def test_the_report_shows_every_cell_goal_and_plot(found: Found, tmp_path: Path) -> None:
    plots = draw(found, tmp_path / "plots")
    write(found, tmp_path / "reproduction.md", plots)
    text = (tmp_path / "reproduction.md").read_text()
    for cell in MEASURED:
        assert text.count(f"\n| {cell} |") == 3  # Cells, more stages, one slow stage.
    assert "| 0.990 |" in text
    assert "(+5%)" in text and "25.0%" in text
    assert "met: mpu's tokens_s within 10%" in text and "**missed**: cost at 2.0 times the paper" in text
    for plot in plots:
        assert plot.read_text().startswith("<?xml") and f"plots/{plot.name}" in text


def test_the_same_figures_give_the_same_plots(found: Found, tmp_path: Path) -> None:
    first, again = draw(found, tmp_path / "first"), draw(found, tmp_path / "again")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_tasks_cover_every_cell_under_every_policy_and_every_rung() -> None:
    names = [name for name, _, _ in reproduce.tasks(64, 100)]
    assert sum(f"{cell} {policy}" in names for cell in MEASURED for policy in POLICIES) == 84
    assert sum(name.startswith("ablation") for name in names) == 15
    assert sum(name.startswith("retention") for name in names) == 10


def test_conversations_come_at_the_rate_that_was_asked_for() -> None:
    plan = turns(2.0, 20_000, seed=3)
    late = [turn for turn in plan if turn.at > plan[-1].at / 2]
    assert len(late) / (late[-1].at - late[0].at) == pytest.approx(2.0, rel=0.05)
    assert [turn.at for turn in plan] == sorted(turn.at for turn in plan)
    seen: set[int] = set()
    for turn in plan:
        assert turn.first == (turn.conversation not in seen)
        seen.add(turn.conversation)


def test_a_small_cache_forgets_conversations_that_a_large_one_keeps() -> None:
    pipeline, tensor = (retention.measure(kind, 1.0, 250, 1_024) for kind in ("pipeline", "tensor"))
    assert pipeline.good_hits >= tensor.good_hits
    assert pipeline.good_hits > 0.95
