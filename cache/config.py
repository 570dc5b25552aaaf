"""How much a stage caches, on its device and on its host, and how memory is split between pages and slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from .errors import CapacityError
from .eviction import Retention
from .layout import LayerCache, bytes_per_state, bytes_per_token

MIN_PAGES = 2
"""A planned attention window holds at least one full block and one partly filled one."""
MIN_SLOTS = 3
"""A planned recurrent window holds at least a live state, the snapshot it resumes from and one that it captures."""


@dataclass(frozen=True, slots=True)
class PerRank:
    """Marks a field that takes one number for all ranks, or one for each rank, in order."""

    at_least: int


PerRankCount = int | tuple[int, ...]


class CacheConfig(BaseModel):
    """The caches of a group. Every stage has the same `block_size`; sizes may differ from rank to rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block_size: int = Field(default=64, ge=1, le=1024, description="Tokens in a block (B); a power of two.")
    memory_bytes: Annotated[PerRankCount, PerRank(1)] = Field(
        default=1 << 30, description="Bytes of device memory for a stage's pages and slots."
    )
    num_pages: Annotated[PerRankCount | None, PerRank(1)] = Field(
        default=None, description="Attention pages of a stage, instead of what memory allows."
    )
    num_slots: Annotated[PerRankCount | None, PerRank(1)] = Field(
        default=None, description="Recurrent slots of a stage, instead of what memory allows."
    )
    host_memory_bytes: Annotated[PerRankCount, PerRank(0)] = Field(
        default=0, description="Bytes of host memory for a stage's offloaded pages and snapshots; 0 is no host tier."
    )
    host_pages: Annotated[PerRankCount | None, PerRank(0)] = Field(
        default=None, description="Attention pages of a stage's host tier, instead of what host memory allows."
    )
    host_slots: Annotated[PerRankCount | None, PerRank(0)] = Field(
        default=None, description="Snapshots of a stage's host tier, instead of what host memory allows."
    )
    snapshot_retention: Retention = Field(
        default="lru",
        description="which snapshots go first: lru, the least recently used; cost, those that would cost the fewest "
        "tokens to compute again, the older first",
    )

    @field_validator("block_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"block_size must be a power of two, not {value}")
        return value

    @field_validator(
        "memory_bytes", "num_pages", "num_slots", "host_memory_bytes", "host_pages", "host_slots", mode="before"
    )
    @classmethod
    def _one_or_one_a_rank(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return None
        parts: list[Any] = value.split(",") if isinstance(value, str) else value if _is_list(value) else [value]
        try:
            numbers = tuple(int(part) for part in parts if not isinstance(part, float | bool))
        except (TypeError, ValueError):
            numbers = ()
        if not numbers or len(numbers) != len(parts):
            raise ValueError("must be an integer, or one for each rank, separated by commas")
        least = _least(cls, str(info.field_name))
        if min(numbers) < least:
            raise ValueError(f"must be at least {least}")
        return numbers[0] if len(numbers) == 1 else numbers

    def check_ranks(self, pp: int) -> None:
        """Raises ValueError for a field with another number of values than there are ranks."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != pp:
                raise ValueError(f"{name} has {len(value)} values, but there are {pp} ranks (pp)")

    def of_rank(self, rank: int) -> RankCacheConfig:
        """What applies to one rank."""

        def one(value: PerRankCount) -> int:
            return value[rank] if isinstance(value, tuple) else value

        def maybe(value: PerRankCount | None) -> int | None:
            return None if value is None else one(value)

        return RankCacheConfig(
            block_size=self.block_size,
            memory_bytes=one(self.memory_bytes),
            num_pages=maybe(self.num_pages),
            num_slots=maybe(self.num_slots),
            host_memory_bytes=one(self.host_memory_bytes),
            host_pages=maybe(self.host_pages),
            host_slots=maybe(self.host_slots),
        )


@dataclass(frozen=True, slots=True)
class RankCacheConfig:
    """The sizes of one rank's caches; see the fields of the same names in `CacheConfig`."""

    block_size: int
    memory_bytes: int
    num_pages: int | None = None
    num_slots: int | None = None
    host_memory_bytes: int = 0
    host_pages: int | None = None
    host_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages and slots of one stage; 0 where the stage has no layers of that kind, or no host tier."""

    num_pages: int
    num_slots: int
    host_pages: int = 0
    host_slots: int = 0


def plan_capacity(
    layers: tuple[LayerCache, ...],
    config: RankCacheConfig,
    *,
    snapshot_interval: int = 8192,
    live_slots: int = 16,
) -> Capacity:
    """Pages and slots for a stage with these `layers`.

    A stage with one window gives it all of `memory_bytes`. Where there are both, slots for `live_slots` running
    requests come first (but no more than half of the memory), and the rest is split so that both windows cover the
    same number of tokens at one snapshot every `snapshot_interval` tokens: neither outlives the other's use. What
    rounding leaves over goes to pages. A count that `config` names is taken as it is, without regard to memory, and
    its bytes are taken off what is left for the other window. Host memory is divided between the two as the device's.

    Raises CapacityError, which names the field to change, when a window cannot have `MIN_PAGES` or `MIN_SLOTS`.
    """
    token_bytes, state_bytes = bytes_per_token(layers), bytes_per_state(layers)
    page_bytes = token_bytes * config.block_size
    pages = config.num_pages if page_bytes else 0
    slots = config.num_slots if state_bytes else 0
    memory = config.memory_bytes - (pages or 0) * page_bytes - (slots or 0) * state_bytes
    if slots is None:
        slots = max(0, memory) // state_bytes
        if pages is None:
            slots = _balanced_slots(memory, token_bytes, state_bytes, snapshot_interval, live_slots)
        if slots < MIN_SLOTS:
            raise CapacityError(_too_small(config, "num_pages", pages, MIN_SLOTS, "recurrent slots", state_bytes))
        memory -= slots * state_bytes
    if pages is None:
        pages = max(0, memory) // page_bytes
        if pages < MIN_PAGES:
            raise CapacityError(
                _too_small(config, "num_slots", config.num_slots, MIN_PAGES, "attention pages", page_bytes)
            )
    return Capacity(
        pages, slots, *_host_places(config, pages * page_bytes, page_bytes, slots * state_bytes, state_bytes)
    )


def _host_places(
    config: RankCacheConfig, pages_bytes: int, page_bytes: int, slots_bytes: int, state_bytes: int
) -> tuple[int, int]:
    """Pages and snapshots of the host tier, when the device's take so many bytes."""
    pages = config.host_pages if page_bytes else 0
    slots = config.host_slots if state_bytes else 0
    memory = max(0, config.host_memory_bytes - (pages or 0) * page_bytes - (slots or 0) * state_bytes)
    if slots is None:
        share = memory if pages is not None else memory * slots_bytes // (pages_bytes + slots_bytes)
        slots = share // state_bytes
        memory -= slots * state_bytes
    return (memory // page_bytes if pages is None else pages), slots


def _balanced_slots(memory: int, token_bytes: int, state_bytes: int, interval: int, live_slots: int) -> int:
    """Slots of a stage with both windows; see `plan_capacity`."""
    live = min(live_slots, memory // 2 // state_bytes)
    rest = memory - live * state_bytes
    # T tokens take T * token_bytes + (T / interval) * state_bytes; solved for T / interval.
    return max(MIN_SLOTS, live + rest // (token_bytes * interval + state_bytes))


def _too_small(config: RankCacheConfig, other: str, taken: int | None, least: int, what: str, each: int) -> str:
    also = f" beside {other}={taken}" if taken else ""
    return (
        f"memory_bytes={config.memory_bytes} is too small{also} for the least of {least} {what} "
        f"of {each} bytes on this stage"
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _least(config: type[BaseModel], name: str) -> int:
    return next(mark.at_least for mark in config.model_fields[name].metadata if isinstance(mark, PerRank))
