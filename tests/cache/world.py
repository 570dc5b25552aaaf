"""A stage cache under arbitrary use, beside the oracle, with storage that remembers what was written where."""

from __future__ import annotations

import copy
import copyreg
from collections import Counter
from contextlib import contextmanager
from random import Random
from string import ascii_lowercase
from threading import Lock
from typing import Any

import pytest
from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.errors import (
    AttemptConflict,
    DuplicateHandle,
    HandleGone,
    HandleNotSealed,
    UnknownHandle,
    UnknownSequence,
    WrongPhase,
)
from wavepp.cache.escrow import Floors
from wavepp.cache.eviction import Retention
from wavepp.cache.layout import Window
from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache

from .oracle import Held, Oracle

BLOCK = 4
PROMPTS = ("", "a", "abc", "abcdef", "abcdeg", "abcxyz", "abqrst", "mnopqr", "mnopab", "zzzzzzzz", "abcdefgh", "mn")
"""Prompts by their full blocks, a letter each; a few shared prefixes, and repeated blocks at different places."""
copyreg.pickle(type(Lock()), lambda _: (Lock, ()))  # So that a whole cache can be copied, and tried out.


def chain(prompt: str) -> tuple[bytes, ...]:
    """A key names its whole prefix, as chained digests do."""
    assert set(prompt) <= set(ascii_lowercase)
    return tuple(prompt[: i + 1].encode() for i in range(len(prompt)))


def positions(bits: int, num_blocks: int) -> tuple[int, ...]:
    """The block ends that `bits` names."""
    return tuple(r * BLOCK for r in range(1, num_blocks + 1) if bits >> r & 1)


