"""Ranks that give any answer that the protocol allows, chosen by seed, and fail when the leader breaks it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from wavepp.admission.messages import BLOCKED, Cancel, Hello, Hint, Install, RoundDown, RoundUp, Trim, Verdict, Vote
from wavepp.admission.request import Request
from wavepp.admission.snapshot_plan import reuse_limit

from .scripted import BLOCK


@dataclass
class Held:
    """What an attempt holds here, or, when it has been sealed, its handle."""

    attempt: int
    endpoint: int
    snapshots: tuple[int, ...]
    pages: int
    committed: bool = False
    admitted: bool = False
    sealed: bool = False


@dataclass(frozen=True)
class WaveDone:
    wave: int


class ArbitraryRank:
    """Its pages are only counted. What it could reuse is made up afresh each time that it is asked."""

    def __init__(self, number: int, pages: int, floor: int, rng: random.Random) -> None:
        self.number, self.pages, self.floor, self.random = number, pages, floor, rng
        self.requests: dict[int, Request] = {}
        self.held: dict[int, Held] = {}
        self.handles: dict[str, int] = {}
        self.released = 0
        self.rounds: deque[RoundDown] = deque()
        self.waves: deque[tuple[int, int, int]] = deque()
        self.outgoing: deque[RoundUp | WaveDone] = deque()
        self.warm = rng.choice([0.2, 1.0])
        """How likely it is to hint anything at all."""
        self.other_pages = 0
        """Taken by nobody that the leader knows of; given back some time."""
        self._round = 0
        self._wave = -1
        self._reported = 0
        self._votes: dict[int, dict[tuple[int, int], Vote]] = {}
        self._lacking: set[int] = set()
        self._draining: list[Cancel] = []
        self._ended_early: set[str] = set()

    def hello(self) -> Hello:
        return Hello(self.number, "1", "f", "", (0, 1), ("attention", "recurrent"), self.pages, 64, 0, 0, "")

    @property
    def idle(self) -> bool:
        return not (self.requests or self.held or self.handles or self.rounds or self.waves or self.outgoing)

    def apply(self) -> None:
        down = self.rounds.popleft()
        assert down.round == self._round + 1
        self._round = down.round
        for request in down.announces:
            assert request.id not in self.requests and request.handle not in self.handles
            self.requests[request.id] = request
            self.handles[request.handle] = request.id
        hints = tuple(Hint(p.request, p.attempt, self._hint(self.requests[p.request])) for p in down.probes)
        for verdict in down.verdicts:
            self._conclude(verdict)
        votes = tuple(map(self._answer, (*down.installs, *down.trims)))
        for cancel in down.cancels:
            self._cancel(cancel)
        for handle in down.releases:
            self._end_handle(handle)
        self._reported = self.released
        self.outgoing.append(RoundUp(1, self.number, self._round, hints, votes, self.released))

    def report(self) -> None:
        if self.released != self._reported:
            self._reported = self.released
            self.outgoing.append(RoundUp(1, self.number, self._round, released=self.released))

    def run_wave(self) -> tuple[int, int, int]:
        """(wave, request, its last token)."""
        wave, request, end = self.waves.popleft()
        held = self.held[request]
        assert held.committed and not held.sealed, "a wave of what is not committed"
        self._wave = wave
        if end == self.requests[request].num_tokens:
            held.sealed = True
            handle = self.requests.pop(request).handle
            if handle in self._ended_early:
                self._ended_early.remove(handle)
                self._end_handle(handle)
        for cancel in [cancel for cancel in self._draining if cancel.after_wave <= wave]:
            self._draining.remove(cancel)
            self._cancel(cancel)
        self.outgoing.append(WaveDone(wave))
        return wave, request, end

    def give_back(self) -> None:
        """The pages that nobody knows of."""
        if self.other_pages:
            self.other_pages = 0
            self.released += 1

    # Answers.

    def _hint(self, request: Request) -> int:
        return self._reach(reuse_limit(request.num_tokens, BLOCK)) if self.random.random() < self.warm else 0

    def _reach(self, most: int) -> int:
        return self.random.choice([most, most, most, self.random.randint(0, most // BLOCK) * BLOCK])

    def _answer(self, ask: Install | Trim) -> Vote:
        asked = ask.candidate if isinstance(ask, Install) else ask.endpoint
        known = self._votes.setdefault(ask.request, {})
        if (ask.attempt, asked) not in known:
            vote = self._install(ask, asked) if isinstance(ask, Install) else self._trim(ask, asked)
            if vote.reason not in ("", BLOCKED):
                self._lacking.add(ask.request)
            known[ask.attempt, asked] = vote
        return known[ask.attempt, asked]

    def _install(self, ask: Install, asked: int) -> Vote:
        assert ask.request not in self.held, "two attempts of one request at once"
        assert ask.attempt > max((attempt for attempt, _ in self._votes[ask.request]), default=0)
        if self._lacking - {ask.request}:
            return self._refuse(ask, asked, BLOCKED)
        return self._hold(ask, asked, self._reach(asked))

    def _trim(self, ask: Trim, asked: int) -> Vote:
        held = self.held.pop(ask.request)
        assert held.attempt == ask.attempt and not held.committed, "a trim of what is committed"
        assert asked <= held.endpoint, "a trim to more than is there"
        return self._hold(ask, asked, asked if asked == held.endpoint else self._reach(asked))

    def _hold(self, ask: Install | Trim, asked: int, reach: int) -> Vote:
        pages = -(-self.requests[ask.request].num_tokens // BLOCK) - reach // BLOCK
        left = self.pages - self.other_pages - sum(held.pages for held in self.held.values()) - pages
        alone = all(held.sealed for held in self.held.values())
        if left < (0 if alone else self.floor) or self.random.random() < 0.03:
            if left >= 0:
                self.other_pages += left + 1
            return self._refuse(ask, asked, "attention")
        self.held[ask.request] = Held(ask.attempt, reach, ask.snapshots, pages, committed=reach == asked)
        return Vote(ask.request, ask.attempt, asked, reach, reach == asked, "", "attention", self.released)

    def _refuse(self, ask: Install | Trim, asked: int, reason: str) -> Vote:
        return Vote(ask.request, ask.attempt, asked, 0, False, reason, "", self.released)

    # Decisions.

    def _conclude(self, verdict: Verdict) -> None:
        request = verdict.request
        if verdict.admitted:
            held = self.held.get(request)
            assert held is not None and held.committed and not held.admitted
            assert (held.attempt, held.endpoint) == (verdict.attempt, verdict.endpoint)
            held.admitted = True
            return
        assert request in self.requests
        assert max(attempt for attempt, _ in self._votes[request]) == verdict.attempt, "an attempt that is not open"
        self._let_go(request)

    def _let_go(self, request: int) -> None:
        self._lacking.discard(request)
        held = self.held.pop(request, None)
        if held is not None:
            self.released += held.pages > 0

    def _cancel(self, cancel: Cancel) -> None:
        assert self.handles.get(cancel.handle) == cancel.request
        if cancel.after_wave > self._wave:
            self._draining.append(cancel)
            return
        held = self.held.get(cancel.request)
        assert held is None or held.admitted or cancel.after_wave == -1
        self._let_go(cancel.request)
        self.requests.pop(cancel.request, None)
        del self.handles[cancel.handle]

    def _end_handle(self, handle: str) -> None:
        request = self.handles[handle]
        if request in self.requests:
            self._ended_early.add(handle)
            return
        self._let_go(request)
        del self.handles[handle]
