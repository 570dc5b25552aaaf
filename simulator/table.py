"""Cells side by side with the paper's figures."""

from collections.abc import Mapping

from .closed_loop import Outcome
from .paper_k3 import MEASURED
from .workloads import Cell


def table(results: Mapping[Cell, Mapping[str, Outcome]]) -> str:
    """One line a cell: tokens a second, p50 and p95 in seconds, of the paper and of each policy, the latter with their
    distance from the paper's, and the bubble fraction."""
    policies = list(next(iter(results.values())))
    head = f"{'cell':17}|{'paper tok/s':>12}{'p50':>7}{'p95':>7} "
    head += "".join(f"|{policy + ' tok/s':>13}{'':6}{'p50':>7}{'':6}{'p95':>7}{'bubble':>8} " for policy in policies)
    lines = [head, "-" * len(head)]
    for cell, outcomes in results.items():
        paper = MEASURED[cell]
        line = f"{cell!s:17}|{paper.tokens_s:12,.0f}{paper.p50_s:7.1f}{paper.p95_s:7.1f} "
        for policy in policies:
            got = outcomes[policy]
            line += f"|{got.tokens_s:13,.0f}{_off(got.tokens_s, paper.tokens_s)}"
            line += f"{got.p50_s:7.1f}{_off(got.p50_s, paper.p50_s)}{got.p95_s:7.1f}{got.bubble:8.1%} "
        lines.append(line)
    return "\n".join(lines)


def _off(got: float, measured: float) -> str:
    return f"{got / measured - 1:+6.0%}"
