"""What is done to a stage cache and to the oracle at once, and how both are compared after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from string import ascii_lowercase

from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.escrow import Floors
from wavepp.cache.eviction import Retention
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .comparison import Storage, compare_gauges, compare_windows
from .oracle import Oracle
from .oracle_parts import Held

BLOCK = 4


def chain(prompt: str) -> tuple[bytes, ...]:
    """A key names its whole prefix, as chained digests do."""
    assert set(prompt) <= set(ascii_lowercase)
    return tuple(prompt[: i + 1].encode() for i in range(len(prompt)))


def positions(bits: int, num_blocks: int) -> tuple[int, ...]:
    """The block ends that `bits` names."""
    return tuple(r * BLOCK for r in range(1, num_blocks + 1) if bits >> r & 1)


class SideBySide:
    """A stage cache, the oracle beside it, and storage that remembers what was written where. Every operation is made
    on both, and then all that can be seen is compared."""

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
        self.storage = Storage()
        self._released = 0

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
                self.storage.execute(moves)
            self.seen["materialised"] += step is not None
            if self.oracle.pages is not None and got.pages:
                prefix = held.keys[: held.endpoint // BLOCK]
                assert [self.storage.device["attention"][page] for page in got.pages[: len(prefix)]] == list(prefix)
                assert got.pages[: len(prefix)] == tuple(self.oracle.pages.device[key] for key in prefix)
            if held.source is not None and got.slot >= 0:
                assert self.storage.device["recurrent"][got.source_slot] == held.source, "resumes from another state"
            else:
                assert got.source_slot == -1
        return moves is not None

    def _resume(self, held: Held) -> None:
        with self._step():
            sequence = self.cache.sequence(held.request)
            if sequence.source_slot >= 0:
                self.storage.device["recurrent"][sequence.slot] = self.storage.device["recurrent"][sequence.source_slot]
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
                self.storage.device["recurrent"][held.slot] = b""
        sequence = self.cache.sequence(held.request)
        assert sequence.computed == held.computed
        if self.oracle.slots is not None:
            state, before = (
                self.storage.device["recurrent"],
                held.keys[held.computed // BLOCK - 1] if held.computed else b"",
            )
            assert state[held.slot] == before, "the live state is not that of the tokens before"
            for position, slot in sequence.snapshots:
                if held.computed < position <= end:
                    state[slot] = held.keys[position // BLOCK - 1]
            state[held.slot] = self._end_state(held) if end == held.num_tokens else held.keys[end // BLOCK - 1]
        if self.oracle.pages is not None:
            for block in range(held.computed // BLOCK, -(-end // BLOCK)):
                content = held.keys[block] if block < len(held.keys) else self._end_state(held)
                self.storage.device["attention"][held.pages[block]] = content
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
            data = [self.storage.device["attention"][page] for page in held.pages]
            assert data[: len(held.keys)] == list(held.keys)
            assert data[len(held.keys) :] == [self._end_state(held)] * (len(held.pages) - len(held.keys))
        if self.oracle.slots is not None:
            assert self.storage.device["recurrent"][held.slot] == self._end_state(held)

    def _among(self, *phases: str) -> list[Held]:
        return [held for held in self.oracle.held if held.phase in phases]

    def _pick(self, which: int, *phases: str) -> Held | None:
        among = self._among(*phases)
        return among[which % len(among)] if among else None

    @contextmanager
    def _step(self) -> Generator[None]:
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
        compare_windows(self.cache, oracle, self.storage)
        compare_gauges(self.cache, oracle)
