"""The paper's 28 cells of Kimi K3 on a virtual pipeline, under each policy, beside what the paper measured.

    python -m wavepp.simulator.pipeline --cells all --policies static,mpu,cost

A cell is a closed loop of c clients that all begin at time 0. It sends max(64, 8c) requests; throughput is all their
input tokens, cached ones included, over the whole time, filling and draining included. The mixture is three warm
requests and one cold, over and over. The pipeline stands alone: admission takes a given time and never fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pydantic import ValidationError

from ..scheduler.config import SchedulerConfig
from ..scheduler.cost_model import StageProfile
from .closed_loop import ClosedLoop, Outcome, Surroundings
from .goals import goals
from .paper_k3 import MEASURED, SCHEDULER, STAGES
from .table import table
from .workloads import Cell

POLICIES = ("static", "mpu", "cost")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="all", help="all, families, or cells as reuse:131072:8, with commas")
    parser.add_argument("--policies", default="static,mpu,cost", help=f"of {', '.join(POLICIES)}, with commas")
    parser.add_argument("--profile", default="kimi-k3-gb300", help="how long stages take: a name, or a JSON object")
    parser.add_argument("--requests-per-client", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64, help="the fewest requests of a cell")
    parser.add_argument("--admission-ms", type=float, default=0.0, help="from a request's sending to its lane")
    parser.add_argument("--planned-ahead", type=int, default=0, help="waves that rank 0 plans before their turn")
    parser.add_argument("--jitter", type=float, default=0.0, help="standard deviation of the logarithm of stage times")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="draw the order of the mixture")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    args = parser.parse_args(argv)
    try:
        cells = chosen_cells(args.cells)
        configs = {policy: config_of(policy, args.profile) for policy in args.policies.split(",")}
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parser.error(f"{first['loc'][0]}: {first['msg']}")
    except ValueError as error:
        parser.error(str(error))
    around = Surroundings(
        STAGES, admission_s=args.admission_ms / 1e3, planned_ahead=args.planned_ahead, jitter=args.jitter
    )
    results: dict[Cell, dict[str, Outcome]] = {}
    for number, cell in enumerate(cells):
        print(f"{number + 1} of {len(cells)}: {cell}", file=sys.stderr, flush=True)
        count = max(args.requests, args.requests_per_client * cell.concurrency)
        results[cell] = {
            policy: run_cell(cell, config, config.profile, around, count, args.shuffle)
            for policy, config in configs.items()
        }
    report(results, configs, as_json=args.json)
    return 0


def config_of(policy: str, profile: str | StageProfile) -> SchedulerConfig:
    """The policy as the K3 runs had it. Raises `ValidationError`."""
    return SchedulerConfig.model_validate({"policy": policy, "stage_profile": profile, **SCHEDULER})


def run_cell(
    cell: Cell,
    config: SchedulerConfig,
    profile: StageProfile,
    around: Surroundings,
    requests: int,
    shuffle: int | None = None,
) -> Outcome:
    jobs = cell.jobs(requests, around.block_size, shuffle)
    return ClosedLoop(config, profile, jobs, cell.concurrency, around).run()


def chosen_cells(text: str) -> list[Cell]:
    """Raises `ValueError` on what names no cell."""
    cells: list[Cell] = []
    for part in text.split(","):
        names = part.strip().split(":")
        found = [cell for cell in MEASURED if part == "all" or names == [cell.family] or names == _names(cell)]
        if not found:
            raise ValueError(f"{part!r} names no cell; say all, cold, reuse, mixed, or one as reuse:131072:8")
        cells += [cell for cell in found if cell not in cells]
    return cells


def _names(cell: Cell) -> list[str]:
    return [cell.family, str(cell.input_tokens), str(cell.concurrency)]


def report(
    results: Mapping[Cell, Mapping[str, Outcome]], configs: Mapping[str, SchedulerConfig], as_json: bool
) -> None:
    if as_json:
        cells = [
            {**asdict(cell), "paper": asdict(MEASURED[cell]), **{name: asdict(one) for name, one in outcomes.items()}}
            for cell, outcomes in results.items()
        ]
        settings = {name: config.model_dump() for name, config in configs.items()}
        print(json.dumps({"cells": cells, "goals": [asdict(goal) for goal in goals(results)], "configs": settings}))
        return
    print(table(results))
    for goal in goals(results):
        print(f"{'met   ' if goal.met else 'missed'}  {goal.what}: {goal.found}")


if __name__ == "__main__":
    sys.exit(main())
