"""The storage of one stage's caches, on its device and in its host tier."""

from collections.abc import Sequence

import torch

from .layout import LayerCache, Window
from .moves import Moves


class DevicePools:
    """Pages `[num_pages, B, *shape]` and slots `[num_slots, *shape]`, one tensor for each tensor of each layer; the
    host tier has the like with `host_pages` and `host_slots` rows, in page-locked memory where the device is a GPU.

    Zeroed at the start, so that rows never written hold finite numbers. Owner: the LOOP thread, but for reads of
    pinned pages by the transfer thread.
    """

    def __init__(
        self,
        layout: Sequence[LayerCache],
        *,
        num_pages: int,
        num_slots: int,
        block_size: int,
        device: torch.device,
        host_pages: int = 0,
        host_slots: int = 0,
    ):
        self.layout = tuple(layout)
        self.num_pages = num_pages
        self.num_slots = num_slots
        self.block_size = block_size
        self.pools: dict[str, dict[str, torch.Tensor]] = {}
        self._tiers: dict[Window, list[tuple[torch.Tensor, torch.Tensor]]] = {window: [] for window in Window}
        """By window, the storage on the device and on the host of each tensor of each layer."""
        for layer in self.layout:
            self.pools[layer.name] = {}
            attention = layer.window is Window.ATTENTION
            for spec in layer.tensors:
                row = (block_size, *spec.shape) if attention else spec.shape
                dtype = getattr(torch, spec.dtype)
                stored = torch.zeros(num_pages if attention else num_slots, *row, dtype=dtype, device=device)
                places = host_pages if attention else host_slots
                host = torch.zeros(places, *row, dtype=dtype, pin_memory=device.type == "cuda" and places > 0)
                self.pools[layer.name][spec.name] = stored
                self._tiers[layer.window].append((stored, host))

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages and slots."""
        return sum(storage.nbytes for layer in self.pools.values() for storage in layer.values())

    @property
    def num_host_bytes(self) -> int:
        """Bytes of the host tier."""
        return sum(host.nbytes for tensors in self._tiers.values() for _, host in tensors)

    @torch.inference_mode()
    def copy_slot(self, src: int, dst: int) -> None:
        """Copy the recurrent state of every layer from slot `src` to slot `dst`."""
        for storage, _ in self._tiers[Window.RECURRENT]:
            storage[dst].copy_(storage[src])

    @torch.inference_mode()
    def execute(self, moves: Moves) -> None:
        """Makes the copies of one step: all that leave for the host, then all that come from there.

        On a GPU the copies are enqueued on the current stream and not waited for. Whatever overwrites a page that has
        left, or reads one that has come, is enqueued on the same stream after them, so none can overtake the other;
        host rows are only ever touched by such copies.
        """
        for window, tensors in self._tiers.items():
            items = [item for which, item, _ in moves.offloads if which is window]
            places = [place for which, _, place in moves.offloads if which is window]
            for storage, host in tensors if items else ():
                _copy_rows(storage, items, host, places)
        for window, tensors in self._tiers.items():
            places = [place for which, place, _ in moves.onboards if which is window]
            items = [item for which, _, item in moves.onboards if which is window]
            for storage, host in tensors if items else ():
                _copy_rows(host, places, storage, items)


def _copy_rows(source: torch.Tensor, rows: list[int], target: torch.Tensor, places: list[int]) -> None:
    """target[places[i]] = source[rows[i]]. Between device and host one row at a time, so that no copy is staged in
    pageable memory, which would have to be waited for."""
    if source.device == target.device:
        target.index_copy_(0, torch.tensor(places), source.index_select(0, torch.tensor(rows)))
        return
    for row, place in zip(rows, places, strict=True):
        target[place].copy_(source[row], non_blocking=True)
