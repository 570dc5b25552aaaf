"""Real processes with modelled stages beside the same cluster on virtual time, in one run.

    python -m wavepp.bench.emulated [--pp 8] [--speed 1] [--json]

Each cell is served twice under the same planner, profile, prompts and counts: by `wavepp serve --device emulated` to
clients over HTTP, and by `simulator/cluster.py`. What differs is what the simulator leaves out: sockets, threads, the
front end, and a machine that has fewer cores than stages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..scheduler.profiles import KIMI_K3_GB300
from ..server.local_server import LocalServer
from ..simulator.closed_loop import Outcome
from ..simulator.k3 import INTERVAL, Setting, run_cell
from ..simulator.paper_k3 import SCHEDULER
from ..simulator.workloads import CELLS, Cell
from .load import Report, run_load
from .load_config import LoadConfig
from .load_server import LoadServer

BLOCK = 64
PAGES, SLOTS = 60_000, 900
"""Of a stage: enough for the prefixes of eight clients, and for what runs."""


@dataclass(frozen=True, slots=True)
class Case:
    """A cell, and how many requests of it."""

    workload: str
    concurrency: int
    requests: int

    @property
    def cell(self) -> Cell:
        return Cell(*CELLS[self.workload], self.concurrency)


CASES = (Case("cold-64k", 4, 32), Case("reuse-131k", 8, 96), Case("mixed", 8, 32))


@dataclass(frozen=True, slots=True)
class Pair:
    """Both on the model's clock: tokens a second and seconds."""

    workload: str
    concurrency: int
    requests: int
    real_tokens_s: float
    real_p50_s: float
    real_p95_s: float
    real_cached: float
    simulated_tokens_s: float
    simulated_p50_s: float
    simulated_p95_s: float

    @property
    def ratio(self) -> float:
        return self.real_tokens_s / self.simulated_tokens_s


def compare(case: Case, pp: int, policy: str, speed: float) -> Pair:
    real = served(case, pp, policy, speed)
    if real.completed != case.requests or real.p50_s is None or real.p95_s is None or real.cached is None:
        raise RuntimeError(f"{case} did not complete: {real.errors}")
    simulated = on_virtual_time(case, pp, policy)
    return Pair(
        case.workload,
        case.concurrency,
        case.requests,
        real.tokens_s / speed,
        real.p50_s * speed,
        real.p95_s * speed,
        real.cached,
        simulated.tokens_s,
        simulated.p50_s,
        simulated.p95_s,
    )


def served(case: Case, pp: int, policy: str, speed: float) -> Report:
    """By real processes, on a server of its own."""
    settings = {**SCHEDULER, "policy": policy, "stage_profile": KIMI_K3_GB300.name, "device": "emulated"}
    settings |= {"emulation_speed": speed, "num_pages": PAGES, "num_slots": SLOTS, "snapshot_interval": INTERVAL}
    flags = [part for name, value in settings.items() for part in _flag(name, value)]

    async def load(url: str) -> Report:
        config = LoadConfig(
            url=url, workload=case.workload, concurrency=case.concurrency, requests=case.requests, timeout_s=3_600
        )
        async with LoadServer(url, timeout_s=config.timeout_s) as server:
            return await run_load(server, config)

    with LocalServer("emulated", pp, "--block-size", str(BLOCK), *flags) as server:
        return asyncio.run(load(server.url))


def on_virtual_time(case: Case, pp: int, policy: str) -> Outcome:
    return run_cell(case.cell, policy, Setting(num_stages=pp, block_size=BLOCK), requests=case.requests)


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def line(pair: Pair) -> str:
    return (
        f"{pair.workload:11} c={pair.concurrency:<3} {pair.requests:4} requests: real processes "
        f"{pair.real_tokens_s:9,.0f} tokens/s, p50 {pair.real_p50_s:6.2f} s, p95 {pair.real_p95_s:6.2f} s; virtual "
        f"time {pair.simulated_tokens_s:9,.0f}, {pair.simulated_p50_s:6.2f}, {pair.simulated_p95_s:6.2f}; "
        f"ratio {pair.ratio:.3f}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, default=8)
    parser.add_argument("--policy", default="cost")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster than modelled")
    parser.add_argument("--cases", help="some of cold-64k, reuse-131k, mixed, with commas")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    wanted = args.cases.split(",") if args.cases else [case.workload for case in CASES]
    pairs: list[Pair] = []
    for case in CASES:
        if case.workload in wanted:
            pairs.append(compare(case, args.pp, args.policy, args.speed))
            print(line(pairs[-1]), file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        print(json.dumps({"pairs": [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
