"""Every rank's side of the rounds plane: applies the leader's decisions to this rank's caches."""

import heapq
from dataclasses import dataclass

from ..cache.answers import Claimed, NoRoom, Short
from ..cache.keys import KeySpace
from ..cache.stage_cache import StageCache
from .errors import RoundError
from .messages import Cancel, Hint, Install, Probe, RoundDown, RoundUp, Verdict, Vote
from .request import Request
from .snapshot_plan import reuse_limit


@dataclass(slots=True)
class _Known:
    """One announced request. `vote` is this rank's answer to the newest install, and `held` whether what it committed
    is held still."""

    request: Request
    keys: tuple[bytes, ...]
    vote: Vote | None = None
    held: bool = False


class Participant:
    """The request table, and the walks and claims that rounds ask for. Owner: the rank's LOOP thread, which calls it
    between waves and, when a wave has run here, in this order: the cache's `publish` and `seal`, then `finished` for
    each sealed request, then `wave_completed`.

    Raises RoundError, which ends the epoch, when the leader breaks the protocol.
    """

    def __init__(self, rank: int, epoch: int, cache: StageCache, key_space: KeySpace, block_size: int) -> None:
        self._rank, self._epoch = rank, epoch
        self._cache, self._key_space, self._block_size = cache, key_space, block_size
        self._known: dict[int, _Known] = {}
        self._ids: dict[str, int] = {}
        """Handles of the requests in the table and of the sealed ones."""
        self._sealed: dict[int, str] = {}
        self._released_early: set[str] = set()
        self._draining: list[tuple[int, int]] = []
        """(wave, request): the cancelled requests that end once the wave has run here, as a heap."""
        self._round = 0
        self._wave = -1
        self._reported = 0

    def apply(self, down: RoundDown) -> RoundUp:
        """Carries out one round, walks included, and answers it."""
        if down.epoch != self._epoch:
            raise RoundError(f"a round of epoch {down.epoch} on rank {self._rank}, which is in epoch {self._epoch}")
        if down.round != self._round + 1:
            raise RoundError(f"round {down.round} on rank {self._rank}, which has applied round {self._round}")
        self._round = down.round
        for request in down.announces:
            self._announce(request)
        hints = tuple(self._probe(probe) for probe in down.probes)
        votes = tuple(self._install(install) for install in down.installs)
        for verdict in down.verdicts:
            self._conclude(verdict)
        for cancel in down.cancels:
            self._cancel(cancel)
        for handle in down.releases:
            self._release(handle)
        if down.reset:
            self._cache.reset()
        return self._answer(hints, votes)

    def report(self) -> RoundUp | None:
        """An answer that nobody asked for: this rank's capacity has grown since the last one, and a request that
        lacked room may be waiting for it. Ask after every round and every wave."""
        return None if self._cache.released == self._reported else self._answer((), ())

    def request(self, request: int) -> Request:
        """What was announced under this number; RoundError when nothing was, or when it has ended here."""
        return self._find(request).request

    def finished(self, request: int) -> None:
        """The request has been sealed here, under its handle: its prompt is no longer needed."""
        handle = self._find(request).request.handle
        del self._known[request]
        if handle in self._released_early:
            self._released_early.remove(handle)
            del self._ids[handle]
        else:
            self._sealed[request] = handle

    def wave_completed(self, wave: int) -> bool:
        """The wave has run here. Ends the cancelled requests that it named last; True when there were any."""
        self._wave = wave
        ended = False
        while self._draining and self._draining[0][0] <= wave:
            self._end(heapq.heappop(self._draining)[1])
            ended = True
        return ended

    @property
    def known(self) -> int:
        """Requests announced and neither sealed nor ended here."""
        return len(self._known)

    @property
    def sealed(self) -> int:
        """Requests sealed here whose handles have not ended."""
        return len(self._sealed)

    def _announce(self, request: Request) -> None:
        if request.id in self._known or request.handle in self._ids:
            raise RoundError(f"request {request.id} was announced twice on rank {self._rank}")
        keys = self._key_space.block_keys(request.tokens, self._block_size, request.adapter, request.salt)
        self._known[request.id] = _Known(request, keys)
        self._ids[request.handle] = request.id

    def _probe(self, probe: Probe) -> Hint:
        known = self._find(probe.request)
        reach = self._cache.probe(known.keys, reuse_limit(known.request.num_tokens, self._block_size))
        return Hint(probe.request, probe.attempt, reach.endpoint, reach.limited_by)

    def _install(self, install: Install) -> Vote:
        known = self._find(install.request)
        if known.vote is not None and known.vote.attempt == install.attempt:
            return known.vote
        if known.held:
            raise RoundError(f"{install} on rank {self._rank}, where an earlier attempt is still held")
        vote = known.vote = self._claim(known, install)
        known.held = vote.committed
        return vote

    def _claim(self, known: _Known, install: Install) -> Vote:
        # Read before the walk: room that comes while it runs must count as having come after it.
        released = self._cache.released
        request = known.request
        outcome = self._cache.claim(
            request.id,
            install.attempt,
            request.handle,
            known.keys,
            request.num_tokens,
            install.candidate,
            install.snapshots,
        )
        match outcome:
            case Claimed():
                return Vote(request.id, install.attempt, outcome.endpoint, True, released=released)
            case Short():
                reach = self._cache.probe(known.keys, install.candidate)
                limited_by = reach.limited_by
                return Vote(request.id, install.attempt, outcome.endpoint, False, "", limited_by, released)
            case NoRoom():
                return Vote(request.id, install.attempt, 0, False, outcome.window, "", released)

    def _conclude(self, verdict: Verdict) -> None:
        if verdict.request in self._sealed:  # The waves have been faster than the verdict.
            return
        known = self._find(verdict.request)
        vote = known.vote
        if vote is None or vote.attempt != verdict.attempt:
            raise RoundError(f"{verdict} on rank {self._rank}, which has voted {vote}")
        if not verdict.admitted:
            self._cache.release(verdict.request)
            known.held = False
        elif not known.held or vote.endpoint != verdict.endpoint:
            raise RoundError(f"{verdict} on rank {self._rank}, which has voted {vote}")

    def _cancel(self, cancel: Cancel) -> None:
        if cancel.after_wave <= self._wave:
            self._end(cancel.request)
        else:
            heapq.heappush(self._draining, (cancel.after_wave, cancel.request))

    def _end(self, request: int) -> None:
        """Whatever the request holds here goes: it may have been sealed before the cancellation came."""
        handle = self._sealed.get(request)
        if handle is not None:
            self._release(handle)
            return
        known = self._find(request)
        self._cache.release(request)
        del self._known[request], self._ids[known.request.handle]

    def _release(self, handle: str) -> None:
        request = self._ids.get(handle)
        if request is None:
            raise RoundError(f"the release of a handle that rank {self._rank} does not have")
        self._cache.release_handle(handle)
        if request in self._known:  # Its last wave has not run here yet; the cache drops it when it is sealed.
            self._released_early.add(handle)
        else:
            del self._sealed[request], self._ids[handle]

    def _find(self, request: int) -> _Known:
        known = self._known.get(request)
        if known is None:
            raise RoundError(f"request {request} is not known on rank {self._rank}")
        return known

    def _answer(self, hints: tuple[Hint, ...], votes: tuple[Vote, ...]) -> RoundUp:
        self._reported = self._cache.released
        return RoundUp(self._epoch, self._rank, self._round, hints, votes, self._reported, self._cache.gauges())
