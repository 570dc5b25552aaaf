"""docs/reproduction.md."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..scheduler.profiles import KIMI_K3_GB300
from ..simulator import ablation
from ..simulator.closed_loop import Outcome
from ..simulator.goals import goals
from ..simulator.paper_k3 import MEASURED
from ..simulator.pipeline import POLICIES
from ..simulator.retention import RATES, Retained

if TYPE_CHECKING:
    from .reproduce import Found

INTRODUCTION = """\
# The paper's tables, simulated

Made by `make reproduce`; do not edit. Everything below is also in [reproduction.json](reproduction.json).

What is simulated is time alone. The leader, the participants, leases and escrows, the stage caches with their trees and
snapshots, and the planner are the objects that serve (`admission/`, `cache/`, `scheduler/`); the cluster around them
(`simulator/cluster.py`) has a clock of its own, links with latencies, and stages that take as long as a profile says.

What the paper does not state is pinned so:

- **Arrival**: c clients all send at time 0, in order; whoever's request has completed sends the next one at once.
- **Counts**: max(64, 8c) requests a cell.
- **Ramps count**: throughput is all input tokens, cached ones included, over the time from the first request's sending
  to the last one's completion, filling and draining of the pipeline included. Seconds to complete count from sending.
- **Mixture**: three warm 131K requests, then one cold 262K request, over and over.
- **Warm requests**: 90% of the prompt, on a block boundary, is one of c prefixes that had been sent before, which warm
  requests take in turn.
- **MPU in the K3 runs** looks at unscheduled tokens, chooses M = 16,384 or M/2, and aims at one pipeline fill (as the
  paper says), without persistence or hysteresis, of which it says nothing for these runs.
- **Caches**: 90% of 288 GB a GPU, less 4-bit weights, and 128 GiB of host memory; MLA latents in bfloat16, KDA states
  in float32 with a snapshot every 8,192 tokens.

The **bubble** is the part of the run's time for which stages, on average, were idle.
"""


def write(found: Found, path: Path, plots: Sequence[Path]) -> None:
    shown = {plot.stem: f"{plot.parent.name}/{plot.name}" for plot in plots}
    path.write_text("\n".join(_sections(found, shown)) + "\n")


def _sections(found: Found, plots: Mapping[str, str]) -> Iterator[str]:
    yield INTRODUCTION
    yield from _cells(found, plots)
    yield from _fit(found)
    yield from _ablation(found, plots)
    yield from _retention(found, plots)
    yield from _stages(found, plots)
    yield from _slow(found)
    yield from _emulated(found)


def _cells(found: Found, plots: Mapping[str, str]) -> Iterator[str]:
    yield "## The 28 cells\n"
    yield f"![Throughput of every cell]({plots['throughput']})\n"
    yield f"![Bubble of every cell]({plots['bubble']})\n"
    yield "Input tokens a second, and seconds to complete; in brackets, how far from the paper's WavePP.\n"
    yield _row("cell", "paper tok/s", "p50", "p95", *(f"{name} {what}" for name in POLICIES for what in _WHAT))
    yield _rule(4 + len(_WHAT) * len(POLICIES))
    for cell, outcomes in found.cells.items():
        paper = MEASURED[cell]
        figures = [text for name in POLICIES for text in _outcome(outcomes[name], paper.tokens_s, paper.p50_s)]
        yield _row(cell, f"{paper.tokens_s:,.0f}", paper.p50_s, paper.p95_s, *figures)
    yield "\n### What was to be reached\n"
    yield from (f"- {'met' if goal.met else '**missed**'}: {goal.what}: {goal.found}" for goal in goals(found.cells))
    yield "\n" + OUTLIER + "\n"
    worst = max(
        (abs(found.alone[cell][name].tokens_s / outcomes[name].tokens_s - 1), f"{cell}, {name}")
        for cell, outcomes in found.cells.items()
        for name in POLICIES
    )
    yield (
        "The pipeline alone (`simulator/pipeline.py`: no admission, no caches, six seconds for all cells) is within "
        f"{worst[0]:.1%} of the whole cluster's throughput everywhere (farthest: {worst[1]}).\n"
    )


OUTLIER = """\
**Reuse 131K at c = 4** is the cell that does not fit. Four suffixes of 13K tokens are 52K unscheduled tokens, less than
eight waves of M/2, so a rule that aims at one pipeline fill halves the budget, and 14 waves or so serve the eight
stages much better than the paper's figure says, which is even below what static packing gives here. The paper's own
c = 1 and c = 8 cells fit the rule. We found no reading of it (other targets, counting what is in flight, persistence,
hysteresis) that explains this cell and keeps its neighbours.

