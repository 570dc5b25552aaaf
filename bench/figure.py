"""One measured figure beside the naive way's, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`target` bounds `ours` from above, or from below where more is `better`; None: there is none. `naive` is None
    where there is nothing to compare to. `key` names it in JSON; empty: it is left out."""

    label: str
    unit: str
    ours: float
    naive: float | None = None
    target: float | None = None
    more_is_better: bool = False
    key: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ours >= self.target if self.more_is_better else self.ours <= self.target

    @property
    def gain(self) -> float | None:
        """How many times better than the naive way; below 1: worse."""
        if self.naive is None or not self.naive or not self.ours:
            return None
        return self.ours / self.naive if self.more_is_better else self.naive / self.ours


def table(figures: Sequence[Figure]) -> str:
    """In Markdown, so that it can be pasted."""
    rows = [("", "ours", "naive", "ratio", "target", "met")]
    for figure in figures:
        bound = "" if figure.target is None else f"{'≥' if figure.more_is_better else '≤'} {_number(figure.target)}"
        naive = "" if figure.naive is None else f"{_number(figure.naive)} {figure.unit}"
        gain = "" if figure.gain is None else f"{_number(figure.gain)}×"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        rows.append((figure.label, f"{_number(figure.ours)} {figure.unit}", naive, gain, bound, met))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
