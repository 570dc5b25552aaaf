"""How waves are planned, on the real CPU pipeline: `cost` beside `mpu` and `static`, on cold, reused and mixed traffic.

    python -m wavepp.bench.policies [--model demo-hybrid] [--pp 2] [--quick] [--json]

One server a policy, alike in everything else, and only one has load at a time. Every round sends the same requests to
each of them, workload by workload, in an order that turns from round to round, so that a machine whose speed changes
changes it for all. Prints the medians of the rounds, and of each round's ratio; behind a ratio, its least and greatest.
Stages have one thread each.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from tqdm import tqdm

from ..models.demo.resolve import resolve_model
from ..server.local_server import LocalServer
from ..simulator.workloads import CELLS
from .load import Report, run_load
from .load_config import LoadConfig
from .load_server import LoadServer

Cell = tuple[str, int]
"""Workload and clients."""
Runs = dict[Cell, dict[str, list[Report]]]
"""By cell and policy, one report a round."""
POLICIES = ("static", "mpu", "cost")
WORKLOADS = ("cold-64k", "reuse-131k", "mixed")


@dataclass(frozen=True, slots=True)
class Setting:
    """`requests` of a client in one run."""

    workloads: tuple[str, ...]
    concurrency: tuple[int, ...]
    scale: float
    requests: int
    rounds: int

    def loads(self, number: int) -> Iterator[LoadConfig]:
        """Those of one round, whose tokens no other round has."""
        for workload, clients in itertools.product(self.workloads, self.concurrency):
            count = max(4, self.requests * clients)
            yield LoadConfig(
                workload=workload, concurrency=clients, scale=self.scale, requests=count, seed=number, timeout_s=3_600
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo-hybrid")
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", choices=CELLS, default=list(WORKLOADS))
    parser.add_argument("--concurrency", "-c", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--scale", type=float, help="divide the workloads' lengths by this [default 64; --quick: 96]")
    parser.add_argument("--requests", type=int, default=8, help="of each client in a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stage-profile", help="what cost believes: a name, a JSON object or a file of it")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 2 requests a client, in 2 to 3 minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("flags", nargs="*", help="of wavepp serve, after --, for all servers")
    args = parser.parse_args(argv)
    requests, rounds = (2, 3) if args.quick else (args.requests, args.rounds)
    scale = args.scale or (96.0 if args.quick else 64.0)
    setting = Setting(tuple(args.workloads), tuple(args.concurrency), scale, requests, rounds)
    flags = ["--threads-per-stage", "1", *(["--stage-profile", args.stage_profile] if args.stage_profile else [])]
    folder = resolve_model(args.model)
    with ExitStack() as opened:
        servers = {policy: LocalServer(folder, args.pp, *flags, *args.flags, "--policy", policy) for policy in POLICIES}
        urls = {policy: opened.enter_context(server).url for policy, server in servers.items()}
        runs = measure(urls, setting)
        # Before the servers go, which takes a while on a busy machine.
        cells = compared(runs)
        print(msgspec.json.encode({"cells": cells}).decode() if args.json else table(cells), flush=True)
    return 0


def measure(urls: Mapping[str, str], setting: Setting) -> Runs:
    """`urls` by policy. Raises `LoadError`, and RuntimeError where a request failed."""
    runs: Runs = {}
    for url in urls.values():
        # The first waves of a process are slow.
        *_, last = setting.loads(setting.rounds)
        one_run(url, last.model_copy(update={"requests": 4}))
    total = setting.rounds * len(urls) * len(setting.workloads) * len(setting.concurrency)
    with tqdm(total=total, unit="run", file=sys.stderr) as bar:
        for number in range(setting.rounds):
            for load in setting.loads(number):
                cell = runs.setdefault((load.workload, load.concurrency), {policy: [] for policy in urls})
                for policy in _turned(list(urls), number):
                    cell[policy].append(one_run(urls[policy], load))
                    bar.update()
    return runs


def one_run(url: str, load: LoadConfig) -> Report:
    """Raises `LoadError`, and RuntimeError where a request failed."""

    async def run() -> Report:
        async with LoadServer(url, timeout_s=load.timeout_s) as server:
            return await run_load(server, load)

    report = asyncio.run(run())
    if report.errors:
        raise RuntimeError(f"requests failed: {report.errors}")
    return report


def _turned(names: Sequence[str], by: int) -> list[str]:
    by %= len(names)
    return [*names[by:], *names[:by]]


class Figures(msgspec.Struct, frozen=True):
    """Medians of the rounds; seconds, and tokens a second."""

    tokens_s: float
    p50_s: float
    p95_s: float
    bubble: float
    waves: float
    cached: float


class Ratio(msgspec.Struct, frozen=True):
    """Of throughput, round by round."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f} to {self.greatest:.2f})"


class Compared(msgspec.Struct, frozen=True):
    """One cell. `ratios`: `cost/static` and `cost/mpu`."""

    workload: str
    concurrency: int
    requests: int
    rounds: int
    policies: dict[str, Figures]
    ratios: dict[str, Ratio]


def compared(runs: Runs) -> list[Compared]:
    return [
        Compared(
            workload=reports["cost"][0].workload,
            concurrency=clients,
            requests=reports["cost"][0].requests,
            rounds=len(reports["cost"]),
            policies={policy: _medians(rounds) for policy, rounds in reports.items()},
            ratios={f"cost/{other}": _ratio(reports["cost"], reports[other]) for other in ("static", "mpu")},
        )
        for (_, clients), reports in runs.items()
    ]


def table(cells: Sequence[Compared]) -> str:
    """In Markdown."""
    figures = ["tokens/s", "p50 s", "p95 s", "idle", "waves"]
    rows = [["workload", "c", "policy", *figures, "cost/static", "cost/mpu"]]
    for cell in cells:
        for policy, found in cell.policies.items():
            ratios = [str(cell.ratios[name]) if policy == "cost" else "" for name in ("cost/static", "cost/mpu")]
            times = [f"{found.tokens_s:,.0f}", f"{found.p50_s:.3f}", f"{found.p95_s:.3f}"]
            where = [cell.workload, str(cell.concurrency), policy]
            rows.append([*where, *times, f"{found.bubble:.0%}", f"{found.waves:.0f}", *ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _medians(rounds: Sequence[Report]) -> Figures:
    def median(name: str) -> float:
        return statistics.median(value for report in rounds if (value := getattr(report, name)) is not None)

    return Figures(*map(median, Figures.__struct_fields__))


def _ratio(ours: Sequence[Report], others: Sequence[Report]) -> Ratio:
    ratios = [our.tokens_s / other.tokens_s for our, other in zip(ours, others, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


if __name__ == "__main__":
    sys.exit(main())
