"""The report's plots, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from ..simulator import ablation
from ..simulator.paper_k3 import MEASURED
from ..simulator.pipeline import POLICIES
from ..simulator.workloads import Cell

if TYPE_CHECKING:
    from .reproduce import Found

# The same figures give the same file.
mpl.rcParams["svg.hashsalt"] = "wavepp"
mpl.rcParams["font.size"] = 8
COLOURS = {"paper": "#222222", "static": "#b0b7c3", "mpu": "#e08a2e", "cost": "#2a6fbb"}
ROWS = (("cold", 65_536), ("cold", 131_072), ("cold", 262_144), ("reuse", 131_072), ("reuse", 262_144), ("mixed", 0))


def draw(found: Found, folder: Path) -> list[Path]:
    """Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {
        "throughput": _throughput(found),
        "bubble": _bubble(found),
        "ablation": _ablation(found),
        "retention": _retention(found),
        "stages": _stages(found),
    }
    paths: list[Path] = []
    for name, figure in plots.items():
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)
        paths.append(path)
    return paths


def _cells(family: str, tokens: int) -> list[Cell]:
    return [cell for cell in MEASURED if (cell.family, cell.input_tokens) == (family, tokens)]


def _bars(axes: Any, labels: Sequence[str], series: dict[str, list[float | None]]) -> None:
    width = 0.8 / len(series)
    for place, (name, heights) in enumerate(series.items()):
        at = [number + (place - (len(series) - 1) / 2) * width for number in range(len(labels))]
        there = [(x, height) for x, height in zip(at, heights, strict=True) if height is not None]
        axes.bar([x for x, _ in there], [height for _, height in there], width, label=name, color=COLOURS.get(name))
    axes.set_xticks(range(len(labels)), labels)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_axisbelow(True)


def _grid(title: str, series: Any, ylabel: str) -> Any:
    figure, all_axes = plt.subplots(2, 3, figsize=(11, 5.5), layout="constrained")
    for axes, (family, tokens) in zip(all_axes.flat, ROWS, strict=True):
        cells = _cells(family, tokens)
        _bars(axes, [f"c={cell.concurrency}" for cell in cells], series(cells))
        axes.set_title(f"{family} {tokens // 1000}K" if tokens else "mixed 131K warm, 262K cold")
        axes.set_ylabel(ylabel)
    all_axes[0][0].legend(frameon=False)
    figure.suptitle(title)
    return figure


def _throughput(found: Found) -> Any:
    def series(cells: list[Cell]) -> dict[str, list[float | None]]:
        found_here: dict[str, list[float | None]] = {"paper": [MEASURED[cell].tokens_s / 1e3 for cell in cells]}
        for name in POLICIES:
            found_here[name] = [found.cells[cell][name].tokens_s / 1e3 for cell in cells]
        return found_here

    return _grid("Kimi K3, eight stages: the paper's WavePP and three policies, simulated", series, "1,000 tokens/s")


def _bubble(found: Found) -> Any:
    def series(cells: list[Cell]) -> dict[str, list[float | None]]:
        return {name: [100 * found.cells[cell][name].bubble for cell in cells] for name in POLICIES}

    return _grid("Idle part of the stages' time, filling and draining included", series, "bubble, %")


def _ablation(found: Found) -> Any:
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axes, cell in zip(all_axes, ablation.CELLS, strict=True):
        steps = [step for step in found.ablation if step.cell == cell]
        _bars(
            axes,
            [step.rung for step in steps],
            {
                "paper": [step.paper_tokens_s and step.paper_tokens_s / 1e3 for step in steps],
                "simulated": [step.outcome.tokens_s / 1e3 for step in steps],
            },
        )
        axes.set_title(str(cell))
        axes.set_ylabel("1,000 tokens/s")
    all_axes[0].legend(frameon=False)
    return figure


def _retention(found: Found) -> Any:
    figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    for parallelism, colour in (("pipeline", COLOURS["cost"]), ("tensor", COLOURS["mpu"])):
        rows = [one for one in found.retention if one.parallelism == parallelism]
        rates = [one.requests_per_s for one in rows]
        axes.plot(rates, [100 * one.good_hits for one in rows], "o-", color=colour, label=f"{parallelism}, simulated")
        axes.plot(rates, [one.paper_pct for one in rows], "x:", color=colour, label=f"{parallelism}, paper")
    axes.set(xlabel="requests a second", ylabel="good hits, %", ylim=(50, 102))
    axes.grid(linewidth=0.3)
    axes.legend(frameon=False)
    return figure


def _stages(found: Found) -> Any:
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    shown = Cell("cold", 131_072, 32), Cell("reuse", 131_072, 32), Cell("mixed", 0, 32)
    by_stages = {8: found.alone, **dict(sorted(found.stages.items()))}
    for axes, cell in zip(all_axes, shown, strict=True):
        for name in POLICIES:
            heights = [outcomes[cell][name].tokens_s / 1e3 for outcomes in by_stages.values()]
            axes.plot(list(by_stages), heights, "o-", color=COLOURS[name], label=name)
        axes.set(xscale="log", xlabel="stages", ylabel="1,000 tokens/s", title=str(cell))
        axes.set_xticks(list(by_stages), [str(count) for count in by_stages])
        axes.minorticks_off()
        axes.grid(linewidth=0.3)
    all_axes[0].legend(frameon=False)
    return figure
