"""What one 200K-token prompt costs a rank: hashing it, pinning 3,125 blocks of prefix, promising 3,125 of suffix.

Under the mutex it is the time that the mutex is held which counts: so long every other thread may have to wait.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from ..cache.keys import KeySpace
from ..cache.layout import Window
from ..cache.stage_cache import StageCache
from .full_cache import BLOCK, LIMIT, TOKENS, Requests, random_keys, snapshots_of
from .naive_walk import NaiveTree
from .timed_lock import TimedLock


@dataclass(frozen=True, slots=True)
class Pair:
    """Medians, in milliseconds."""

    ours: float
    naive: float


def hashing(repeats: int) -> Pair:
    """All chained keys of the prompt; beside it the same chain of sha256, cut to the same length."""
    tokens = random.Random(0).randbytes(4 * TOKENS)
    space = KeySpace("model")

    def chained_sha256() -> None:
        stride, key = 4 * BLOCK, space.domain()
        keys: list[bytes] = []
        for start in range(0, len(tokens) - stride + 1, stride):
            key = sha256(tokens[start : start + stride] + key).digest()[:16]
            keys.append(key)

    ours, naive = [], []
    for _ in range(repeats):
        ours.append(_timed(lambda: space.block_keys(tokens, BLOCK)))
        naive.append(_timed(chained_sha256))
    return _medians(ours, naive)


def walking(repeats: int) -> Pair:
    """On a hybrid rank, none of the blocks held by anybody: the lease walks and pins in one hold of the mutex. The
    naive way holds it twice, for one walk that probes and one that pins."""
    rng = random.Random(0)
    keys, others = (random_keys(rng, LIMIT // BLOCK) for _ in range(2))
    snapshots = snapshots_of(TOKENS)
    mutex, naive_mutex = TimedLock(), TimedLock()
    cache = StageCache(frozenset(Window), 2 * LIMIT // BLOCK + 1, 2 * len(snapshots) + 1, BLOCK, mutex=mutex)
    requests, tree = Requests(cache), NaiveTree(2 * LIMIT // BLOCK, naive_mutex)
    for chain in (keys, others):
        requests.run(chain, TOKENS, snapshots)
        tree.release(tree.insert(chain, frozenset(at // BLOCK for at in snapshots)))

    ours, naive = [], []
    for _ in range(repeats):
        mutex.take_held_s()
        request = requests.lease(keys, TOKENS, LIMIT)
        ours.append(mutex.take_held_s())
        assert cache.sequence(request).endpoint == LIMIT, "the lease has lost some of its prefix"
        cache.withdraw(request)

        naive_mutex.take_held_s()
        blocks = tree.probe(keys, LIMIT // BLOCK, recurrent=True)
        path = tree.claim(keys, blocks)
        naive.append(naive_mutex.take_held_s())
        assert len(path) * BLOCK == LIMIT, "the naive walk has lost some of its prefix"
        tree.release(path)
    return _medians(ours, naive)


def promising(repeats: int) -> Pair:
    """In a cache without a free page, where nobody holds anything: prepare and commit promise the pages of a prompt
    that reuses nothing. The naive way evicts and allocates them there and then: it is what LOOP's materialisation does
    for us later, chunk by chunk, here in one."""
    rng = random.Random(0)
    mutex = TimedLock()
    pages = 2 * -(-TOKENS // BLOCK)
    snapshots = snapshots_of(TOKENS)
    cache = StageCache(frozenset(Window), pages, 2 * len(snapshots) + 1, BLOCK, mutex=mutex)
    requests = Requests(cache)
    for _ in range(3):
        requests.run(random_keys(rng, LIMIT // BLOCK), TOKENS, snapshots)

    ours, naive = [], []
    for _ in range(repeats):
        request = requests.lease(random_keys(rng, LIMIT // BLOCK), TOKENS, 0)
        mutex.take_held_s()
        requests.commit(request, 0, snapshots)
        ours.append(mutex.take_held_s())
        victims = cache.gauges().pages_promised - cache.gauges().pages_free
        assert victims > 3_000, f"only {victims} of the promised pages are taken by others"

        mutex.take_held_s()
        cache.materialise(request, TOKENS)
        naive.append(mutex.take_held_s())
        requests.finish(request, TOKENS)
    return _medians(ours, naive)


def _medians(ours: list[float], naive: list[float]) -> Pair:
    return Pair(statistics.median(ours) * 1e3, statistics.median(naive) * 1e3)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
