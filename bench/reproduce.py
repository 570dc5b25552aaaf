"""The paper's tables, simulated, beside the paper's: docs/reproduction.md, .json and the plots.

    make reproduce

Cells, ablation and retention run on the whole simulated cluster (`simulator/cluster.py`), which admits, caches, plans
and hands over with the very objects that serve. More stages, a slow stage and the fit run on the pipeline alone
(`simulator/pipeline.py`), with some of their cells on the cluster beside it. Last, three cells are served by real
processes with modelled stages, in real time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..scheduler.profiles import KIMI_K3_GB300
from ..simulator import ablation, fit, retention
from ..simulator.ablation import Step
from ..simulator.closed_loop import Outcome, Surroundings
from ..simulator.k3 import Setting, run_cell
from ..simulator.paper_k3 import MEASURED, STAGES
from ..simulator.pipeline import POLICIES, config_of
from ..simulator.pipeline import run_cell as run_on_pipeline
from ..simulator.retention import Retained
from ..simulator.workloads import Cell
from . import emulated
from .emulated import Pair

MORE_STAGES = (16, 32, 64)
SLOW = 1.2
"""How much longer the slow stage, in the middle, takes."""
ON_CLUSTER_TOO = (Cell("reuse", 131_072, 8), Cell("mixed", 0, 32))
HOP_S, HOP_TOKEN_S = 20e-6, 9 * 7168 * 2 / 900e9
"""Between more than eight stages: nine hidden states of a token, at 900 GB/s."""


@dataclass
class Found:
    """Everything that the report is made of; by cell and policy where not said otherwise."""

    cells: dict[Cell, dict[str, Outcome]] = field(default_factory=dict)
    alone: dict[Cell, dict[str, Outcome]] = field(default_factory=dict)
    """On the pipeline alone."""
    ablation: list[Step] = field(default_factory=list)
    retention: list[Retained] = field(default_factory=list)
    stages: dict[int, dict[Cell, dict[str, Outcome]]] = field(default_factory=dict)
    """By the number of stages, on the pipeline alone."""
    stages_whole: dict[int, dict[Cell, Outcome]] = field(default_factory=dict)
    """By the number of stages, under `cost`, on the whole cluster."""
    slow: dict[Cell, dict[str, Outcome]] = field(default_factory=dict)
    emulated: list[Pair] = field(default_factory=list)
    fit: str = ""
    sensitivity: str = ""


Task = tuple[str, Callable[[], Any], Callable[[Found, Any], object]]
"""What progress calls it; what runs it, in a process of its own; and what puts away what it found."""


def tasks(block_size: int, retained_requests: int) -> list[Task]:
    """Long ones first, so that no process is left with one at the end."""
    found: list[tuple[float, Task]] = []
    for cell in MEASURED:
        weight = cell.concurrency * (cell.input_tokens or 160_000) * (1.0 if cell.family == "cold" else 0.6)
        for policy in POLICIES:
            run = partial(run_cell, cell, policy, Setting(block_size=block_size))
            found.append((weight, (f"{cell} {policy}", run, partial(_keep_cell, cell, policy))))
    for name, cell in ablation.tasks():
        run = partial(ablation.run_step, name, cell, block_size)
        found.append((3e6, (f"ablation {name}", run, lambda into, got: into.ablation.append(got))))
    for parallelism in ("pipeline", "tensor"):
        for rate in retention.RATES:
            run = partial(retention.measure, parallelism, rate, retained_requests, 4 * block_size)
            found.append((4e6, (f"retention at {rate}", run, lambda into, got: into.retention.append(got))))
    for stages in MORE_STAGES:
        run = partial(_grid, stages, "")
        found.append((1e6, (f"{stages} stages", run, partial(_keep_stages, stages))))
        for cell in ON_CLUSTER_TOO:
            whole = partial(run_cell, cell, "cost", wide(stages, 4 * block_size), 64)
            found.append((6e6, (f"{cell} on {stages} stages", whole, partial(_keep_whole, stages, cell))))
    found.append((1e6, ("one slow stage", partial(_grid, STAGES, "slow"), lambda into, got: into.slow.update(got))))
    found.append((1e6, ("pipeline alone", partial(_grid, STAGES, ""), lambda into, got: into.alone.update(got))))
    found.append((1e5, ("the fit", _fit, lambda into, got: setattr(into, "fit", got))))
    found.append((1e5, ("sensitivity", fit.sensitivity, lambda into, got: setattr(into, "sensitivity", got))))
    return [task for _, task in sorted(found, key=lambda one: -one[0])]


def wide(stages: int, block_size: int) -> Setting:
    profile = KIMI_K3_GB300.model_copy(update={"hop_s": HOP_S, "hop_token_s": HOP_TOKEN_S})
    return Setting(num_stages=stages, profile=profile, block_size=block_size)


def run(chosen: Sequence[Task], jobs: int) -> Found:
    found = Found()
    with ProcessPoolExecutor(jobs) as pool, tqdm(total=len(chosen), unit="run") as bar:
        waiting = {pool.submit(work): (name, keep) for name, work, keep in chosen}
        for done in as_completed(waiting):
            name, keep = waiting[done]
            keep(found, done.result())
            bar.set_postfix_str(name, refresh=False)
            bar.update()
    found.cells = {cell: {name: found.cells[cell][name] for name in POLICIES} for cell in MEASURED}
    found.ablation.sort(key=lambda step: (step.rung == "ours", step.rung, ablation.CELLS.index(step.cell)))
    found.retention.sort(key=lambda one: (one.requests_per_s, one.parallelism))
    return found


def _grid(stages: int, which: str) -> dict[Cell, dict[str, Outcome]]:
    """All cells on the pipeline alone. The planner believes that all stages are alike, until it is told."""
    setting = wide(stages, 64) if stages != STAGES else Setting()
    profile = setting.profile.slowed(stages, stages // 2, SLOW) if which == "slow" else setting.profile
    around = Surroundings(stages)
    return {
        cell: {
            policy: run_on_pipeline(
                cell, config_of(policy, setting.profile), profile, around, max(64, 8 * cell.concurrency)
            )
            for policy in POLICIES
        }
        for cell in MEASURED
    }


def _fit() -> str:
    return fit.check(KIMI_K3_GB300)


def _keep_cell(cell: Cell, policy: str, found: Found, outcome: Outcome) -> None:
    found.cells.setdefault(cell, {})[policy] = outcome


def _keep_stages(stages: int, found: Found, outcomes: dict[Cell, dict[str, Outcome]]) -> None:
    found.stages[stages] = outcomes


def _keep_whole(stages: int, cell: Cell, found: Found, outcome: Outcome) -> None:
    found.stages_whole.setdefault(stages, {})[cell] = outcome


def as_json(found: Found) -> dict[str, Any]:
    """`paper` is the throughput of the paper's WavePP in that cell; None where the paper has none."""

    def rows(outcomes: dict[Cell, dict[str, Outcome]], **more: Any) -> list[dict[str, Any]]:
        return [
            {**more, **asdict(cell), "policy": policy, **_figures(outcome), "paper": _paper(cell)}
            for cell, by_policy in outcomes.items()
            for policy, outcome in by_policy.items()
        ]

    return {
        "cells": [
            {**row, "paper_p50_s": MEASURED[cell].p50_s, "paper_p95_s": MEASURED[cell].p95_s}
            for row in rows(found.cells)
            for cell in [Cell(row["family"], row["input_tokens"], row["concurrency"])]
        ],
        "pipeline_alone": rows(found.alone),
        "ablation": [
            {
                "rung": step.rung,
                "mechanism": step.mechanism,
                **asdict(step.cell),
                **_figures(step.outcome),
                "paper": step.paper_tokens_s,
            }
            for step in found.ablation
        ],
        "retention": [asdict(one) for one in found.retention],
        "more_stages": [
            row for count, outcomes in sorted(found.stages.items()) for row in rows(outcomes, stages=count)
        ],
        "slow_stage": rows(found.slow),
        "emulated": [{**asdict(pair), "ratio": round(pair.ratio, 4)} for pair in found.emulated],
    }


