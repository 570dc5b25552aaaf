"""What the stage cache answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """A rank's hint: reusable tokens by all of its windows. `limited_by` names the window that set an endpoint below
    the limit asked for (empty: nothing did)."""

    endpoint: int
    limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The prefix up to `endpoint` tokens is pinned, and the whole rest is held."""

    endpoint: int


@dataclass(frozen=True, slots=True)
class Short:
    """The candidate is out of reach; `endpoint` tokens, fewer, are not. Nothing is held."""

    endpoint: int


@dataclass(frozen=True, slots=True)
class NoRoom:
    """`window` can give `available` pages or slots of the `needed`. Nothing is held, nothing was evicted."""

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
