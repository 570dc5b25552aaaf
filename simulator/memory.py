"""How much a simulated stage caches."""

from __future__ import annotations

from dataclasses import dataclass

from ..cache.config import RankCacheConfig, plan_capacity
from ..cache.errors import CapacityError
from ..cache.eviction import Retention
from ..cache.layout import LayerCache, TensorSpec, Window


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Pages and snapshot slots of one stage, on its device and on its host. 0 of a kind: it has no such layers."""

    num_pages: int
    num_slots: int
    host_pages: int = 0
    host_slots: int = 0
    retention: Retention = "lru"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """What the layers of a hybrid model keep: `token_bytes` a token on each attention layer, `state_bytes` a snapshot
    on each recurrent layer. `weight_bytes` is the whole model."""

    attention_layers: int
    recurrent_layers: int
    token_bytes: int
    state_bytes: int
    weight_bytes: float

    def stage_memory(
        self,
        num_stages: int,
        device_bytes: float,
        host_bytes: float,
        block_size: int,
        snapshot_interval: int,
        retention: Retention = "lru",
    ) -> StageMemory:
        """Of one of `num_stages` equal stages, whose weights leave the rest of `device_bytes` to its caches. Raises
        CapacityError when that is too little."""
        return _memory(
            token_bytes=self.attention_layers * self.token_bytes / num_stages,
            state_bytes=self.recurrent_layers * self.state_bytes / num_stages,
            device_bytes=device_bytes - self.weight_bytes / num_stages,
            host_bytes=host_bytes,
            block_size=block_size,
            snapshot_interval=snapshot_interval,
            retention=retention,
        )

    def tensor_parallel_memory(
        self, num_ranks: int, device_bytes: float, host_bytes: float, block_size: int, snapshot_interval: int
    ) -> StageMemory:
        """Of each of `num_ranks` that divide every layer's heads among them: latents have none, and are on every rank
        whole. Raises CapacityError."""
        return _memory(
            token_bytes=self.attention_layers * self.token_bytes,
            state_bytes=self.recurrent_layers * self.state_bytes / num_ranks,
            device_bytes=device_bytes - self.weight_bytes / num_ranks,
            host_bytes=host_bytes,
            block_size=block_size,
            snapshot_interval=snapshot_interval,
            retention="lru",
        )


def _memory(
    *,
    token_bytes: float,
    state_bytes: float,
    device_bytes: float,
    host_bytes: float,
    block_size: int,
    snapshot_interval: int,
    retention: Retention,
) -> StageMemory:
    if device_bytes <= 0:
        raise CapacityError(
            "the model's weights alone are more than a device holds: use more stages, or give num_pages and num_slots"
        )
    layers = _layer(0, Window.ATTENTION, token_bytes), _layer(1, Window.RECURRENT, state_bytes)
    room = RankCacheConfig(block_size=block_size, memory_bytes=int(device_bytes), host_memory_bytes=int(host_bytes))
    capacity = plan_capacity(layers, room, snapshot_interval=snapshot_interval, live_slots=128)
    return StageMemory(capacity.num_pages, capacity.num_slots, capacity.host_pages, capacity.host_slots, retention)


def _layer(number: int, window: Window, num_bytes: float) -> LayerCache:
    state = TensorSpec("state", (max(1, round(num_bytes / 2)),), "bfloat16")
    return LayerCache(number, f"layer {number}", "any", window, (state,))


KIMI_K3 = CachedModel(
    attention_layers=24,
    recurrent_layers=69,
    token_bytes=576 * 2,
    state_bytes=96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2,
    weight_bytes=8 * 181e9,
)
"""24 MLA layers with 512 + 64 numbers a token in bfloat16, 69 KDA layers with 96 heads of 128 × 128 in float32 and
three taps of a convolution; 4-bit experts."""
GB300_BYTES = 0.9 * 288e9
GB300_HOST_BYTES = 128 * 2**30
"""Of host cache a rank, as the paper's runs had it."""
