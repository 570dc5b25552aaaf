"""How much a stage caches, and how its memory is split between attention pages and recurrent slots."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .errors import CapacityError
from .layout import LayerCache, bytes_per_state, bytes_per_token

MIN_PAGES = 2
"""A planned attention window holds at least one full block and one partly filled one."""
MIN_SLOTS = 3
"""A planned recurrent window holds at least a live state, the snapshot it resumes from and one that it captures."""


class CacheConfig(BaseModel):
    """The cache of one stage. Every stage of a group must have the same `block_size`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    block_size: int = Field(default=64, ge=1, le=1024, description="Tokens in a block (B); a power of two.")
    memory_bytes: int = Field(
        default=1 << 30, ge=1, description="Bytes of device memory for a stage's pages and slots."
    )
    num_pages: int | None = Field(
        default=None, ge=1, description="Attention pages of a stage, instead of what memory allows."
    )
    num_slots: int | None = Field(
        default=None, ge=1, description="Recurrent slots of a stage, instead of what memory allows."
    )

    @field_validator("block_size")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"block_size must be a power of two, not {value}")
        return value


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages and slots of one stage; 0 where the stage has no layers of that kind."""

    num_pages: int
    num_slots: int


def plan_capacity(
    layers: tuple[LayerCache, ...],
    config: CacheConfig,
    *,
    snapshot_interval: int = 8192,
    live_slots: int = 16,
) -> Capacity:
    """Pages and slots for a stage with these `layers`.

    A stage with one window gives it all of `memory_bytes`. Where there are both, slots for `live_slots` running
    requests come first (but no more than half of the memory), and the rest is split so that both windows cover the
    same number of tokens at one snapshot every `snapshot_interval` tokens: neither outlives the other's use. What
    rounding leaves over goes to pages. A count that `config` names is taken as it is, without regard to memory, and
    its bytes are taken off what is left for the other window.

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
    return Capacity(num_pages=pages, num_slots=slots)


def _balanced_slots(memory: int, token_bytes: int, state_bytes: int, interval: int, live_slots: int) -> int:
    """Slots of a stage with both windows; see `plan_capacity`."""
    live = min(live_slots, memory // 2 // state_bytes)
    rest = memory - live * state_bytes
    # T tokens take T * token_bytes + (T / interval) * state_bytes; solved for T / interval.
    return max(MIN_SLOTS, live + rest // (token_bytes * interval + state_bytes))


def _too_small(config: CacheConfig, other: str, taken: int | None, least: int, what: str, each: int) -> str:
    also = f" beside {other}={taken}" if taken else ""
    return (
        f"memory_bytes={config.memory_bytes} is too small{also} for the least of {least} {what} "
        f"of {each} bytes on this stage"
    )
