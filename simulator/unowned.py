"""UNSAFE, and here to be seen failing: decoupled admission without ownership, the paper's rung R2.

Ranks answer while they compute, and agree on an endpoint as they do under leases; but nobody pins the prefix, and
nobody promises room for the rest. What was agreed on is looked for when it is materialised, and may be gone by then.
"""

from __future__ import annotations

from collections.abc import Sequence as Keys
from dataclasses import dataclass
from typing import Any

from ..admission.claim import Claim
from ..admission.messages import Install, Trim, Vote
from ..admission.participant import Participant, _Waiting
from ..admission.request import Request
from ..cache.answers import NoRoom
from ..cache.escrow import Floors
from ..cache.moves import Moves
from ..cache.sequence import Sequence
from ..cache.stage_cache import StageCache
from .rank import Rank


class AdmittedRequestFailedError(Exception):
    """Every rank had agreed to the request, and this one cannot run it."""


@dataclass(frozen=True, slots=True)
class _Intent:
    request: Request
    attempt: int
    keys: Keys[bytes]
    endpoint: int
    snapshots: tuple[int, ...]


class UnownedCache(StageCache):
    """Leases and commits what was agreed on when it is first touched by LOOP. Raises AdmittedRequestFailedError."""

    def __init__(self, *sizes: Any, **more: Any) -> None:
        super().__init__(*sizes, **{**more, "floors": Floors()})
        self.intents: dict[int, _Intent] = {}

    def sequence(self, request: int) -> Sequence:
        self._take(request)
        return super().sequence(request)

    def materialise(self, request: int, upto: int, limit: int | None = None) -> Moves | None:
        self._take(request)
        return super().materialise(request, upto, limit)

    def on_device(self, request: int) -> bool:
        self._take(request)
        return super().on_device(request)

    def release(self, request: int) -> None:
        self.intents.pop(request, None)
        super().release(request)

    def _take(self, number: int) -> None:
        intent = self.intents.pop(number, None)
        if intent is None:
            return
        request, endpoint = intent.request, intent.endpoint
        reach = self.lease(number, intent.attempt, request.handle, intent.keys, request.num_tokens, endpoint)
        if reach.endpoint < endpoint:
            raise AdmittedRequestFailedError(f"of the {endpoint} tokens agreed on, {reach.endpoint} are left")
        prepared = self.prepare(number, intent.snapshots)
        if isinstance(prepared, NoRoom) or prepared.endpoint < endpoint:
            raise AdmittedRequestFailedError(f"no room for what was admitted: {prepared}")
        committed = self.commit(number, endpoint, intent.snapshots)
        if isinstance(committed, NoRoom):
            raise AdmittedRequestFailedError(f"no room for what was admitted: {committed}")


class UnownedParticipant(Participant):
    """Votes on what the index says, and leaves the cache alone."""

    def _lease(self, waiting: _Waiting, install: Install) -> Vote:
        return self._commit(waiting, install, install.candidate)

    def _commit(self, waiting: _Waiting, ask: Install | Trim, asked: int) -> Vote:
        cache = self._cache
        assert isinstance(cache, UnownedCache)
        reach = self._hints(waiting.keys, asked)
        if reach.endpoint < asked:
            return Vote(ask.request, ask.attempt, asked, reach.endpoint, False, "", reach.limited_by, cache.released)
        cache.intents[ask.request] = _Intent(waiting.request, ask.attempt, waiting.keys, asked, ask.snapshots)
        self._orders.append(Claim(waiting.request, ask.attempt, asked))
        return Vote(ask.request, ask.attempt, asked, asked, True, released=cache.released)


class Unowned(Rank):
    cache_type = UnownedCache
    participant_type = UnownedParticipant

    def agreed(self, request: int) -> tuple[int, int, tuple[int, ...]]:
        assert isinstance(self.cache, UnownedCache)
        intent = self.cache.intents.get(request)
        return super().agreed(request) if intent is None else (intent.attempt, intent.endpoint, intent.snapshots)
