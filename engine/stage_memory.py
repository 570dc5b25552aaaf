"""The cache of one stage: what its layers keep, how much of it fits, and the storage itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..admission.limiter import floors
from ..cache.config import Capacity, plan_capacity
from ..cache.device_pools import DevicePools
from ..cache.layout import LayerCache, Window
from ..cache.stage_cache import StageCache
from ..models.stage_model import StageModel
from .settings import GroupSettings


@dataclass(frozen=True, slots=True)
class StageMemory:
    layout: tuple[LayerCache, ...]
    windows: frozenset[Window]
    capacity: Capacity
    pools: DevicePools
    cache: StageCache


def allocate(model: StageModel, group: GroupSettings, rank: int, device: torch.device) -> StageMemory:
    """Raises the cache config's own error when the stage's memory cannot hold even one request."""
    layout = model.cache_layout()
    sizes = group.cache.of_rank(rank)
    capacity = plan_capacity(layout, sizes, snapshot_interval=group.admission.snapshot_interval)
    block_size = group.cache.block_size
    group_tokens = 2 * group.engine.pp * group.scheduler.max_wave_tokens
    windows = frozenset(layer.window for layer in layout)
    return StageMemory(
        layout=layout,
        windows=windows,
        capacity=capacity,
        pools=DevicePools(
            layout,
            num_pages=capacity.num_pages,
            num_slots=capacity.num_slots,
            block_size=block_size,
            device=device,
            host_pages=capacity.host_pages,
            host_slots=capacity.host_slots,
        ),
        cache=StageCache(
            windows,
            capacity.num_pages,
            capacity.num_slots,
            block_size,
            host_pages=capacity.host_pages,
            host_slots=capacity.host_slots,
            floors=floors(group.admission, capacity.num_pages, capacity.num_slots, block_size, group_tokens),
            retention=group.cache.snapshot_retention,
        ),
    )
