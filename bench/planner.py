"""How long rank 0's planner takes for a decision.

    python -m wavepp.bench.planner --lanes 128

Keeps so many requests admitted, plans and accepts wave after wave with the ring full, and prints the microseconds of
`plan`, and of everything that a wave costs the planner: plan, accept, observe on every stage, complete, admit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence

from ..scheduler.config import SchedulerConfig
from ..scheduler.planner import Planner

LIMIT_US = 1_000.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=128)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--waves", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found: dict[str, dict[str, float]] = {}
    for policy in ("static", "mpu", "cost"):
        for wishes in (False, True):
            name = f"{policy}, with priorities and deadlines" if wishes else policy
            found[name] = measured(policy, wishes, args.lanes, args.stages, args.waves)
            if not args.json:
                line = ", ".join(f"{what} {microseconds:.0f} us" for what, microseconds in found[name].items())
                print(f"{name}: {line}", flush=True)
    if args.json:
        print(json.dumps(found))
    return 0 if all(times["plan p99"] <= LIMIT_US for times in found.values()) else 1


def measured(policy: str, wishes: bool, lanes: int, stages: int, waves: int) -> dict[str, float]:
    planner = Planner(SchedulerConfig.model_validate({"policy": policy}), 64, stages)
    rng = random.Random(0)
    admitted = 0
    plans: list[float] = []
    wholes: list[float] = []
    for now in range(waves):
        begun = time.perf_counter()
        while planner.num_lanes < lanes:
            admit(planner, admitted, rng, float(now), wishes)
            admitted += 1
        if planner.in_flight == 2 * stages:
            for rank in range(stages):
                planner.observe(rank, now - 2 * stages, rng.uniform(0.2, 0.4))
            planner.complete(now - 2 * stages)
        planned = time.perf_counter()
        plan = planner.plan(float(now))
        plans.append(time.perf_counter() - planned)
        assert plan is not None, "there is room in the ring, and there are lanes"
        planner.accept(plan)
        wholes.append(time.perf_counter() - begun)
    figures = {"plan": sorted(plans), "whole": sorted(wholes)}
    return {
        f"{what} {name}": times[int(part * (len(times) - 1))] * 1e6
        for what, times in figures.items()
        for name, part in (("median", 0.5), ("p99", 0.99))
    }


def admit(planner: Planner, request: int, rng: random.Random, now: float, wishes: bool) -> None:
    """Suffixes from a few blocks to 262,144 tokens, most of them short."""
    endpoint = 64 * rng.randrange(4_096)
    suffix = int(64 * 4_096 ** rng.random())
    priority = rng.randrange(3) if wishes else 0
    deadline = now + rng.uniform(1, 100) if wishes else None
    planner.admit(request, 0, endpoint, endpoint + suffix, priority=priority, deadline=deadline)


if __name__ == "__main__":
    sys.exit(main())
