"""Which recurrent snapshots to keep: the most recently used ones, or those that cost the most to compute again.

    python -m wavepp.bench.retention --slots 32 64 128 --interval 8192 --seeds 3 [--json]

Runs the same requests, one after the other, through the stage cache of a rank that has nothing but recurrent state,
under both orders of eviction. Prints, for each traffic and number of slots, how much of what had been computed before
was reused and how much was computed again; medians over the seeds. No time is measured: the figures are the same on
every machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..admission.capacity import GroupCapacity
from ..admission.config import AdmissionConfig
from ..admission.messages import Hello
from ..admission.snapshot_plan import SnapshotPlanner, reuse_limit
from ..cache.eviction import Retention
from ..cache.layout import Window
from ..cache.stage_cache import StageCache
from .full_cache import BLOCK, INTERVAL, Requests
from .traffic import MIXES, Prompt, trace

RECURRENT = frozenset({Window.RECURRENT})


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens of all requests of a run."""

    reused: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over the seeds, in tokens. `ratio` is LRU's recomputed tokens over cost's of the same seed, so above 1
    where cost is better; `lowest` and `highest` are the seeds' extremes of it. `fresh` tokens had never been seen."""

    traffic: str
    slots: int
    fresh: float
    lru_reused: float
    cost_reused: float
    lru_recomputed: float
    cost_recomputed: float
    ratio: float
    lowest: float
    highest: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[32, 64, 128, 256], help="recurrent slots of the rank")
    parser.add_argument("--interval", type=int, default=INTERVAL, help="tokens between snapshots of a prompt")
    parser.add_argument("--requests", type=int, default=600, help="requests of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, on traffic of their own")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object, last")
    args = parser.parse_args(argv)
    if args.interval % BLOCK or args.interval < BLOCK:
        parser.error(f"--interval must be a multiple of the block, {BLOCK} tokens")
    if min(args.slots) < 3 or args.requests < 1 or args.seeds < 1:
        parser.error("at least three slots, one request and one seed")
    comparisons: list[Comparison] = []
    for mix in MIXES:
        print(mix.name, file=sys.stderr, flush=True)
        traces = [trace(mix, args.requests, seed) for seed in range(args.seeds)]
        comparisons += [compared(mix.name, traces, slots, args.interval) for slots in args.slots]
    print(table(comparisons), flush=True)
    if args.json:
        found = {"interval": args.interval, "requests": args.requests, "seeds": args.seeds}
        print(json.dumps({**found, "comparisons": [asdict(comparison) for comparison in comparisons]}), flush=True)
    return 0


def compared(traffic: str, traces: Sequence[Sequence[Prompt]], slots: int, interval: int) -> Comparison:
    lru = [replayed(prompts, slots, interval, "lru") for prompts in traces]
    cost = [replayed(prompts, slots, interval, "cost") for prompts in traces]
    ratios = [_ratio(one.recomputed, other.recomputed) for one, other in zip(lru, cost, strict=True)]
    return Comparison(
        traffic,
        slots,
        statistics.median(sum(prompt.num_tokens - prompt.seen for prompt in prompts) for prompts in traces),
        statistics.median(kept.reused for kept in lru),
        statistics.median(kept.reused for kept in cost),
        statistics.median(kept.recomputed for kept in lru),
        statistics.median(kept.recomputed for kept in cost),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
    )


def replayed(prompts: Sequence[Prompt], slots: int, interval: int, retention: Retention) -> Kept:
    """One request after the other, with snapshots where the leader would plan them."""
    hello = Hello(0, "", "", "", (0, 1), (Window.RECURRENT,), 0, slots, 0, 0, "")
    planner = SnapshotPlanner(AdmissionConfig(snapshot_interval=interval), GroupCapacity([hello], BLOCK))
    cache = StageCache(RECURRENT, 0, slots, BLOCK, retention=retention)
    requests = Requests(cache)
    reused = recomputed = 0
    for prompt in prompts:
        keys, num_tokens = prompt.keys, prompt.num_tokens
        endpoint = cache.hint(keys, reuse_limit(num_tokens, BLOCK)).endpoint
        request = requests.lease(keys, num_tokens, endpoint)
        requests.commit(request, endpoint, planner.plan(num_tokens, endpoint, prompt.forks))
        requests.finish(request, num_tokens)
        reused += endpoint
        recomputed += prompt.seen - endpoint
    return Kept(reused, recomputed)


def table(comparisons: Sequence[Comparison]) -> str:
    """In Markdown, so that it can be pasted; in thousands of tokens, and percent of what had been computed before."""
    lines = [
        "| traffic | slots | reused, LRU | reused, cost | computed again, LRU | computed again, cost "
        "| LRU / cost (seeds) | better |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for one in comparisons:
        cells = (
            one.traffic,
            str(one.slots),
            _share(one.lru_reused, one.lru_recomputed),
            _share(one.cost_reused, one.cost_recomputed),
            _thousands(one.lru_recomputed),
            _thousands(one.cost_recomputed),
            f"{one.ratio:.2f} ({one.lowest:.2f} to {one.highest:.2f})",
            # Where the seeds do not agree, neither is.
            "cost" if one.lowest > 1 else "LRU" if one.highest < 1 else "neither",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(reused: float, recomputed: float) -> str:
    return f"{_thousands(reused)} ({reused / max(1, reused + recomputed):.0%})"


def _thousands(tokens: float) -> str:
    return f"{tokens / 1e3:,.0f}K"


def _ratio(one: int, other: int) -> float:
    """With one block on either side, so that it is 1 where neither had to compute anything again."""
    return (one + BLOCK) / (other + BLOCK)


if __name__ == "__main__":
    sys.exit(main())
