"""What can be asked of rank 0 about handles and caches."""

from __future__ import annotations

import logging

from ..engine.messages import KvGet, KvRelease, KvRenew, Manifest, ResetCache
from .engine_client import EngineClient
from .errors import InternalError

log = logging.getLogger(__name__)


async def manifest(client: EngineClient, handle: str) -> Manifest:
    """Errors: `NotFoundError`, `GoneError`, `ConflictError` (not finished), `UnavailableError`, `TimedOutError`."""
    reply = await client.call(lambda call: KvGet(call, handle))
    if not isinstance(reply.body, Manifest):
        log.error("rank 0 answered a KvGet without a manifest")
        raise InternalError
    return reply.body


async def renew(client: EngineClient, handle: str, ttl_s: float) -> None:
    await client.call(lambda call: KvRenew(call, handle, ttl_s))


async def release(client: EngineClient, handle: str) -> None:
    await client.call(lambda call: KvRelease(call, handle))


async def reset_cache(client: EngineClient) -> None:
    await client.call(ResetCache)
