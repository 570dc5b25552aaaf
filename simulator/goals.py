"""What the planner is held to, in the paper's cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .closed_loop import Outcome
from .paper_k3 import MEASURED
from .workloads import Cell

Results = Mapping[Cell, Mapping[str, Outcome]]


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    found: str
    met: bool


def goals(results: Results) -> list[Goal]:
    """Those that the cells and policies at hand can tell."""
    return [*_reproduction(results), *_no_worse(results), *_cost_beside_the_paper(results)]


def _reproduction(results: Results) -> Iterator[Goal]:
    if any("mpu" not in outcomes for outcomes in results.values()) or len(results) < len(MEASURED):
        return
    for what, within in (("tokens_s", 0.10), ("p50_s", 0.15)):
        off = {
            cell: getattr(outcomes["mpu"], what) / getattr(MEASURED[cell], what) - 1
            for cell, outcomes in results.items()
        }
        beyond = [f"{cell} {error:+.1%}" for cell, error in off.items() if abs(error) > within]
        found = f"{len(off) - len(beyond)} of {len(off)} cells" + (f"; beyond: {', '.join(beyond)}" if beyond else "")
        yield Goal(f"mpu's {what} within {within:.0%} of the paper's in 26 cells", found, len(off) - len(beyond) >= 26)


def _no_worse(results: Results) -> Iterator[Goal]:
    ratios = {
        cell: outcomes["cost"].tokens_s / max(outcomes["static"].tokens_s, outcomes["mpu"].tokens_s)
        for cell, outcomes in results.items()
        if {"static", "mpu", "cost"} <= outcomes.keys()
    }
    if ratios:
        worst = min(ratios, key=lambda cell: ratios[cell])
        found = f"least {ratios[worst]:.3f} ({worst})"
        yield Goal("cost at 0.99 or more of the better of static and mpu in every cell", found, ratios[worst] >= 0.99)


def _cost_beside_the_paper(results: Results) -> Iterator[Goal]:
    for cell, outcomes in results.items():
        paper = MEASURED[cell]
        cost, static = outcomes.get("cost"), outcomes.get("static")
        if cost is None:
            continue
        gain = cost.tokens_s / paper.tokens_s
        match cell:
            case Cell("reuse", 131_072, 1):
                yield Goal(f"cost at 2.0 times the paper in {cell}", f"{gain:.2f}", gain >= 2.0)
            case Cell("reuse", 262_144, 1):
                yield Goal(f"cost at 1.6 times the paper in {cell}", f"{gain:.2f}", gain >= 1.6)
            case Cell("reuse", _, 4):
                best = paper.tensor_tokens_s
                found = f"{cost.tokens_s:,.0f} to {best:,.0f}"
                yield Goal(f"cost above the best tensor-parallel server in {cell}", found, cost.tokens_s > best)
            case Cell("reuse", 262_144, 32) if static is not None:
                found = f"{cost.tokens_s / static.tokens_s:.4f} of it"
                yield Goal(
                    f"cost not below static, to 0.1%, in {cell}", found, cost.tokens_s >= 0.999 * static.tokens_s
                )
            case Cell("mixed", _, 16 | 32):
                best = paper.pipeline_p95_s
                found = f"{cost.p95_s:.1f} to {best:.1f}"
                yield Goal(f"cost's p95 at most the best pipeline server's in {cell}", found, cost.p95_s <= best)
            case _:
                pass
