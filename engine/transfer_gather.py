"""Gives the bytes of pages and slots of a stage's pools."""

from collections.abc import Mapping, Sequence

import torch

from ..cache.layout import LayerCache
from ..models.batch import LayerPools


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor of any dtype, without a copy; the view keeps the memory alive."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


class PoolReader:
    """Reads the pools of one stage. Owner: the transfer thread.

    On the CPU, state that lies in one piece is given as a view of the pool itself. That is safe because whoever
    receives it uses it only once COMPLETE was answered `Valid`, and until then the pages are pinned. What is
    scattered is gathered first. From a device it is copied on a stream of its own, so that it waits for no forward.
    """

    def __init__(self, layers: Sequence[LayerCache], pools: LayerPools) -> None:
        self._tensors: Mapping[str, tuple[torch.Tensor, ...]] = {
            layer.name: tuple(pools[layer.name][spec.name] for spec in layer.tensors) for layer in layers
        }
        device = next((t.device for tensors in self._tensors.values() for t in tensors), torch.device("cpu"))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def blocks(self, layer: str, pages: Sequence[int]) -> list[memoryview]:
        """The pages in this order: bytes of `[len(pages), B, *shape]` for each tensor of the layer."""
        if self._stream is None:
            return [as_bytes(_take(pool, pages)) for pool in self._tensors[layer]]
        return self._from_device(layer, pages)

    def state(self, layer: str, slot: int) -> list[memoryview]:
        """The state in the slot: bytes of `[*shape]` for each tensor of the layer."""
        return self.blocks(layer, (slot,))

    def _from_device(self, layer: str, pages: Sequence[int]) -> list[memoryview]:
        with torch.cuda.stream(self._stream):
            copies: list[torch.Tensor] = []
            for pool in self._tensors[layer]:
                taken = _take(pool, pages)
                host = torch.empty(taken.shape, dtype=taken.dtype, pin_memory=True)
                copies.append(host.copy_(taken, non_blocking=True))
            assert self._stream is not None
            self._stream.synchronize()
        return [as_bytes(copy) for copy in copies]


def _take(pool: torch.Tensor, pages: Sequence[int]) -> torch.Tensor:
    first = pages[0]
    if pool.is_contiguous() and all(page == first + i for i, page in enumerate(pages)):
        return pool[first : first + len(pages)]
    return pool.index_select(0, torch.tensor(pages, dtype=torch.int64, device=pool.device))
