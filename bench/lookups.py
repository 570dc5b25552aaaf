"""How long it takes to find out what of a prompt could be reused: the hint index beside a walk under the mutex.

64 prompts of 200K tokens come at once, to a rank whose cache is full and which another thread keeps changing.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cache.layout import Window
from ..cache.stage_cache import StageCache
from .full_cache import BLOCK, LIMIT, TOKENS, Churn, Keys, Requests, random_keys, snapshots_of
from .naive_walk import NaiveTree

PROMPTS, FAMILIES = 64, 16
WAVE_TOKENS = 16_384
"""What the other thread computes and publishes at a time: a wave of the paper's."""

Lookup = Callable[[Keys, int], int]
"""(keys, limit in tokens) → reusable tokens."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """`each_s`: what every lookup took. `hints_s`: from the moment when all prompts had come to when this one's hint
    was there. `endpoints`: what the prompts could reuse, in tokens. `changes`: blocks attached and detached meanwhile,
    a second."""

    endpoints: list[int]
    each_s: list[float]
    hints_s: list[float]
    changes: float

    @property
    def median_us(self) -> float:
        return statistics.median(self.each_s) * 1e6

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self.hints_s)
        return ordered[math.ceil(0.99 * len(ordered)) - 1] * 1e3


class Traffic:
    """The same prompts for everything that is compared: each continues one of a few cached ones, to a depth of its own,
    and then shares nothing with any."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self.cached = [random_keys(self._rng, LIMIT // BLOCK) for _ in range(FAMILIES)]
        self.prompts = [self._prompt(number) for number in range(PROMPTS)]

    def cold(self) -> Keys:
        """A wave's worth of blocks that nobody has seen."""
        return random_keys(self._rng, WAVE_TOKENS // BLOCK)

    def _prompt(self, number: int) -> Keys:
        blocks = LIMIT // BLOCK
        # One in four is cached as a whole, as when a conversation goes on.
        shared = blocks if number % 4 == 0 else self._rng.randrange(blocks)
        # Hashed anew from each prompt's own tokens: equal to the cached ones, and never the same objects.
        again = tuple(bytes(memoryview(key)) for key in self.cached[number % FAMILIES][:shared])
        return (*again, *random_keys(self._rng, blocks - shared))


def by_index(traffic: Traffic, windows: frozenset[Window], rounds: int, pause_s: float) -> Lookups:
    """Hints as WAVE asks for them, while the other thread leases, evicts, publishes and lets go."""
    snapshots = snapshots_of(TOKENS) if Window.RECURRENT in windows else ()
    blocks, beside = FAMILIES * LIMIT // BLOCK, 4 * WAVE_TOKENS // BLOCK
    cache = StageCache(windows, blocks + beside, FAMILIES * (len(snapshots) + 1) + 64, BLOCK)
    requests = Requests(cache)
    for keys in traffic.cached:
        requests.run(keys, TOKENS, snapshots)
        # Others hold all of it, so that every round finds the same.
        for endpoint in snapshots or (LIMIT,):
            requests.lease(keys, TOKENS, endpoint)
    at = snapshots_of(WAVE_TOKENS) if snapshots else ()

    def cycle() -> None:
        requests.run(traffic.cold(), WAVE_TOKENS, at)

    for _ in range(32):
        cycle()
    gauges = cache.gauges()
    assert gauges.pages_free < beside and gauges.slots_free < 64, "the cache is not full"
    return _measured(traffic.prompts, lambda keys, limit: cache.hint(keys, limit).endpoint, cycle, rounds, pause_s)


def by_naive_walk(traffic: Traffic, windows: frozenset[Window], rounds: int, pause_s: float) -> Lookups:
    """Walks of the tree, block by block, under the mutex that the other thread's changes take too."""
    recurrent = Window.RECURRENT in windows
    snapshots = frozenset(at // BLOCK for at in snapshots_of(TOKENS)) if recurrent else frozenset()
    tree = NaiveTree(FAMILIES * LIMIT // BLOCK + 4 * WAVE_TOKENS // BLOCK, threading.Lock())
    for keys in traffic.cached:
        tree.insert(keys, snapshots)

    def cycle() -> None:
        tree.release(tree.insert(traffic.cold()))

    for _ in range(32):
        cycle()
    return _measured(
        traffic.prompts,
        lambda keys, limit: tree.probe(keys, limit // BLOCK, recurrent) * BLOCK,
        cycle,
        rounds,
        pause_s,
    )


def _measured(
    prompts: Sequence[Keys], lookup: Lookup, cycle: Callable[[], None], rounds: int, pause_s: float
) -> Lookups:
    each: list[float] = []
    hints: list[float] = []
    rng, now = random.Random(1), time.perf_counter
    with Churn(cycle, pause_s) as churn:
        for _ in range(rounds):
            # Whatever the other thread is at.
            time.sleep(rng.uniform(0.001, 0.01))
            start = now()
            for keys in prompts:
                begun = now()
                lookup(keys, LIMIT)
                done = now()
                each.append(done - begun)
                hints.append(done - start)
    endpoints = [lookup(keys, LIMIT) for keys in prompts]
    return Lookups(endpoints, each, hints, churn.cycles * WAVE_TOKENS // BLOCK / churn.elapsed_s)
