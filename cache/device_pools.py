"""The storage of one stage's caches on its device."""

from collections.abc import Sequence

import torch

from .layout import LayerCache, Window


class DevicePools:
    """Pages `[num_pages, B, *shape]` and slots `[num_slots, *shape]`, one tensor for each tensor of each layer.

    Zeroed at the start, so that rows never written hold finite numbers. Owner: the LOOP thread, but for reads of
    pinned pages by the transfer thread.
    """

    def __init__(
        self, layout: Sequence[LayerCache], *, num_pages: int, num_slots: int, block_size: int, device: torch.device
    ):
        self.layout = tuple(layout)
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.block_size = block_size
        self.pools: dict[str, dict[str, torch.Tensor]] = {}
        for layer in self.layout:
            lead = (num_pages, block_size) if layer.window is Window.ATTENTION else (num_slots,)
            self.pools[layer.name] = {
                spec.name: torch.zeros(*lead, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)
                for spec in layer.tensors
            }
        self._recurrent = [
            storage
            for layer in self.layout
            if layer.window is Window.RECURRENT
            for storage in self.pools[layer.name].values()
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages and slots."""
        return sum(storage.nbytes for layer in self.pools.values() for storage in layer.values())

    @torch.inference_mode()
    def copy_slot(self, src: int, dst: int) -> None:
        """Copy the recurrent state of every layer from slot `src` to slot `dst`."""
        for storage in self._recurrent:
            storage[dst].copy_(storage[src])
