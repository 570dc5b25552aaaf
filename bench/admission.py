"""What leased admission costs, side by side with the naive way.

    python -m wavepp.bench.admission [--quick] [--json] [--only lookups walks rounds loop]

Prints a table of medians (p99 where it says so): ours, the naive way's, how many times better ours is, and the target.
`--quick` measures less often, and leaves out what needs a model. `--json` prints the figures as one line at the end.
Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cache.layout import Window
from ..engine.config import EngineConfig
from .figure import Figure, table
from .full_cache import BLOCK
from .lookups import PROMPTS, Lookups, Traffic, by_index, by_naive_walk
from .round_cost import RANKS, admission, round_times
from .walks import hashing, promising, walking

PYTHONS_OWN_INTERVAL_S = 0.005
PAPERS_WAVE_S = 0.45
"""What a wave of 16,384 tokens takes a stage of the paper's."""
PARTS = ("lookups", "walks", "rounds", "loop")


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each part is measured. `pause_s`: for how long the thread that changes the cache computes between two
    waves' changes."""

    lookups: int = 200
    walks: int = 50
    rounds: int = 300
    loop: int = 7
    pause_s: float = 0.01


QUICK = Effort(lookups=60, walks=15, rounds=100, loop=0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure less often, and without a model")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object, last")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="the parts to measure")
    parser.add_argument("--loop-repeats", type=int, help="how often each way is run through a stage; 0 leaves it out")
    parser.add_argument("--loop-cached", type=int, default=65_536, help="cached tokens of each prompt of a stage's run")
    args = parser.parse_args(argv)
    if args.loop_cached < BLOCK or args.loop_cached % BLOCK:
        parser.error(f"--loop-cached must be a multiple of the block, {BLOCK} tokens")
    effort = QUICK if args.quick else Effort()
    repeats = effort.loop if args.loop_repeats is None else args.loop_repeats
    interval_s = EngineConfig().switch_interval_s
    sys.setswitchinterval(interval_s)
    _say(f"{os.cpu_count()} cores, load {_load()}, switch interval {interval_s * 1e3:g} ms")
    figures: list[Figure] = []
    if "lookups" in args.only:
        figures += _lookups(effort)
    if "walks" in args.only:
        figures += _walks(effort)
    if "rounds" in args.only:
        figures += _rounds(effort, args.quick)
    if "loop" in args.only and repeats:
        figures += _loop(repeats, interval_s, args.loop_cached)
    _say(f"done, load {_load()}")
    print(table(figures), flush=True)
    if args.json:
        print(json.dumps(_as_json(figures)), flush=True)
    return 0


def _lookups(effort: Effort) -> Iterator[Figure]:
    """One row a rank; in JSON the slower of the two. Lookups one by one beside a thread that never rests; 64 at once
    beside one that changes the cache as waves do, and then beside the one that never rests."""
    ranks = {"attention-only rank": frozenset({Window.ATTENTION}), "hybrid rank": frozenset(Window)}
    traffic = Traffic()
    busy: dict[str, tuple[Lookups, Lookups]] = {}
    calm: dict[str, tuple[Lookups, Lookups]] = {}
    for rank, windows in ranks.items():
        for found, pause_s in ((busy, effort.pause_s), (calm, PAPERS_WAVE_S)):
            _say(f"lookups, {rank}, the other thread rests {pause_s:g} s at a time")
            ours = by_index(traffic, windows, effort.lookups, pause_s)
            naive = by_naive_walk(traffic, windows, effort.lookups, pause_s)
            _say(f"it changed {ours.changes:,.0f} blocks a second, {naive.changes:,.0f} in the naive tree")
            found[rank] = ours, naive
    slowest = max(ranks, key=lambda rank: busy[rank][0].median_us)
    for rank, (ours, naive) in busy.items():
        key = "probe_median_us" if rank == slowest else ""
        yield Figure(f"one hint, 200K tokens, {rank}", "µs", ours.median_us, naive.median_us, 24, key=key)
    slowest = max(ranks, key=lambda rank: calm[rank][0].p99_ms)
    for rank, (ours, naive) in calm.items():
        key = "hint_p99_ms" if rank == slowest else ""
        yield Figure(f"{PROMPTS} hints at once, p99, {rank}", "ms", ours.p99_ms, naive.p99_ms, 2.35, key=key)
    for rank, (ours, naive) in busy.items():
        yield Figure(f"the same beside a thread that never rests, {rank}", "ms", ours.p99_ms, naive.p99_ms)


def _walks(effort: Effort) -> Iterator[Figure]:
    _say("hashing, walking, promising")
    keys, walks, escrow = hashing(effort.walks), walking(effort.walks), promising(effort.walks)
    yield Figure("keys of 200K tokens (naive: sha256)", "ms", keys.ours, keys.naive, 5, key="hash_200k_ms")
    yield Figure("walk and pin 3,125 blocks", "ms", walks.ours, walks.naive, 2, key="walk_3125_ms")
    yield Figure("promise 3,125 blocks", "ms", escrow.ours, escrow.naive, 5, key="escrow_3125_ms")


def _rounds(effort: Effort, quick: bool) -> Iterator[Figure]:
    _say(f"rounds of {RANKS} processes")
    rounds = round_times(effort.rounds)
    yield Figure(f"admit a request, {RANKS} ranks", "ms", rounds.leased, rounds.lockstep, 0.5, key="round_median_ms")
    yield Figure(f"a round that says nothing, {RANKS} ranks", "ms", rounds.empty)
    if not quick:
        ours, naive = ([admission(PROMPTS, lockstep) for _ in range(5)] for lockstep in (False, True))
        _say(f"{PROMPTS} requests took {ours[0].rounds} rounds, {naive[0].rounds} in lockstep")
        fast, slow = (statistics.median(way.ms for way in ways) for ways in (ours, naive))
        yield Figure(f"admit {PROMPTS} requests at once, {RANKS} ranks", "ms", fast, slow, key="admit_64_ms")


def _loop(repeats: int, chosen_s: float, cached: int) -> Iterator[Figure]:
    from .loop_cost import Load, LoopBench, Ways  # It needs torch, which takes long to import.

    bench = LoopBench(Load(cached=cached))
    ways = [Ways(bench, interval_s) for interval_s in (chosen_s, PYTHONS_OWN_INTERVAL_S)]
    for number in range(repeats):
        for way in ways:
            speeds = way.measure(backwards=number % 2 == 1)
            _say(f"a stage, switch interval {way.interval_s * 1e3:g} ms, {number + 1} of {repeats}: {speeds}")
    for way in ways:
        yield from way.figures(key=way.interval_s == chosen_s)


def _as_json(figures: Sequence[Figure]) -> dict[str, float]:
    found: dict[str, float] = {}
    for figure in figures:
        if figure.key:
            found[figure.key] = figure.ours
            if figure.naive is not None:
                found[f"naive_{figure.key}"] = figure.naive
    return found


def _load() -> str:
    return f"{os.getloadavg()[0]:.2f}"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
