"""LOOP's side of a rank's admissions: what it may materialise and run, and what ends after which wave."""

from __future__ import annotations

import heapq

from ..cache.stage_cache import StageCache
from .claim import Claim, Drop, Grant, Order, Retract
from .errors import RoundError
from .request import Request


class Claims:
    """The requests whose lease and escrow this rank has committed, until they are sealed or dropped. Owner: LOOP, which
    takes the participant's orders between waves and, when a wave has run here, calls in this order: the cache's
    `publish` and `seal`, then `finished` for each sealed request, then `wave_completed`.

    Raises RoundError, which ends the epoch, when an order or a wave does not fit what came before it.
    """

    def __init__(self, cache: StageCache) -> None:
        self._cache = cache
        self._claims: dict[int, Claim] = {}
        self._granted: dict[int, Claim] = {}
        """Admitted ones whose prefix is not known to be on the device, in the order of their grants."""
        self._ungranted: set[int] = set()
        """Claims whose Grant has not come, sealed ones included: waves may be faster than it."""
        self._draining: list[tuple[int, int, str]] = []
        """(wave, request, handle): what ends once the wave has run here, as a heap."""
        self._wave = -1

    def __len__(self) -> int:
        """Claims that are neither sealed nor ended."""
        return len(self._claims)

    def take(self, order: Order) -> None:
        """Carries out what WAVE has decided; orders in the order in which they were given."""
        match order:
            case Claim():
                self._add(order)
            case Grant():
                self._grant(order)
            case Retract():
                self._retract(order)
            case Drop():
                self._drop(order)

    def find(self, request: int) -> Claim | None:
        """The claim that is neither sealed nor ended, granted or not."""
        return self._claims.get(request)

    def request(self, request: int) -> Request:
        """Its prompt; RoundError when there is no such claim."""
        return self._held(request).request

    def granted(self) -> tuple[Claim, ...]:
        """Admitted claims whose prefix is to be brought onto the device, oldest first; none that is about to end."""
        return tuple(self._granted.values())

    def on_device(self, request: int) -> None:
        """The prefix is there: `granted` lists it no more."""
        self._granted.pop(request, None)

    def finished(self, request: int) -> None:
        """The request has been sealed here, under its handle: it is no claim any more."""
        self._held(request)
        self._forget(request)

    def wave_completed(self, wave: int) -> bool:
        """The wave has run here, and what it computed is published. Ends what only waited for it; True when there was
        anything."""
        if wave <= self._wave:
            raise RoundError(f"wave {wave} has run here, though wave {self._wave} had before it")
        self._wave = wave
        ended = False
        while self._draining and self._draining[0][0] <= wave:
            _, request, handle = heapq.heappop(self._draining)
            self._end(request, handle)
            ended = True
        return ended

    def _add(self, claim: Claim) -> None:
        request = claim.request.id
        if request in self._claims or request in self._ungranted:
            raise RoundError(f"attempt {claim.attempt} of request {request} is claimed while another one is")
        self._claims[request] = claim
        self._ungranted.add(request)

    def _grant(self, grant: Grant) -> None:
        if grant.request not in self._ungranted:
            raise RoundError(f"{grant}, where nothing waits to be granted")
        claim = self._claims.get(grant.request)
        if claim is not None and claim.attempt != grant.attempt:
            raise RoundError(f"{grant}, where attempt {claim.attempt} is claimed")
        self._ungranted.remove(grant.request)
        if claim is not None:  # Else the waves have been faster, and it is sealed.
            self._granted[grant.request] = claim

    def _retract(self, retract: Retract) -> None:
        claim = self._claims.get(retract.request)
        if claim is None or claim.attempt != retract.attempt or retract.request not in self._ungranted:
            raise RoundError(f"{retract}, where attempt {claim and claim.attempt} is claimed")
        self._ungranted.remove(retract.request)
        self._forget(retract.request)

    def _drop(self, drop: Drop) -> None:
        if drop.request in self._ungranted:
            raise RoundError(
                f"request {drop.request} ends after wave {drop.after_wave}, though it was never granted here"
            )
        if drop.after_wave <= self._wave:
            self._end(drop.request, drop.handle)
        else:
            # Waves that name it still come, and bring what they need with them; more would be wasted.
            self._granted.pop(drop.request, None)
            heapq.heappush(self._draining, (drop.after_wave, drop.request, drop.handle))

    def _end(self, request: int, handle: str) -> None:
        """Whatever is held here goes: a claim, or, where it was sealed before the end came, its handle."""
        if request in self._claims:
            self._forget(request)
            self._cache.release(request)
        else:
            self._cache.release_handle(handle)

    def _held(self, request: int) -> Claim:
        claim = self._claims.get(request)
        if claim is None:
            raise RoundError(f"request {request} is not claimed here, or has ended")
        return claim

    def _forget(self, request: int) -> None:
        del self._claims[request]
        self._granted.pop(request, None)
