"""The paper's ablation, R1 to R4, on the simulated cluster.

Its node of eight B300 is not the one of the tables. One number is taken from it: how much slower its stages are, so
that R2 has the paper's throughput on cold prompts. The rest follows from what each rung waits for.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..scheduler.profiles import KIMI_K3_GB300
from .closed_loop import Outcome
from .k3 import Setting, run_cell
from .rungs import DECOUPLED, LEASED, NAIVE, Rung
from .workloads import Cell

SLOWER = 1.23
"""B300 stages beside the fitted GB300 ones."""
BATCH = 16
COLD, WARM, LONG = Cell("cold", 131_072, 16), Cell("reuse", 131_072, 8), Cell("reuse", 262_144, 32)
CELLS = COLD, WARM, LONG
RUNGS: tuple[tuple[str, str, Rung, str], ...] = (
    ("R1", "naive lockstep preparation", NAIVE, "static"),
    ("R2", "wave admission and transport", DECOUPLED, "static"),
    ("R3", "lease and capacity escrow", LEASED, "static"),
    ("R4", "mpu", LEASED, "mpu"),
    ("ours", "cost", LEASED, "cost"),
)
PAPER: dict[tuple[str, Cell], float] = {
    ("R1", COLD): 8_826,
    ("R2", COLD): 29_692,
    ("R2", WARM): 96_796,
    ("R3", WARM): 149_021,
    ("R3", LONG): 175_305,
    ("R4", COLD): 30_108,
    ("R4", WARM): 211_214,
    ("R4", LONG): 158_238,
}


@dataclass(frozen=True, slots=True)
class Step:
    rung: str
    mechanism: str
    cell: Cell
    outcome: Outcome
    paper_tokens_s: float | None


def tasks() -> list[tuple[str, Cell]]:
    """The rungs' names and cells, for `run_step`."""
    return [(name, cell) for name, _, _, _ in RUNGS for cell in CELLS]


def run_step(name: str, cell: Cell, block_size: int) -> Step:
    _, mechanism, rung, policy = next(one for one in RUNGS if one[0] == name)
    times = {field: SLOWER * getattr(KIMI_K3_GB300, field) for field in ("wave_s", "weight_s", "token_s", "context_s")}
    profile = KIMI_K3_GB300.model_copy(update=times)
    setting = Setting(profile=profile, max_batch=BATCH, rung=rung, block_size=block_size)
    return Step(name, mechanism, cell, run_cell(cell, policy, setting), PAPER.get((name, cell)))