**Reuse 262K at c = 32** is just beyond 10% for another reason. Its 32 prefixes are 7.5 million tokens, which is more
than the 6.9 million that the devices hold by the sizes above, so some come back from host memory in every turn. The
simulator lets a stage wait for such copies between two waves, 5% of the time here; on GPUs they can run beside the
waves."""


def _fit(found: Found) -> Iterator[str]:
    profile = KIMI_K3_GB300
    yield "## The profile `kimi-k3-gb300`\n"
    yield "A wave of t tokens, whose tokens have p pairs with tokens before them in their prompts, takes a stage\n"
    yield (
        f"    {1e3 * profile.wave_s:.1f} ms + max({1e3 * profile.weight_s:.1f} ms, {1e6 * profile.token_s:.1f} µs · t) "
        f"+ {1e9 * profile.context_s:.3f} ns · p\n"
    )
    yield (
        "`weight_s` is 92 × 896 experts at 4.25 bits over eight stages, read at 8 TB/s. The other three are fitted to "
        "throughput and p50 of the 15 cold cells under `mpu` (`python -m wavepp.simulator.fit`); the warm and mixed "
        "cells, which the fit has not seen, check it:\n"
    )
    yield "```\n" + found.fit + "\n```\n"
    yield (
        "Cold runs have no small waves: they hardly tell a launch from its tokens (`fit valley`: 10 to 30 ms a wave "
        "fit about equally well), and nothing in the paper measures them. What that leaves open about one request that "
        "has the pipeline to itself under `cost`, as a multiple of the paper's throughput:\n"
    )
    yield "```\n" + found.sensitivity + "\n```\n"


def _ablation(found: Found, plots: Mapping[str, str]) -> Iterator[str]:
    yield "## The ablation\n"
    yield f"![The ablation's rungs]({plots['ablation']})\n"
    yield (
        "On one node of eight B300, with a batch limit of 16. One number is taken from the paper's own ablation: its "
        f"stages are {ablation.SLOWER} times as slow as those of the tables, so that R2 has its throughput on cold "
        "prompts. What each rung waits for is described in `simulator/rungs.py`. R1 to R3 are `static`.\n"
    )
    yield _row("rung", "mechanism", *(f"{cell} tok/s" for cell in ablation.CELLS), "p50", "bubble")
    yield _rule(4 + len(ablation.CELLS))
    for name, mechanism, _, _ in ablation.RUNGS:
        steps = [step for step in found.ablation if step.rung == name]
        figures = [_beside(step.outcome.tokens_s, step.paper_tokens_s) for step in steps]
        p50 = " / ".join(f"{step.outcome.p50_s:.1f}" for step in steps)
        bubble = " / ".join(f"{step.outcome.bubble:.0%}" for step in steps)
        yield _row(name, mechanism, *figures, p50, bubble)
    yield "\n" + ABLATION_NOTES + "\n"


ABLATION_NOTES = """\
The shape is the paper's: on cold prompts everything is gained by leaving lockstep; on warm ones leases and escrow gain
about half again (the paper: 54%), and MPU gains more; on long suffixes with many clients MPU gains nothing. Where the
size differs: the paper's R1 is slower yet, and its R2 and R3 lose more on reuse 131K, than what these rungs wait for
accounts for; its text does not say what else its re-implementation does one after the other. Its MPU loses 9.7% on
reuse 262K at c = 32, where ours loses nothing: the pipeline is full under both, and what the loss comes from is not
told. What a cluster without ownership does under pressure is shown by seed, not by throughput: `simulator/unowned.py`,
where requests that every rank had agreed to cannot run."""


def _retention(found: Found, plots: Mapping[str, str]) -> Iterator[str]:
    yield "## Retention\n"
    yield f"![Good hits by rate]({plots['retention']})\n"
    yield RETENTION_NOTES + "\n"
    yield _row("requests/s", "tensor", "paper", "pipeline", "paper ", "tensor p50", "pipeline p50")
    yield _rule(7)
    by_key = {(one.parallelism, one.requests_per_s): one for one in found.retention}
    for rate in RATES:
        tensor, pipeline = by_key["tensor", rate], by_key["pipeline", rate]
        yield _row(f"{rate:.3f}", *_hits(tensor), *_hits(pipeline), f"{tensor.p50_s:.2f}", f"{pipeline.p50_s:.2f}")
    yield ""


RETENTION_NOTES = """\
The paper gives rates and hit rates, but not the traffic, so this is ours (`simulator/retention.py`): conversations of
32K tokens that ask again after a while, each time with the same first 90%; a good hit reuses at least 80% of that. Both
sides have the same memory: eight tensor-parallel ranks hold every token's latent eight times, the pipeline once."""