class World:
    """Every method is one step: it acts on the cache, asks the oracle, and compares all that can be seen.

    Integer arguments choose among what exists, modulo its number, so that any driver can make any step.
    """

    def __init__(
        self,
        windows: frozenset[Window],
        pages: int,
        slots: int,
        host_pages: int = 0,
        host_slots: int = 0,
        floors: Floors = Floors(),  # noqa: B008 (immutable)
        retention: Retention = "lru",
        crowd: int = 7,
    ) -> None:
        """At most `crowd` requests are unsealed at a time."""
        self.cache = StageCache(
            windows,
            pages,
            slots,
            BLOCK,
            host_pages=host_pages,
            host_slots=host_slots,
            floors=floors,
            retention=retention,
        )
        names = frozenset(str(window) for window in windows)
        self.oracle = Oracle(names, (pages, host_pages), (slots, host_slots), BLOCK, floors, retention == "cost")
        self.seen: Counter[str] = Counter()
        self._crowd, self._requests = crowd, 0
        self._data: dict[str, dict[int, bytes]] = {"attention": {}, "recurrent": {}}
        self._host: dict[str, dict[int, bytes]] = {"attention": {}, "recurrent": {}}
        self._released = 0

    # Admission.

    def lease(self, prompt: int, tail: int, lower: int) -> None:
        """Leases as far as the hint reaches, less `lower` blocks (more, when negative)."""
        self._lease(chain(PROMPTS[prompt % len(PROMPTS)]), tail, lower)

    def twin(self, which: int, tail: int) -> None:
        """Leases the prompt of a request that is being admitted or run."""
        if held := self._pick(which, "leased", "prepared", "committed"):
            self._lease(held.keys, tail, 0)

    def _lease(self, keys: tuple[bytes, ...], tail: int, lower: int) -> Held | None:
        tokens = len(keys) * BLOCK + tail % BLOCK
        if tokens == 0 or len(self._among("leased", "prepared", "committed")) >= self._crowd:
            return None
        limit = (tokens - 1) // BLOCK * BLOCK
        hint = self.cache.hint(keys, limit)
        assert hint == self.cache.probe(keys, limit) == self.oracle.reach(keys, limit)
        candidate = min(max(0, hint.endpoint - lower * BLOCK), limit)
        self._requests += 1
        held = Held(self._requests, self._requests % 3, f"handle {self._requests}", keys, tokens)
        expected = self.oracle.leasable(keys, candidate)
        with self._step():
            reach = self.cache.lease(held.request, held.attempt, held.handle, keys, tokens, candidate)
            assert reach == expected
            promised = any(self.oracle.promised(window) for window in self.oracle.windows)
            self.seen["substituted"] += promised and reach.endpoint > 0 and self._claims_victim(held, reach)
            self.seen["lease stopped"] += reach.endpoint < min(candidate, hint.endpoint)
            self.oracle.lease(held, reach)
            self.seen["leased"] += 1
        return held

    def _claims_victim(self, held: Held, reach: Reach) -> bool:
        keys = {*held.keys[: reach.endpoint // BLOCK]}
        return any(keys & {*self.oracle.victims(window)} for window in self.oracle.windows)

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

    # What WAVE and LOOP do between.

    def _prepare(self, held: Held, bits: int) -> bool:
        planned = positions(bits, len(held.keys))
        expected = self.oracle.revision(held, held.endpoint, planned, Floors())
        with self._step():
            answer = self.cache.prepare(held.request, planned)
            self.seen[f"prepare: {type(answer).__name__}"] += 1
            if isinstance(expected, NoRoom):
                assert answer == expected
                return False
            assert answer == expected[0]
            self.seen["prepared lower"] += expected[0].endpoint < held.endpoint
            self._revise(held, expected, planned, "prepared")
        return True

    def _commit(self, held: Held, lower: int, bits: int) -> bool:
        planned = positions(bits, len(held.keys))
        limit = (held.num_tokens - 1) // BLOCK * BLOCK
        endpoint = min(max(0, held.endpoint - lower * BLOCK), limit)
        alone = len(self._among("leased", "prepared", "committed")) == 1
        floors = Floors() if alone else self.oracle.floors
        expected = self.oracle.revision(held, endpoint, planned, floors)
        with self._step():
            answer = self.cache.commit(held.request, endpoint, planned)
            if isinstance(expected, NoRoom):
                assert answer == expected
                self.seen["commit: NoRoom"] += 1
                idle = alone and not self._among("sealed")
                assert not idle or not self.cache.fits(held.num_tokens, len(planned)), "an idle stage refuses"
                return False
            reached = expected[0].endpoint
            assert answer == Reach(reached, expected[1] if reached < endpoint else "")
            self.seen["trimmed"] += reached < held.endpoint
            self.seen["commit: cut short"] += reached < min(endpoint, held.endpoint)
            self._revise(held, expected, planned, "prepared" if reached < endpoint else "committed")
            self.seen[f"commit: {held.phase}"] += 1
        return True

    def _revise(self, held: Held, expected: tuple[Prepared, str], planned: tuple[int, ...], phase: str) -> None:
        self.oracle.revise(held, expected[0].endpoint, expected[1], planned)
        held.phase = phase

    def _materialise(self, held: Held, upto: int, limit: int | None) -> bool:
        """One step; False when there was nothing left to do."""
        with self._step():
            step = self.oracle.materialise(held, upto, limit)
            moves = self.cache.materialise(held.request, upto, limit)
            assert (moves is None) == (step is None)
            got, had_slot = self.cache.sequence(held.request), held.slot >= 0
            if self.oracle.pages is not None and not held.pages and got.pages:
                held.pages = got.pages[: held.pinned]
            new = got.pages[len(held.pages) :]
            slots = [] if had_slot or got.slot < 0 else [got.slot]
            captures = got.snapshots[len(held.pending) :]
            assert got.snapshots[: len(held.pending)] == tuple(held.pending)
            held.slot = got.slot
            held.pages = got.pages
            held.pending += captures
            if step is not None and moves is not None:
                step.finish(held, moves, new, slots + [slot for _, slot in captures])
                self._copy(moves)
            self.seen["materialised"] += step is not None
            if self.oracle.pages is not None and got.pages:
                prefix = held.keys[: held.endpoint // BLOCK]
                assert [self._data["attention"][page] for page in got.pages[: len(prefix)]] == list(prefix)
                assert got.pages[: len(prefix)] == tuple(self.oracle.pages.device[key] for key in prefix)
            if held.source is not None and got.slot >= 0:
                assert self._data["recurrent"][got.source_slot] == held.source, "resumes from another state"
            else:
                assert got.source_slot == -1
        return moves is not None

    def _copy(self, moves: Moves) -> None:
        """Makes the copies, within offloads and onboards in the reverse of their order."""
        for window, item, place in reversed(moves.offloads):
            self._host[window][place] = self._data[window][item]
        for window, place, item in reversed(moves.onboards):
            self._data[window][item] = self._host[window][place]

    def _resume(self, held: Held) -> None:
        with self._step():
            sequence = self.cache.sequence(held.request)
            if sequence.source_slot >= 0:
                self._data["recurrent"][sequence.slot] = self._data["recurrent"][sequence.source_slot]
            self.cache.resumed(held.request)
            self.oracle.resumed(held)
            assert self.cache.sequence(held.request).source_slot == -1

    def _compute(self, held: Held, end: int, publish: bool) -> None:
        if held.computed == held.num_tokens:
            return
        while self._materialise(held, end, None):
            pass
        if held.computed == held.endpoint:
            self._resume(held)
            if held.endpoint == 0 and self.oracle.slots is not None:
                self._data["recurrent"][held.slot] = b""
        sequence = self.cache.sequence(held.request)
        assert sequence.computed == held.computed
        if self.oracle.slots is not None:
            state, before = self._data["recurrent"], held.keys[held.computed // BLOCK - 1] if held.computed else b""
            assert state[held.slot] == before, "the live state is not that of the tokens before"
            for position, slot in sequence.snapshots:
                if held.computed < position <= end:
                    state[slot] = held.keys[position // BLOCK - 1]
            state[held.slot] = self._end_state(held) if end == held.num_tokens else held.keys[end // BLOCK - 1]
        if self.oracle.pages is not None:
            for block in range(held.computed // BLOCK, -(-end // BLOCK)):
                content = held.keys[block] if block < len(held.keys) else self._end_state(held)
                self._data["attention"][held.pages[block]] = content
        if publish:
            with self._step():
                self.cache.publish(held.request, end)
                self.oracle.publish(held, end)
            self.cache.publish(held.request, held.computed)

    def _end_state(self, held: Held) -> bytes:
        return f"{held.handle}, all {held.num_tokens} tokens".encode()

    def _read(self, held: Held) -> None:
        """What a puller reads must be the request's own prefix and end state."""
        if self.oracle.pages is not None:
            data = [self._data["attention"][page] for page in held.pages]
            assert data[: len(held.keys)] == list(held.keys)
            assert data[len(held.keys) :] == [self._end_state(held)] * (len(held.pages) - len(held.keys))
        if self.oracle.slots is not None:
            assert self._data["recurrent"][held.slot] == self._end_state(held)

    def _among(self, *phases: str) -> list[Held]:
        return [held for held in self.oracle.held if held.phase in phases]

    def _pick(self, which: int, *phases: str) -> Held | None:
        among = self._among(*phases)
        return among[which % len(among)] if among else None

    # What can be seen.

    @contextmanager
    def _step(self) -> Any:
        """One operation on the cache and the oracle, after which everything is compared."""
        oracle = self.oracle
        before = [oracle.slack(window) for window in oracle.windows]
        yield
        after = [oracle.slack(window) for window in oracle.windows]
        self._released += any(now > was for now, was in zip(after, before, strict=True))
        self.seen["compared"] += 1
        self.cache.check()
        assert self.cache.released == self._released
        assert min(after, default=0) >= 0, "promised more than there is"
        self._compare_windows()
        self._compare_gauges()

    def _compare_windows(self) -> None:
        """What is where, who goes next, what is promised, and what the storage holds."""
        for model, window in ((self.oracle.pages, self.cache._attention), (self.oracle.slots, self.cache._recurrent)):
            if model is None or window is None:
                assert model is window is None
                continue
            assert {entry.key: entry.item for entry in window.tree if entry.item >= 0} == model.device
            assert {entry.key: entry.host for entry in window.tree if entry.host >= 0} == model.host
            assert [entry.key for entry in window.tree.device.in_order()] == model.waiting.in_order()
            assert [entry.key for entry in window.tree.host.in_order()] == model.waiting_host.in_order()
            assert [entry.key for entry in window.victims()] == self.oracle.victims(model)
            assert window.promised == self.oracle.promised(model)
            data, host = self._data[model.name], self._host[model.name]
            assert {key: data[item] for key, item in model.device.items()} == {key: key for key in model.device}
            assert {key: host[place] for key, place in model.host.items()} == {key: key for key in model.host}

    def _compare_gauges(self) -> None:
        oracle, gauges = self.oracle, self.cache.gauges()
        for model, name in ((oracle.pages, "pages"), (oracle.slots, "slots")):
            if model is None:
                continue
            holders = oracle.holders(model)
            expected = {
                f"{name}_total": model.capacity,
                f"{name}_free": len(oracle.free(model)),
                f"{name}_reclaimable": oracle.reclaimable(model, holders),
                f"{name}_promised": oracle.promised(model),
                f"host_{name}_total": model.host_capacity,
                f"host_{name}_free": len(oracle.free_host(model)),
                f"host_{name}_reclaimable": sum(key not in holders for key in model.host),
            }
            assert {what: getattr(gauges, what) for what in expected} == expected
        assert gauges.leases == sum(not held.sealed for held in oracle.held)
        assert gauges.escrows == sum(
            any(oracle.outstanding(window, held) for window in oracle.windows) for held in oracle.escrowed()
        )
        assert gauges.handles == sum(held.sealed for held in oracle.held)
        assert gauges.pulls == sum(len(held.pulls) for held in oracle.held)
        assert gauges.dropped == oracle.dropped
        assert gauges.offloaded == oracle.offloaded
        assert gauges.onboarded == oracle.onboarded
