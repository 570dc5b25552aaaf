"""What WAVE hands to LOOP about the requests that its rank has committed."""

from __future__ import annotations

from msgspec import Struct

from .request import Request


class Claim(Struct, frozen=True, tag="claim"):
    """Lease and escrow are committed at `endpoint`. Handed over before the vote leaves, so that no wave can name a
    claim that LOOP does not know."""

    request: Request
    attempt: int
    endpoint: int


class Grant(Struct, frozen=True, tag="grant"):
    """Every rank has committed the attempt: LOOP may begin to materialise it. A wave may have done so before."""

    request: int
    attempt: int


class Retract(Struct, frozen=True, tag="retract"):
    """The attempt was released before it was admitted; no wave will name it."""

    request: int
    attempt: int


class Drop(Struct, frozen=True, tag="drop"):
    """An admitted request ends once wave `after_wave` has run here (-1: at once). When it is sealed by then, its
    handle ends instead."""

    request: int
    after_wave: int
    handle: str


Order = Claim | Grant | Retract | Drop