def _hits(one: Retained) -> tuple[str, str]:
    return f"{one.good_hits:.0%}", f"{one.paper_pct}%"


def _stages(found: Found, plots: Mapping[str, str]) -> Iterator[str]:
    yield "## 16, 32 and 64 stages\n"
    yield f"![Throughput by number of stages]({plots['stages']})\n"
    yield (
        "A stage's times are taken to shrink with its layers, and every hop to take 20 µs and its activations at "
        "900 GB/s. On the pipeline alone: input tokens a second, and the bubble.\n"
    )
    counts = sorted(found.stages)
    yield _row("cell", *(f"{count} {name}" for count in counts for name in POLICIES))
    yield _rule(1 + len(counts) * len(POLICIES))
    for cell in MEASURED:
        yield _row(cell, *(_short(found.stages[count][cell][name]) for count in counts for name in POLICIES))
    yield (
        "\nSome of them, under `cost`, on the whole cluster, with rounds, leases and caches of so many ranks (64 "
        "requests, so that filling and draining weigh more than in the table):\n"
    )
    cells = list(next(iter(found.stages_whole.values())))
    yield _row("stages", *(f"{cell}" for cell in cells), *(f"{cell}, alone" for cell in cells))
    yield _rule(1 + 2 * len(cells))
    for count, outcomes in sorted(found.stages_whole.items()):
        alone = [found.stages[count][cell]["cost"] for cell in cells]
        yield _row(count, *(_short(outcomes[cell]) for cell in cells), *(_short(one) for one in alone))
    yield ""


def _slow(found: Found) -> Iterator[str]:
    yield "## One stage that takes 20% longer\n"
    yield (
        "The fifth of eight. The planner is told that all stages are alike; `cost` learns otherwise from the stage "
        "times that ranks report. In brackets, how far from the same policy with equal stages.\n"
    )
    yield _row("cell", *(f"{name} {what}" for name in POLICIES for what in _WHAT))
    yield _rule(1 + len(_WHAT) * len(POLICIES))
    for cell, outcomes in found.slow.items():
        figures: list[str] = []
        for name in POLICIES:
            equal = found.alone[cell][name]
            figures += _outcome(outcomes[name], equal.tokens_s, equal.p50_s)
        yield _row(cell, *figures)


def _emulated(found: Found) -> Iterator[str]:
    if not found.emulated:
        return
    yield "\n## Real processes with modelled stages\n"
    yield (
        "`wavepp serve emulated --device emulated --pp 8 --stage-profile kimi-k3-gb300 --policy cost` at real time, "
        "with clients over HTTP, beside the same requests on virtual time: eight stage processes and a front end on "
        f"{os.cpu_count()} cores.\n"
    )
    yield _row("workload", "c", "requests", "real tok/s", "virtual tok/s", "ratio", "real p50", "virtual p50")
    yield _rule(8)
    for pair in found.emulated:
        figures = f"{pair.real_tokens_s:,.0f}", f"{pair.simulated_tokens_s:,.0f}", f"{pair.ratio:.3f}"
        p50 = f"{pair.real_p50_s:.2f}", f"{pair.simulated_p50_s:.2f}"
        yield _row(pair.workload, pair.concurrency, pair.requests, *figures, *p50)


_WHAT = ("tok/s", "p50", "p95", "bubble")


def _outcome(outcome: Outcome, tokens_s: float, p50_s: float) -> tuple[str, ...]:
    return (
        _beside(outcome.tokens_s, tokens_s),
        f"{outcome.p50_s:.1f} ({outcome.p50_s / p50_s - 1:+.0%})",
        f"{outcome.p95_s:.1f}",
        f"{outcome.bubble:.1%}",
    )


def _beside(tokens_s: float, other: float | None) -> str:
    return f"{tokens_s:,.0f}" + ("" if other is None else f" ({tokens_s / other - 1:+.0%})")


def _short(outcome: Outcome) -> str:
    return f"{outcome.tokens_s:,.0f} · {outcome.bubble:.0%}"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _rule(columns: int) -> str:
    return "|---" + (columns - 1) * "|--:" + "|"
