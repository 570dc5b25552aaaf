"""A stage profile from the paper's cold runs of Kimi K3.

    python -m wavepp.simulator.fit [fit | valley | sensitivity]

`fit`: a coordinate search over wave_s, token_s and context_s, so that `mpu`, as the K3 runs had it, comes closest to
the paper's throughput and median completion time in the 15 cold cells. The cached and mixed cells, which it never sees,
are printed as a check. Cold runs have no small waves: they do not tell weight_s, which is the stage's bytes over its
bandwidth, and hardly tell a launch from its tokens.
`valley`: the rest fitted for several wave_s, which says how little they tell.
`sensitivity`: what that leaves open about `cost` with one request in the pipeline.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence

from ..scheduler.cost_model import StageProfile
from ..scheduler.profiles import KIMI_K3_GB300
from .closed_loop import Surroundings
from .paper_k3 import MEASURED, STAGES
from .pipeline import config_of, run_cell
from .workloads import Cell

FITTED = ("wave_s", "token_s", "context_s")
WITHIN = {"throughput": 0.10, "p50": 0.15}
"""What a cell may be off by, and the unit of error."""
COLD = [cell for cell in MEASURED if cell.family == "cold"]
Errors = dict[Cell, tuple[float, float]]
Loss = Callable[[StageProfile], float]


def errors(profile: StageProfile, cells: Iterable[Cell]) -> Errors:
    """By cell, the logarithms of the simulated over the measured throughput and p50."""
    config = config_of("mpu", profile)
    found: Errors = {}
    for cell in cells:
        outcome = run_cell(cell, config, profile, Surroundings(STAGES), max(64, 8 * cell.concurrency))
        paper = MEASURED[cell]
        found[cell] = math.log(outcome.tokens_s / paper.tokens_s), math.log(outcome.p50_s / paper.p50_s)
    return found


def loss_of(found: Errors, power: int) -> float:
    """The `power`-mean of all errors, in units of what a cell may be off by. Of a high power it is near the worst."""
    units = [abs(error) / unit for pair in found.values() for error, unit in zip(pair, WITHIN.values(), strict=True)]
    return (sum(unit**power for unit in units) / len(units)) ** (1 / power)


def search(
    start: StageProfile, names: Sequence[str], loss: Loss, first_step: float = 0.1, last_step: float = 0.004
) -> StageProfile:
    """Moves one number at a time by a part of it, for as long as that helps, then by half that part, and so on."""
    best, least, step = start, loss(start), first_step
    while step >= last_step:
        moved = False
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                candidate = best.model_copy(update={name: getattr(best, name) * factor})
                found = loss(candidate)
                if found < least:
                    best, least, moved = candidate, found, True
                    print(f"{describe(best)}: {least:.4f}", file=sys.stderr, flush=True)
                    break
        if not moved:
            step /= 2
    return best


def describe(profile: StageProfile) -> str:
    return ", ".join(f"{name} {getattr(profile, name):.4g}" for name in FITTED)


def check(profile: StageProfile) -> str:
    """The errors by family, and the worst cells."""
    found = errors(profile, MEASURED)
    lines: list[str] = []
    for family in ("cold", "reuse", "mixed"):
        pairs = [pair for cell, pair in found.items() if cell.family == family]
        parts: list[str] = []
        for place, (what, unit) in enumerate(WITHIN.items()):
            off = math.sqrt(sum(pair[place] ** 2 for pair in pairs) / len(pairs))
            good = sum(abs(math.expm1(pair[place])) <= unit for pair in pairs)
            parts.append(f"{what} off by {off:.1%} (root mean square), within {unit:.0%} in {good} of {len(pairs)}")
        lines.append(f"  {family}: " + "; ".join(parts))
    worst = sorted(found, key=lambda cell: -abs(found[cell][0]))[:4]
    lines.append("  worst: " + ", ".join(f"{cell} {math.expm1(found[cell][0]):+.1%}" for cell in worst))
    return "\n".join(lines)


def sensitivity() -> str:
    """Gains of `cost` over the paper with one request, by what a wave costs beside its tokens."""
    weight_s = KIMI_K3_GB300.weight_s
    lines: list[str] = []
    for what, wave_s, floor in (
        ("12 ms a launch, weights free", 0.012, 0.0),
        ("12 ms a launch, weights or tokens, whichever is longer", 0.012, weight_s),
        ("as fitted", KIMI_K3_GB300.wave_s, weight_s),
        ("12 ms a launch, and the weights on top of the tokens", 0.012 + weight_s, 0.0),
        ("as fitted, and the weights on top of the tokens", KIMI_K3_GB300.wave_s + weight_s, 0.0),
    ):
        profile = KIMI_K3_GB300.model_copy(update={"wave_s": wave_s, "weight_s": floor})
        gains: list[str] = []
        for tokens in (131_072, 262_144):
            cell = Cell("reuse", tokens, 1)
            outcome = run_cell(cell, config_of("cost", profile), profile, Surroundings(STAGES), requests=64)
            gains.append(f"{outcome.tokens_s / MEASURED[cell].tokens_s:.2f} at {tokens // 1_000}K")
        lines.append(f"{what}: {', '.join(gains)}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="fit", choices=("fit", "valley", "sensitivity"))
    parser.add_argument("--power", type=int, default=4, help="the mean of this power of the errors is made small")
    args = parser.parse_args(argv)
    if args.what == "sensitivity":
        print(sensitivity())
        return 0

    def loss(profile: StageProfile) -> float:
        return loss_of(errors(profile, COLD), args.power)

    begin = StageProfile(wave_s=0.015, weight_s=KIMI_K3_GB300.weight_s, token_s=18e-6, context_s=0.135e-9)
    if args.what == "fit":
        fitted = [search(begin, FITTED, loss)]
    else:
        starts = [begin.model_copy(update={"wave_s": wave_s}) for wave_s in (0.0, 0.01, 0.02, 0.03)]
        fitted = [search(start, FITTED[1:], loss, last_step=0.01) for start in starts]
    for profile in fitted:
        print(f"{describe(profile)}: loss {loss(profile):.4f}\n{check(profile)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