def _figures(outcome: Outcome) -> dict[str, float]:
    return {
        "throughput": round(outcome.tokens_s, 1),
        "p50_s": round(outcome.p50_s, 3),
        "p95_s": round(outcome.p95_s, 3),
        "bubble": round(outcome.bubble, 4),
    }


def _paper(cell: Cell) -> float:
    return MEASURED[cell].tokens_s


def main(argv: Sequence[str] | None = None) -> int:
    from .reproduction_plots import draw
    from .reproduction_report import write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs"), help="where the report goes")
    parser.add_argument("--block-size", type=int, default=64, help="larger is faster, and a little coarser")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument(
        "--emulated",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also serve three cells by real processes with modelled stages, which takes five minutes of quiet",
    )
    parser.add_argument("--retained-requests", type=int, default=2_000, help="of every rate of the retention sweep")
    args = parser.parse_args(argv)
    found = run(tasks(args.block_size, args.retained_requests), args.jobs)
    if args.emulated:
        for case in emulated.CASES:
            print(f"in real time: {case.requests} requests of {case.workload}", file=sys.stderr, flush=True)
            found.emulated.append(emulated.compare(case, STAGES, "cost", speed=1.0))
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "reproduction.json").write_text(json.dumps(as_json(found), indent=1) + "\n")
    plots = draw(found, args.output / "plots")
    write(found, args.output / "reproduction.md", plots)
    print(f"written: {args.output / 'reproduction.md'}, reproduction.json beside it, and {len(plots)} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
