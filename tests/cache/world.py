"""A stage cache under arbitrary use, beside the oracle, with a device that remembers what was written where."""

from collections import Counter
from string import ascii_lowercase

import pytest
from wavepp.cache.answers import Claimed, NoRoom
from wavepp.cache.errors import (
    AttemptConflict,
    DuplicateHandle,
    HandleGone,
    HandleNotSealed,
    UnknownHandle,
    UnknownSequence,
)
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .oracle import Held, Oracle

BLOCK = 4
PROMPTS = ("", "a", "abc", "abcdef", "abcdeg", "abcxyz", "abqrst", "mnopqr", "mnopab", "zzzzzzzz")
"""Prompts by their full blocks, a letter each; a few shared prefixes, and repeated blocks at different places."""


def chain(prompt: str) -> tuple[bytes, ...]:
    """A key names its whole prefix, as chained digests do."""
    assert set(prompt) <= set(ascii_lowercase)
    return tuple(prompt[: i + 1].encode() for i in range(len(prompt)))


class World:
    """Every method is one step: it acts on the cache, asks the oracle, and compares all that can be seen.

    Integer arguments choose among what exists, modulo its number, so that any driver can make any step.
    """

    def __init__(self, windows: frozenset[Window], pages: int, slots: int) -> None:
        self.cache = StageCache(windows, pages, slots, BLOCK)
        self.oracle = Oracle(Window.ATTENTION in windows, Window.RECURRENT in windows, pages, slots, BLOCK)
        self.seen: Counter[str] = Counter()
        self._requests = 0
        self._page_data: dict[int, bytes] = {}
        self._slot_data: dict[int, bytes] = {}
        self._released = 0
        self._available = self.oracle.available()

    # Steps.

    def claim(self, prompt: int, tail: int, lower: int, snapshots: int) -> None:
        """Claims as far as the probe reaches, less `lower` blocks (more, when negative); `snapshots` is a bit set."""
        keys = chain(PROMPTS[prompt % len(PROMPTS)])
        tokens = len(keys) * BLOCK + tail % BLOCK
        if tokens == 0:
            return
        limit = (tokens - 1) // BLOCK * BLOCK
        reach = self.cache.probe(keys, limit)
        assert reach == self.oracle.reach(keys, limit)
        candidate = min(max(0, reach.endpoint - lower * BLOCK), limit)
        positions = tuple(r for r in range(BLOCK, len(keys) * BLOCK + 1, BLOCK) if snapshots >> (r // BLOCK) & 1)
        planned = tuple(r for r in positions if r > candidate)
        self._requests += 1
        held = Held(self._requests, 1, f"handle {self._requests}", keys, tokens, candidate, computed=candidate)
        expected = self.oracle.judge(held, planned)
        answer = self.cache.claim(held.request, 1, held.handle, keys, tokens, candidate, positions)
        assert answer == expected
        self.seen[type(answer).__name__] += 1
        if isinstance(answer, Claimed):
            got = self.cache.sequence(held.request)
            assert tuple(r for r, _ in got.snapshots) == (planned if self.oracle.slots else ())
            self.oracle.take(held, got.pages, got.slot, got.snapshots)
            for page, key in zip(got.pages, keys[: candidate // BLOCK], strict=False):
                assert self._page_data[page] == key, "reused a page with other content"
            if held.source is not None:
                assert self._slot_data[got.source_slot] == held.source, "resumes from another state"
            else:
                assert got.source_slot == -1
        else:
            with pytest.raises(UnknownSequence):
                self.cache.sequence(held.request)
            if isinstance(answer, NoRoom) and not self.oracle.held:
                assert not self.cache.fits(tokens, len(planned)), "an idle stage refuses what would fit"
        self._compare()

    def claim_again(self, which: int) -> None:
        if held := self._pick(which, sealed=False):
            again = (held.handle, held.keys, held.num_tokens, held.endpoint, ())
            assert self.cache.claim(held.request, held.attempt, *again) == Claimed(held.endpoint)
            with pytest.raises(AttemptConflict):
                self.cache.claim(held.request, held.attempt + 1, *again)
            with pytest.raises(DuplicateHandle):
                self.cache.claim(-1, held.attempt, *again)
            self._compare()

    def resume(self, which: int) -> None:
        if held := self._pick(which, sealed=False):
            self._resume(held)
            self._compare()

    def compute(self, which: int, blocks: int) -> None:
        """Computes up to `blocks` more blocks, or what is left, and publishes."""
        if held := self._pick(which, sealed=False):
            self._compute(held, min(held.num_tokens, (held.computed // BLOCK + 1 + blocks) * BLOCK), True)
            self._compare()

    def seal(self, which: int, publish: bool) -> None:
        """Computes what is left and seals; publishing the last chunk is the caller's choice."""
        if held := self._pick(which, sealed=False):
            self._compute(held, held.num_tokens, publish)
            self.cache.seal(held.request)
            self.oracle.seal(held)
            with pytest.raises(UnknownSequence):
                self.cache.seal(held.request)
            self._compare()

    def release(self, which: int) -> None:
        if held := self._pick(which, sealed=False):
            self.cache.release(held.request)
            self.oracle.drop(held)
            self._compare()
            self.cache.release(held.request)
            self._compare()

    def release_handle(self, which: int) -> None:
        if self.oracle.held:
            held = self.oracle.held[which % len(self.oracle.held)]
            self.cache.release_handle(held.handle)
            self.oracle.end(held)
            self.seen["ended early"] += not held.sealed
            self._compare()
            self.cache.release_handle(held.handle)
            self._compare()

    def open_pull(self, which: int) -> None:
        if self.oracle.held:
            held = self.oracle.held[which % len(self.oracle.held)]
            if held.ended or not held.sealed:
                with pytest.raises(HandleGone if held.ended else HandleNotSealed):
                    self.cache.open_pull(held.handle)
            else:
                pull = self.cache.open_pull(held.handle)
                assert pull.id not in held.pulls
                assert (pull.pages, pull.slot, pull.num_tokens) == (held.pages, held.slot, held.num_tokens)
                held.pulls.add(pull.id)
                self._read(held)
            self._compare()

    def close_pull(self, which: int) -> None:
        pulls = [(held, pull) for held in self.oracle.held for pull in sorted(held.pulls)]
        if pulls:
            held, pull = pulls[which % len(pulls)]
            self._read(held)
            self.seen["kept for a pull"] += held.ended
            assert self.cache.close_pull(pull)
            self.oracle.close(held, pull)
            assert not self.cache.close_pull(pull)
            self._compare()

    def reset(self) -> None:
        self.cache.reset()
        self.oracle.reset()
        self._compare()

    def drain(self) -> None:
        """Ends everything; nothing may be left."""
        for held in list(self.oracle.held):
            for pull in sorted(held.pulls):
                self.cache.close_pull(pull)
            self.cache.release(held.request)
            self.cache.release_handle(held.handle)
            with pytest.raises(UnknownHandle):
                self.cache.open_pull(held.handle)
        self.cache.check()
        gauges = self.cache.gauges()
        assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
        assert (gauges.leases, gauges.handles, gauges.pulls) == (0, 0, 0)
        self.cache.reset()
        gauges = self.cache.gauges()
        assert (gauges.pages_free, gauges.slots_free) == (gauges.pages_total, gauges.slots_total)
        self.cache.check()

    # What the device does.

    def _resume(self, held: Held) -> None:
        sequence = self.cache.sequence(held.request)
        if sequence.source_slot >= 0:
            self._slot_data[sequence.slot] = self._slot_data[sequence.source_slot]
        elif held.computed == 0:
            self._slot_data[sequence.slot] = b""
        self.cache.resumed(held.request)
        self.oracle.resumed(held)
        assert self.cache.sequence(held.request).source_slot == -1

    def _compute(self, held: Held, end: int, publish: bool) -> None:
        if held.computed == held.num_tokens:
            return
        if held.computed == held.endpoint:
            self._resume(held)
        sequence = self.cache.sequence(held.request)
        assert sequence.computed == held.computed
        if self.oracle.slots is not None:
            before = held.keys[held.computed // BLOCK - 1] if held.computed else b""
            assert self._slot_data[held.slot] == before, "the live state is not that of the tokens before"
            for position, slot in sequence.snapshots:
                if held.computed < position <= end:
                    self._slot_data[slot] = held.keys[position // BLOCK - 1]
            self._slot_data[held.slot] = (
                self._end_state(held) if end == held.num_tokens else held.keys[end // BLOCK - 1]
            )
        for block in range(held.computed // BLOCK, -(-end // BLOCK) if self.oracle.pages is not None else 0):
            self._page_data[held.pages[block]] = held.keys[block] if block < len(held.keys) else self._end_state(held)
        if publish:
            self.cache.publish(held.request, end)
            self.oracle.publish(held, end)
            self.cache.publish(held.request, held.computed)

    def _end_state(self, held: Held) -> bytes:
        return f"{held.handle}, all {held.num_tokens} tokens".encode()

    def _read(self, held: Held) -> None:
        """What a puller reads must be the request's own prefix and end state."""
        if self.oracle.pages is not None:
            data = [self._page_data[page] for page in held.pages]
            assert data[: len(held.keys)] == list(held.keys)
            assert data[len(held.keys) :] == [self._end_state(held)] * (len(held.pages) - len(held.keys))
        if self.oracle.slots is not None:
            assert self._slot_data[held.slot] == self._end_state(held)

    # What can be seen.

    def _pick(self, which: int, *, sealed: bool) -> Held | None:
        among = [held for held in self.oracle.held if held.sealed is sealed]
        return among[which % len(among)] if among else None

    def _compare(self) -> None:
        """The cache's integrity, its gauges, the content of its trees and the order of its victims."""
        oracle, cache = self.oracle, self.cache
        self.seen["compared"] += 1
        cache.check()
        gauges = cache.gauges()
        trees = (
            (oracle.pages, cache._attention, oracle.page_holders(), gauges.pages_free, gauges.pages_reclaimable),
            (oracle.slots, cache._recurrent, oracle.slot_holders(), gauges.slots_free, gauges.slots_reclaimable),
        )
        for model, window, holders, free, reclaimable in trees:
            if model is None or window is None:
                assert model is window is None
                assert free == reclaimable == 0
                continue
            assert {entry.key: entry.item for entry in window.tree} == model.attached
            assert [entry.key for entry in window.tree.eviction_order()] == model.victims(holders)
            assert reclaimable == len(model.victims(holders))
            assert free == len(oracle.free_pages() if model is oracle.pages else oracle.free_slots())
        assert gauges.leases == sum(not held.sealed for held in oracle.held)
        assert gauges.handles == sum(held.sealed for held in oracle.held)
        assert gauges.pulls == sum(len(held.pulls) for held in oracle.held)
        available = oracle.available()
        grew = any(now > was for now, was in zip(available, self._available, strict=True))
        assert (cache.released > self._released) or not grew
        self._available, self._released = available, cache.released
