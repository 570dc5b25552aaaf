"""What the stage cache answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """Reusable tokens, by all windows of the rank: what it could reuse when asked for a hint, what it has pinned when
    asked for a lease. `limited_by` names the window that set an endpoint below the limit asked for (empty: nothing
    did)."""

    endpoint: int
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The suffix beyond `endpoint` is promised: `free` of its pages and slots are free now, for `offload` a victim will
    move to the host tier, for `evict` one will leave the cache."""

    endpoint: int
    free: int
    offload: int
    evict: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """`window` can give `available` pages or slots of the `needed`, those that must stay in reserve for what runs not
    counted. What was held before is held still; nothing was evicted."""

    window: str
    needed: int
    available: int


@dataclass(frozen=True, slots=True)
class Pull:
    """An open pull: these pages, in block order, and this live slot (-1: none) stay as they are until it is closed."""

    id: int
    pages: tuple[int, ...]
    slot: int
    num_tokens: int
