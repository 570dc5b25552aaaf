"""The state of one prompt in the decoder's own pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..cache.device_pools import DevicePools
from ..cache.layout import LayerCache, Window
from .errors import DecoderFullError


class FreeList:
    """Numbers of pages or slots that are not in use. Owner: the decoder's thread."""

    def __init__(self, count: int, what: str) -> None:
        self._free = list(reversed(range(count)))
        self._what = what

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Raises `DecoderFullError`, and takes none, when there are not that many."""
        if count > len(self._free):
            raise DecoderFullError(f"{count} {self._what} are needed and {len(self._free)} are free in the decoder")
        return [self._free.pop() for _ in range(count)]

    def give(self, numbers: Sequence[int]) -> None:
        self._free.extend(reversed(numbers))


class DecodeState:
    """Pages and slot of one sequence of `num_tokens` tokens; a `StateSink` for the pull that fills it. Owner: the
    decoder's thread. Its blocks need not be of the size of the prefill side's."""

    def __init__(self, pools: DevicePools, pages: FreeList, slots: FreeList) -> None:
        self._pools = pools
        self._free_pages = pages
        self._free_slots = slots
        windows = {layer.window for layer in pools.layout}
        self._attention = Window.ATTENTION in windows
        self._recurrent = Window.RECURRENT in windows
        self.pages: list[int] = []
        self.slot = -1
        self.num_tokens = 0

    @property
    def layers(self) -> Sequence[LayerCache]:
        return self._pools.layout

    def begin(self, num_tokens: int) -> None:
        """Raises `DecoderFullError` when the pools lack the room."""
        if self._recurrent and self.slot < 0:
            (self.slot,) = self._free_slots.take(1)
        self.grow(num_tokens)

    def grow(self, num_tokens: int) -> None:
        """The sequence is to have this many tokens; what it has stays. Raises `DecoderFullError`."""
        if self._attention:
            self.pages += self._free_pages.take(max(0, -(-num_tokens // self._pools.block_size) - len(self.pages)))
        self.num_tokens = num_tokens

    def put_tokens(self, layer: str, tensor: str, start: int, values: torch.Tensor) -> None:
        pool, size = self._pools.pools[layer][tensor], self._pools.block_size
        done = 0
        while done < len(values):
            block, offset = divmod(start + done, size)
            count = min(size - offset, len(values) - done)
            pool[self.pages[block], offset : offset + count].copy_(values[done : done + count])
            done += count

    def put_state(self, layer: str, tensor: str, values: torch.Tensor) -> None:
        self._pools.pools[layer][tensor][self.slot].copy_(values)

    def free(self) -> None:
        """Gives everything back. Doing so twice is harmless."""
        self._free_pages.give(self.pages)
        self.pages = []
        if self.slot >= 0:
            self._free_slots.give([self.slot])
            self.slot = -1
        self.num_tokens = 0
