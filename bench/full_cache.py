"""Stage caches filled to the brim, and a thread that keeps them changing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self

from ..cache.answers import NoRoom
from ..cache.stage_cache import StageCache

BLOCK = 64
LIMIT = 200_000
"""Tokens of a long prompt that may be reused: 3,125 blocks."""
TOKENS = LIMIT + BLOCK // 2
"""Of the whole prompt: at least one token is always computed."""
INTERVAL = 8_192
"""Tokens between a prompt's snapshots."""

Keys = tuple[bytes, ...]


def random_keys(rng: random.Random, blocks: int) -> Keys:
    """Of a prompt that shares nothing. To the cache a key is 16 bytes that no other chain has."""
    return tuple(rng.randbytes(16) for _ in range(blocks))


def snapshots_of(num_tokens: int) -> tuple[int, ...]:
    """Where a prompt leaves recurrent states: at every interval, and at the last block that may be reused."""
    last = (num_tokens - 1) // BLOCK * BLOCK
    return (*range(INTERVAL, last, INTERVAL), last) if last else ()


class Requests:
    """Gives requests their numbers, and takes them through a cache as WAVE and LOOP would."""

    def __init__(self, cache: StageCache) -> None:
        self._cache = cache
        self._ids = count(1)

    def lease(self, keys: Keys, num_tokens: int, candidate: int) -> int:
        """Returns the request, which holds what is there of `candidate` tokens."""
        request = next(self._ids)
        self._cache.lease(request, 1, f"handle {request}", keys, num_tokens, candidate)
        return request

    def commit(self, request: int, endpoint: int, snapshots: tuple[int, ...]) -> None:
        for outcome in (self._cache.prepare(request, snapshots), self._cache.commit(request, endpoint, snapshots)):
            if isinstance(outcome, NoRoom) or outcome.endpoint != endpoint:
                raise RuntimeError(f"the cache is too small for this measurement: {outcome}")

    def run(self, keys: Keys, num_tokens: int, snapshots: tuple[int, ...]) -> None:
        """A prompt that reuses nothing, from its lease to the end of its handle: all of it stays cached."""
        request = self.lease(keys, num_tokens, 0)
        self.commit(request, 0, snapshots)
        self.finish(request, num_tokens)

    def finish(self, request: int, num_tokens: int) -> None:
        """From a committed request to the end of its handle."""
        while self._cache.materialise(request, num_tokens) is not None:
            self._cache.resumed(request)
        self._cache.publish(request, num_tokens)
        self._cache.seal(request)
        self._cache.release_handle(f"handle {request}")


class Churn:
    """A thread that does one piece of bookkeeping after the other, as LOOP does between waves, with a pause between
    them in which LOOP would compute. Use as a context manager."""

    def __init__(self, cycle: Callable[[], None], pause_s: float) -> None:
        self._cycle, self._pause_s = cycle, pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cycles = 0
        self.failed: BaseException | None = None
        self.elapsed_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        if self.failed is not None and error is None:
            raise self.failed

    def _run(self) -> None:
        begun = time.perf_counter()
        try:
            while not self._stop.is_set():
                self._cycle()
                self.cycles += 1
                time.sleep(self._pause_s)
        except BaseException as error:
            self.failed = error
        self.elapsed_s = time.perf_counter() - begun
