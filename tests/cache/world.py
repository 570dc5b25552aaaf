"""Everything that may be done to a stage cache, a method each, beside the oracle."""

from __future__ import annotations

import copy
import copyreg
from random import Random
from threading import Lock

import pytest
from wavepp.cache.answers import Reach
from wavepp.cache.errors import (
    AttemptConflict,
    DuplicateHandle,
    HandleGone,
    HandleNotSealed,
    UnknownHandle,
    UnknownSequence,
    WrongPhase,
)

from .side_by_side import BLOCK, SideBySide, chain

PROMPTS = ("", "a", "abc", "abcdef", "abcdeg", "abcxyz", "abqrst", "mnopqr", "mnopab", "zzzzzzzz", "abcdefgh", "mn")
"""Prompts by their full blocks, a letter each; a few shared prefixes, and repeated blocks at different places."""

copyreg.pickle(type(Lock()), lambda _: (Lock, ()))  # So that a whole cache can be copied, and tried out.


class World(SideBySide):
    """Integer arguments choose among what exists, modulo its number, so that any driver can make any step."""

    # Admission.

    def lease(self, prompt: int, tail: int, lower: int) -> None:
        """Leases as far as the hint reaches, less `lower` blocks (more, when negative)."""
        self._lease(chain(PROMPTS[prompt % len(PROMPTS)]), tail, lower)

    def twin(self, which: int, tail: int) -> None:
        """Leases the prompt of a request that is being admitted or run."""
        if held := self._pick(which, "leased", "prepared", "committed"):
            self._lease(held.keys, tail, 0)

    def flood(self, stay: bool) -> None:
        """A request that is promised all there is. Unless it is to `stay` so, it takes it and ends: what could be
        evicted is on the host then, or gone."""
        slack = [self.oracle.slack(window) for window in self.oracle.windows]
        if min(slack, default=0) > 0:
            blocks = slack[0] if self.oracle.pages is not None else 9
            if held := self._lease(chain("k" * blocks), 0, 0):
                if self._prepare(held, 0) and self._commit(held, 0, (2 << min(slack[-1] - 1, blocks)) - 2):
                    self.seen["flooded"] += 1
                    if stay:
                        return
                    while self._materialise(held, held.num_tokens, None):
                        pass
                with self._step():
                    self.cache.withdraw(held.request)
                    self.oracle.drop(held)

    def lease_again(self, which: int) -> None:
        if held := self._pick(which, "leased", "prepared", "committed"):
            again = (held.handle, held.keys, held.num_tokens, 0)
            with self._step():
                assert self.cache.lease(held.request, held.attempt, *again) == Reach(held.endpoint, held.limited_by)
                with pytest.raises(AttemptConflict):
                    self.cache.lease(held.request, held.attempt + 1, *again)
                with pytest.raises(DuplicateHandle):
                    self.cache.lease(-1, held.attempt, *again)

    def prepare(self, which: int, bits: int) -> None:
        if held := self._pick(which, "leased", "prepared"):
            self._prepare(held, bits)

    def commit(self, which: int, lower: int, bits: int) -> None:
        """Commits at the lease's endpoint, less `lower` blocks (more, when negative)."""
        if held := self._pick(which, "leased", "prepared"):
            self._commit(held, lower, bits)

    def admit(self, which: int, lower: int, bits: int) -> None:
        """Both, and what lacks room is withdrawn."""
        if held := self._pick(which, "leased", "prepared"):
            room = held.phase == "prepared" or self._prepare(held, bits)
            if not (room and self._commit(held, lower, bits)):
                with self._step():
                    self.cache.withdraw(held.request)
                    self.oracle.drop(held)

    def commit_again(self, which: int) -> None:
        if held := self._pick(which, "committed"):
            with self._step():
                assert self.cache.commit(held.request, held.endpoint, held.planned) == Reach(held.endpoint)
                with pytest.raises(WrongPhase):
                    self.cache.prepare(held.request, held.planned)
                if held.endpoint:
                    with pytest.raises(WrongPhase):
                        self.cache.commit(held.request, held.endpoint - BLOCK, held.planned)

    def withdraw(self, which: int) -> None:
        if held := self._pick(which, "leased", "prepared", "committed"):
            if held.phase == "committed" and (held.pages or held.slot >= 0):
                self.seen["left half-way"] += held.computed < held.num_tokens
            with self._step():
                self.cache.withdraw(held.request)
                self.cache.withdraw(held.request)
                self.oracle.drop(held)

    def early(self, which: int) -> None:
        """What only a committed request may do is refused before."""
        if held := self._pick(which, "leased", "prepared"):
            with self._step():
                for call in (self.cache.materialise, self.cache.publish):
                    with pytest.raises(WrongPhase):
                        call(held.request, held.num_tokens)
                for call in (self.cache.seal, self.cache.resumed):
                    with pytest.raises(WrongPhase):
                        call(held.request)

    # The life of an admitted request.

    def materialise(self, which: int, blocks: int, limit: int) -> None:
        """One step, for tokens up to `blocks` blocks beyond what is computed; `limit` 0 is none."""
        if held := self._pick(which, "committed"):
            self._materialise(held, min(held.num_tokens, (held.computed // BLOCK + blocks) * BLOCK), limit or None)

    def resume(self, which: int) -> None:
        if held := self._pick(which, "committed"):
            self._resume(held)

    def compute(self, which: int, blocks: int) -> None:
        """Computes up to `blocks` more blocks, or what is left, and publishes."""
        if held := self._pick(which, "committed"):
            self._compute(held, min(held.num_tokens, (held.computed // BLOCK + 1 + blocks) * BLOCK), True)

    def seal(self, which: int, publish: bool) -> None:
        """Computes what is left and seals; publishing the last chunk is the caller's choice."""
        if held := self._pick(which, "committed"):
            self._compute(held, held.num_tokens, publish)
            with self._step():
                self.cache.seal(held.request)
                self.oracle.seal(held)
            with pytest.raises(UnknownSequence):
                self.cache.seal(held.request)

    def release(self, which: int) -> None:
        if held := self._pick(which, "committed"):
            with self._step():
                self.cache.release(held.request)
                self.cache.release(held.request)
                self.oracle.drop(held)

    # Handles and pulls.

    def release_handle(self, which: int) -> None:
        if self.oracle.held:
            held = self.oracle.held[which % len(self.oracle.held)]
            with self._step():
                self.cache.release_handle(held.handle)
                self.cache.release_handle(held.handle)
                self.oracle.end(held)
                self.seen["ended early"] += not held.sealed

    def retire(self, which: int) -> None:
        """Ends a finished one, as its holder does when it has pulled it."""
        if held := self._pick(which, "sealed"):
            with self._step():
                self.cache.release_handle(held.handle)
                self.oracle.end(held)

    def open_pull(self, which: int) -> None:
        if self.oracle.held:
            held = self.oracle.held[which % len(self.oracle.held)]
            with self._step():
                if held.ended or not held.sealed:
                    with pytest.raises(HandleGone if held.ended else HandleNotSealed):
                        self.cache.open_pull(held.handle)
                else:
                    pull = self.cache.open_pull(held.handle)
                    assert pull.id not in held.pulls
                    assert (pull.pages, pull.slot, pull.num_tokens) == (held.pages, held.slot, held.num_tokens)
                    held.pulls.add(pull.id)
                    self._read(held)

    def close_pull(self, which: int) -> None:
        pulls = [(held, pull) for held in self.oracle.held for pull in sorted(held.pulls)]
        if pulls:
            held, pull = pulls[which % len(pulls)]
            self._read(held)
            self.seen["kept for a pull"] += held.ended
            with self._step():
                assert self.cache.close_pull(pull)
                self.oracle.close(held, pull)
            assert not self.cache.close_pull(pull)

    # The cache as a whole.

    def reset(self) -> None:
        with self._step():
            self.cache.reset()
            self.oracle.reset()

    def finish_on_a_copy(self, random: Random) -> None:
        """Every committed request could be materialised completely right now, in any order."""
        cache = copy.deepcopy(self.cache)
        committed = self._among("committed")
        random.shuffle(committed)
        for held in committed:
            while cache.materialise(held.request, held.num_tokens, random.choice((None, 1))) is not None:
                pass
            cache.check()
            assert not cache.sequence(held.request).promised
        self.seen["finished on a copy"] += len(committed)

    def drain(self) -> None:
        """Ends everything; nothing may be left."""
        for held in list(self.oracle.held):
            for pull in sorted(held.pulls):
                self.cache.close_pull(pull)
            self.cache.withdraw(held.request)
            self.cache.release_handle(held.handle)
            with pytest.raises(UnknownHandle):
                self.cache.open_pull(held.handle)
        self.cache.check()
        gauges = self.cache.gauges()
        assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
        assert (gauges.pages_promised, gauges.slots_promised, gauges.escrows) == (0, 0, 0)
        assert (gauges.leases, gauges.handles, gauges.pulls) == (0, 0, 0)
        assert gauges.host_pages_free + gauges.host_pages_reclaimable == gauges.host_pages_total
        assert gauges.host_slots_free + gauges.host_slots_reclaimable == gauges.host_slots_total
        self.cache.reset()
        gauges = self.cache.gauges()
        assert (gauges.pages_free, gauges.slots_free) == (gauges.pages_total, gauges.slots_total)
        assert (gauges.host_pages_free, gauges.host_slots_free) == (gauges.host_pages_total, gauges.host_slots_total)
        self.cache.check()
