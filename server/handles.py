"""What can be asked of rank 0 about handles and caches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ..engine.messages import KvGet, KvRelease, KvRenew, Manifest, Reply, ResetCache, ToRankZero
from .errors import InternalError

log = logging.getLogger(__name__)


class Caller(Protocol):
    """Asks rank 0 something under a fresh number. Errors: see `EngineClient.call`."""

    async def call(self, make: Callable[[int], ToRankZero], timeout_s: float | None = None) -> Reply: ...


async def manifest(rank_zero: Caller, handle: str) -> Manifest:
    """Errors: `NotFoundError`, `GoneError`, `ConflictError` (not finished), `UnavailableError`, `TimedOutError`."""
    return _manifest(await rank_zero.call(lambda call: KvGet(call, handle)))


async def renew(rank_zero: Caller, handle: str, ttl_s: float) -> float:
    """The seconds that the handle now has to live: `ttl_s`, or more where it had more. Errors: as `manifest`."""
    return _manifest(await rank_zero.call(lambda call: KvRenew(call, handle, ttl_s))).expires_in_s


async def release(rank_zero: Caller, handle: str) -> None:
    """Errors: as `manifest`."""
    await rank_zero.call(lambda call: KvRelease(call, handle))


async def reset_cache(rank_zero: Caller) -> None:
    await rank_zero.call(ResetCache)


def _manifest(reply: Reply) -> Manifest:
    if not isinstance(reply.body, Manifest):
        log.error("rank 0 answered a call about a handle without its manifest")
        raise InternalError
    return reply.body
