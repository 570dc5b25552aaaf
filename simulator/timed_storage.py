"""Storage without contents: it only counts how long its copies take."""

from __future__ import annotations

import random

from ..cache.layout import Window
from ..cache.moves import Moves
from ..cache.sequence import Sequence
from .costs import PlaneCosts
from .storage import Storage


class TimedStorage(Storage):
    """Owner: one simulated LOOP."""

    def __init__(self, windows: frozenset[Window], block_size: int, chance: random.Random) -> None:
        super().__init__(windows, block_size, chance)
        self.costs = PlaneCosts()
        self.copied = 0
        """Pages and snapshots that have moved between the tiers."""
        self._spent = 0.0

    def spent(self) -> float:
        """Seconds of copies since it was last asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    def execute(self, moves: Moves) -> None:
        for window, _, _ in (*moves.offloads, *moves.onboards):
            self.copied += 1
            self._spent += self.costs.copy_page_s if window is Window.ATTENTION else self.costs.copy_slot_s

    def resume(self, sequence: Sequence) -> None:
        pass

    def compute(self, sequence: Sequence, tokens: bytes, start: int, end: int) -> None:
        pass

    def check_state(self, pages: tuple[int, ...], slot: int, tokens: bytes) -> None:
        raise NotImplementedError("there are no contents to check")
