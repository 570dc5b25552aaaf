"""Every rank's side of the rounds plane: applies the leader's decisions to this rank's caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ..cache.answers import NoRoom, Reach
from ..cache.errors import AttemptConflict, DuplicateHandle
from ..cache.stage_cache import StageCache
from .claim import Claim, Drop, Grant, Order, Retract
from .errors import RoundError
from .messages import BLOCKED, Cancel, Hint, Install, Probe, RoundDown, RoundUp, Trim, Verdict, Vote
from .prompt_keys import PromptKeys
from .request import Request
from .snapshot_plan import reuse_limit

_REFUSED = (AttemptConflict, DuplicateHandle, ValueError)
"""How the cache takes what it is asked for when the leader should not have asked for it."""

Hints = Callable[[Sequence[bytes], int], Reach]
"""(keys, limit in tokens) → how much of the prefix this rank could reuse, owning nothing."""

Spans = Callable[..., AbstractContextManager[object]]
"""(name, **what) → a context around one walk with all that it promises, for whoever wants to see when it happened."""


@dataclass(slots=True)
class _Attempt:
    """The newest attempt that was installed, until its verdict. `votes` are by the endpoint that was asked for."""

    number: int
    newest: Vote
    votes: dict[int, Vote] = field(default_factory=dict)

    def take(self, vote: Vote) -> Vote:
        self.newest = self.votes[vote.asked] = vote
        return vote


@dataclass(slots=True)
class _Waiting:
    """One request that was announced and not admitted. `over` is the newest attempt that has had its verdict."""

    request: Request
    keys: tuple[bytes, ...]
    attempt: _Attempt | None = None
    over: int = -1


class Participant:
    """The table of requests that are being admitted, and the hints, leases and escrows that rounds ask for. Owner: one
    thread, WAVE under leases and LOOP in lockstep. LOOP learns what was decided from the orders alone: hand
    `take_orders` over before the answer is sent, so that no wave names a claim that LOOP does not have.

    Raises RoundError, which ends the epoch, when the leader breaks the protocol.
    """

    def __init__(
        self,
        rank: int,
        epoch: int,
        cache: StageCache,
        keys: PromptKeys,
        block_size: int,
        hints: Hints,
        spans: Spans = lambda _, **__: nullcontext(),
    ) -> None:
        """`hints` is the cache's `hint` (the index alone) or its `probe` (a walk)."""
        self._spans = spans
        self._rank, self._epoch = rank, epoch
        self._cache, self._keys, self._block_size, self._hints = cache, keys, block_size, hints
        self._waiting: dict[int, _Waiting] = {}
        self._admitted: dict[int, str] = {}
        """Handles of the admitted requests, until a round ends them, by request."""
        self._handles: dict[str, int] = {}
        """Requests by handle, of both tables."""
        self._lacking: set[int] = set()
        """Requests that found too little room here, until their verdict: nobody may be served before them."""
        self._orders: list[Order] = []
        self._round = 0
        self._reported = 0

    @property
    def known(self) -> int:
        """Requests that were announced and are neither admitted nor ended."""
        return len(self._waiting)

    @property
    def admitted(self) -> int:
        """Requests that were admitted, and whose handles no round has ended."""
        return len(self._admitted)

    def apply(self, down: RoundDown) -> RoundUp:
        """Carries out one round and answers it. One that was applied before changes nothing; its questions are answered
        as they were then, where they are still open."""
        if down.epoch != self._epoch:
            raise self._breach(f"a round of epoch {down.epoch} in epoch {self._epoch}")
        if down.round <= self._round:
            return self._answer((), self._votes_again(down))
        if down.round != self._round + 1:
            raise self._breach(f"round {down.round} after round {self._round}")
        self._round = down.round
        for request in down.announces:
            self._announce(request)
        hints = tuple(self._probe(probe) for probe in down.probes)
        for verdict in down.verdicts:
            self._conclude(verdict)
        votes = [self._install(install) for install in down.installs]
        votes.extend(self._trim(trim) for trim in down.trims)
        for cancel in down.cancels:
            self._cancel(cancel)
        for handle in down.releases:
            self._release(handle)
        if down.reset:
            self._cache.reset()
        return self._answer(hints, tuple(votes))

    def report(self) -> RoundUp | None:
        """An answer that nobody asked for: this rank's capacity has grown since the last one, and a request that
        lacked room may be waiting for it. Ask after whatever may have freed something."""
        return None if self._cache.released == self._reported else self._answer((), ())

    def take_orders(self) -> list[Order]:
        """What LOOP must do, in order; each is handed out once."""
        orders, self._orders = self._orders, []
        return orders

    def _announce(self, request: Request) -> None:
        if request.id in self._waiting or request.id in self._admitted:
            raise self._breach(f"request {request.id} was announced twice")
        if request.handle in self._handles:
            raise self._breach(f"request {request.id} was announced with the handle of {self._handles[request.handle]}")
        self._waiting[request.id] = _Waiting(request, self._keys.of(request))
        self._handles[request.handle] = request.id

    def _probe(self, probe: Probe) -> Hint:
        waiting = self._find(probe.request, probe)
        reach = self._hints(waiting.keys, reuse_limit(waiting.request.num_tokens, self._block_size))
        return Hint(probe.request, probe.attempt, reach.endpoint, reach.limited_by)

    def _install(self, install: Install) -> Vote:
        waiting = self._find(install.request, install)
        attempt = waiting.attempt
        if attempt is not None:
            vote = attempt.votes.get(install.candidate)
            if attempt.number != install.attempt or vote is None:
                raise self._breach(f"{install}, while {attempt.newest} is open")
            return vote
        if install.attempt <= waiting.over:
            raise self._breach(f"{install}, though attempt {waiting.over} is over")
        try:
            with self._spans("install", request=install.request, attempt=install.attempt, candidate=install.candidate):
                vote = self._lease(waiting, install)
        except _REFUSED as error:
            raise self._breach(f"{install} cannot be carried out: {error}") from error
        waiting.attempt = _Attempt(install.attempt, vote)
        return waiting.attempt.take(vote)

    def _lease(self, waiting: _Waiting, install: Install) -> Vote:
        request, asked, cache = waiting.request, install.candidate, self._cache
        if self._lacking:
            return Vote(request.id, install.attempt, asked, 0, False, BLOCKED, "", cache.released)
        released = cache.released
        cache.lease(request.id, install.attempt, request.handle, waiting.keys, request.num_tokens, asked)
        prepared = cache.prepare(request.id, install.snapshots)
        if isinstance(prepared, NoRoom):
            return self._refuse(install, asked, prepared, released)
        if prepared.endpoint < asked:
            reach = Reach(prepared.endpoint, cache.sequence(request.id).limited_by)
            return _lower(install, asked, reach, cache.released)
        return self._commit(waiting, install, asked)

    def _trim(self, trim: Trim) -> Vote:
        waiting = self._find(trim.request, trim)
        attempt = waiting.attempt
        if attempt is None or attempt.number != trim.attempt:
            raise self._breach(f"{trim}, while {attempt and attempt.newest} is open")
        vote = attempt.votes.get(trim.endpoint)
        if vote is not None:
            return vote
        newest = attempt.newest
        if newest.committed or newest.reason or trim.endpoint > newest.endpoint:
            raise self._breach(f"{trim}, which has voted {newest}")
        try:
            with self._spans("trim", request=trim.request, attempt=trim.attempt, endpoint=trim.endpoint):
                return attempt.take(self._commit(waiting, trim, trim.endpoint))
        except _REFUSED as error:
            raise self._breach(f"{trim} cannot be carried out: {error}") from error

    def _commit(self, waiting: _Waiting, ask: Install | Trim, asked: int) -> Vote:
        released = self._cache.released
        reach = self._cache.commit(ask.request, asked, ask.snapshots)
        if isinstance(reach, NoRoom):
            return self._refuse(ask, asked, reach, released)
        if reach.endpoint < asked:
            return _lower(ask, asked, reach, self._cache.released)
        self._orders.append(Claim(waiting.request, ask.attempt, asked))
        return Vote(ask.request, ask.attempt, asked, asked, True, released=self._cache.released)

    def _refuse(self, ask: Install | Trim, asked: int, lack: NoRoom, released: int) -> Vote:
        """Nothing stays held. `released` is the cache's count from before room was found lacking."""
        # What the attempt itself gives back is no room for trying it again, but what others gave back meanwhile is.
        released += self._cache.withdraw(ask.request)
        self._lacking.add(ask.request)
        return Vote(ask.request, ask.attempt, asked, 0, False, lack.window, "", released)

    def _conclude(self, verdict: Verdict) -> None:
        waiting = self._find(verdict.request, verdict)
        attempt = waiting.attempt
        if attempt is None or attempt.number != verdict.attempt:
            raise self._breach(f"{verdict}, while {attempt and attempt.newest} is open")
        vote = attempt.newest
        if not verdict.admitted:
            self._give_up(waiting)
            return
        if not vote.committed or vote.endpoint != verdict.endpoint:
            raise self._breach(f"{verdict}, which has voted {vote}")
        self._orders.append(Grant(verdict.request, verdict.attempt))
        self._admitted[verdict.request] = waiting.request.handle
        self._forget(verdict.request)

    def _cancel(self, cancel: Cancel) -> None:
        request, handle = cancel.request, cancel.handle
        if request in self._waiting and cancel.after_wave >= 0:
            raise self._breach(f"request {request} ends after wave {cancel.after_wave}, though it was not admitted")
        if self._handles.get(handle) != request:
            raise self._breach(f"request {request} is cancelled with a handle that it does not have")
        del self._handles[handle]
        if self._admitted.pop(request, None) is not None:
            self._orders.append(Drop(request, cancel.after_wave, handle))
        else:
            self._give_up(self._waiting[request])
            self._forget(request)

    def _release(self, handle: str) -> None:
        request = self._handles.get(handle)
        if request is None or request not in self._admitted:
            raise self._breach(f"a handle was released that request {request} does not have by admission")
        # Where its last wave has not run yet, the cache ends it when it is sealed.
        self._cache.release_handle(handle)
        del self._admitted[request], self._handles[handle]

    def _give_up(self, waiting: _Waiting) -> None:
        """Whatever the open attempt holds is released, and LOOP told so where it was told of it."""
        request, attempt = waiting.request.id, waiting.attempt
        if attempt is None:
            return
        waiting.attempt, waiting.over = None, attempt.number
        self._lacking.discard(request)
        self._cache.withdraw(request)
        if attempt.newest.committed:
            self._orders.append(Retract(request, attempt.number))

    def _forget(self, request: int) -> None:
        del self._waiting[request]
        self._keys.forget(request)

    def _find(self, request: int, what: object) -> _Waiting:
        waiting = self._waiting.get(request)
        if waiting is None:
            raise self._breach(f"{what}, where request {request} is not waiting to be admitted")
        return waiting

    def _votes_again(self, down: RoundDown) -> tuple[Vote, ...]:
        asked: list[tuple[Install | Trim, int]] = [(install, install.candidate) for install in down.installs]
        asked += [(trim, trim.endpoint) for trim in down.trims]
        return tuple(vote for ask, tokens in asked if (vote := self._vote_on(ask, tokens)) is not None)

    def _vote_on(self, ask: Install | Trim, asked: int) -> Vote | None:
        waiting = self._waiting.get(ask.request)
        if waiting is None or waiting.attempt is None or waiting.attempt.number != ask.attempt:
            return None
        return waiting.attempt.votes.get(asked)

    def _answer(self, hints: tuple[Hint, ...], votes: tuple[Vote, ...]) -> RoundUp:
        self._reported = self._cache.released
        return RoundUp(self._epoch, self._rank, self._round, hints, votes, self._reported, self._cache.gauges())

    def _breach(self, what: str) -> RoundError:
        return RoundError(f"rank {self._rank}: {what}")


def _lower(ask: Install | Trim, asked: int, reach: Reach, released: int) -> Vote:
    return Vote(ask.request, ask.attempt, asked, reach.endpoint, False, "", reach.limited_by, released)
