"""Pretended contents of one rank's pages and slots, on both tiers, so that stale or foreign storage shows."""

from __future__ import annotations

import random
from functools import lru_cache
from hashlib import blake2b

from ..cache.layout import Window
from ..cache.moves import Moves
from ..cache.sequence import Sequence


@lru_cache(maxsize=100_000)
def state_after(tokens: bytes, position: int) -> bytes:
    """What any storage of exactly `position` tokens must hold: it depends on every token up to there."""
    return blake2b(tokens[: position * 4], digest_size=8).digest()


class Storage:
    """Nothing is ever cleared: what is read must have been written since for the very prefix that is read."""

    def __init__(self, windows: frozenset[Window], block_size: int, chance: random.Random) -> None:
        self._windows, self._block, self._chance = windows, block_size, chance
        self.device: dict[Window, dict[int, bytes]] = {window: {} for window in windows}
        self.host: dict[Window, dict[int, bytes]] = {window: {} for window in windows}

    def execute(self, moves: Moves) -> None:
        """Makes the copies, offloads first, each kind in any order."""
        offloads, onboards = list(moves.offloads), list(moves.onboards)
        assert len({(window, host) for window, _, host in offloads}) == len(offloads), "two copies to one host id"
        assert len({(window, item) for window, _, item in onboards}) == len(onboards), "two copies to one device id"
        self._chance.shuffle(offloads)
        self._chance.shuffle(onboards)
        for window, item, host in offloads:
            self.host[window][host] = self.device[window][item]
        for window, host, item in onboards:
            self.device[window][item] = self.host[window][host]

    def resume(self, sequence: Sequence) -> None:
        """The source snapshot's state becomes the live one."""
        slots = self.device[Window.RECURRENT]
        slots[sequence.slot] = slots[sequence.source_slot]

    def compute(self, sequence: Sequence, tokens: bytes, start: int, end: int) -> None:
        """Reads what is there of the first `start` tokens, and writes those up to `end`."""
        if Window.ATTENTION in self._windows:
            self.check_pages(sequence.pages, tokens, start)
            pages = self.device[Window.ATTENTION]
            for block in range(start // self._block, -(-end // self._block)):
                pages[sequence.pages[block]] = state_after(tokens, min((block + 1) * self._block, end))
        if Window.RECURRENT in self._windows:
            slots = self.device[Window.RECURRENT]
            if start == 0:
                slots[sequence.slot] = state_after(tokens, 0)
            self.check_slot(sequence.slot, tokens, start)
            for position, slot in sequence.snapshots:
                if start < position <= end:
                    slots[slot] = state_after(tokens, position)
            slots[sequence.slot] = state_after(tokens, end)

    def check_state(self, pages: tuple[int, ...], slot: int, tokens: bytes) -> None:
        """What a pull of the whole prompt reads."""
        if Window.ATTENTION in self._windows:
            self.check_pages(pages, tokens, len(tokens) // 4)
        if Window.RECURRENT in self._windows:
            self.check_slot(slot, tokens, len(tokens) // 4)

    def check_pages(self, pages: tuple[int, ...], tokens: bytes, upto: int) -> None:
        held = self.device[Window.ATTENTION]
        for block in range(-(-upto // self._block)):
            expected = state_after(tokens, min((block + 1) * self._block, upto))
            assert held[pages[block]] == expected, f"page {pages[block]} does not hold block {block}"

    def check_slot(self, slot: int, tokens: bytes, position: int) -> None:
        assert self.device[Window.RECURRENT][slot] == state_after(tokens, position), f"slot {slot} is another state"
