"""What tests do with a stage cache again and again."""

from __future__ import annotations

from wavepp.cache.answers import Prepared, Reach
from wavepp.cache.layout import Window
from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache

from .side_by_side import BLOCK, chain

BOTH = frozenset(Window)
ATTENTION, RECURRENT = frozenset({Window.ATTENTION}), frozenset({Window.RECURRENT})


def lease(cache: StageCache, request: int, prompt: str, tail: int = 0, candidate: int = 0) -> Reach:
    """A block a letter and `tail` tokens; request 7 has handle h7."""
    keys = chain(prompt)
    return cache.lease(request, 0, f"h{request}", keys, len(keys) * BLOCK + tail, candidate)


def admit(
    cache: StageCache,
    request: int,
    prompt: str,
    tail: int = 0,
    candidate: int = 0,
    snapshots: tuple[int, ...] = (),
) -> None:
    """Leases, prepares and commits at the candidate."""
    assert lease(cache, request, prompt, tail, candidate) == Reach(candidate)
    assert isinstance(cache.prepare(request, snapshots), Prepared)
    assert cache.commit(request, candidate, snapshots) == Reach(candidate)


def materialise(cache: StageCache, request: int, upto: int | None = None, limit: int | None = None) -> list[Moves]:
    """All steps up to `upto` tokens (None: the whole prompt); those that copy something."""
    tokens = cache.sequence(request).num_tokens if upto is None else upto
    steps: list[Moves] = []
    while (moves := cache.materialise(request, tokens, limit)) is not None:
        steps.append(moves)
    return [moves for moves in steps if moves]


def compute(cache: StageCache, request: int, upto: int | None = None) -> None:
    tokens = cache.sequence(request).num_tokens if upto is None else upto
    materialise(cache, request, tokens)
    cache.resumed(request)
    cache.publish(request, tokens)


def leave(cache: StageCache, request: int, prompt: str, tail: int = 0, snapshots: tuple[int, ...] = ()) -> None:
    """Computes a prompt from nothing, publishes all of it and drops it: what it leaves is cached."""
    admit(cache, request, prompt, tail, 0, snapshots)
    compute(cache, request)
    cache.release(request)
