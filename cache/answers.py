"""What the stage cache answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """A rank's hint: reusable tokens by all of its windows. `limited_by` names the window that set an endpoint below
    the limit asked for (empty: nothing did)."""

    endpoint: int
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Leased:
    """The prefix up to `endpoint` tokens is pinned. `limited_by` names the window that set an endpoint below the one
    asked for (empty: nothing did)."""

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
class Committed:
    """Lease and escrow are final at `endpoint` tokens."""

    endpoint: int


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
