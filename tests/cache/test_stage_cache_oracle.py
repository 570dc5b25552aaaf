"""The stage cache behaves as the brute-force model says, whatever is done to it in whatever order."""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from wavepp.cache.escrow import Floors
from wavepp.cache.layout import Window

from .world import World

ATTENTION, RECURRENT = frozenset({Window.ATTENTION}), frozenset({Window.RECURRENT})
BOTH, NONE = ATTENTION | RECURRENT, frozenset[Window]()
STEPS = int(os.environ.get("WAVEPP_TEST_STEPS", "50000"))
"""Compared operations, over all the tests that choose at random."""
LIFE = 500
"""Operations in the life of one cache."""


def make_world(windows: frozenset[Window], random: Random) -> World:
    pages, slots = random.choice((8, 10, 12, 16, 24, 40)), random.choice((2, 3, 4, 6, 9))
    host_pages, host_slots = random.choice(((0, 0), (2, 1), (8, 4), (40, 16), (40, 16)))
    floors = random.choice((Floors(), Floors(), Floors(pages // 4, slots // 4), Floors(pages // 2, 1)))
    retention, crowd = random.choice(("lru", "cost")), random.choice((1, 2, 3, 5, 7))
    return World(windows, pages, slots, host_pages, host_slots, floors, retention, crowd)


def step(world: World, random: Random) -> None:
    """One random step. Leases and chunks come often enough to keep the cache full."""
    which, bits = random.randrange(1000), random.randrange(512) & random.randrange(512)
    choice = random.randrange(200)
    if choice < 4:
        world.flood(stay=random.random() < 0.4)
    elif choice < 13:
        world.twin(which, random.randrange(4))
    elif choice < 40:
        world.lease(which, random.randrange(4), random.choice((0, 0, 0, 0, 1, 2, -1)))
    elif choice < 46:
        world.prepare(which, bits)
    elif choice < 54:
        world.commit(which, random.choice((0, 0, 1, 2, 3, -1)), bits)
    elif choice < 80:
        world.admit(which, random.choice((0, 0, 0, 0, 0, 0, 1, 2)), bits)
    elif choice < 96:
        world.materialise(which, random.randrange(4), random.choice((0, 1, 1, 2)))
    elif choice < 120:
        world.compute(which, random.randrange(3))
    elif choice < 140:
        world.seal(which, publish=random.random() < 0.9)
    elif choice < 146:
        world.withdraw(which)
    elif choice < 150:
        world.release(which)
    elif choice < 174:
        world.retire(which)
    elif choice < 178:
        world.release_handle(which)
    elif choice < 183:
        world.open_pull(which)
    elif choice < 188:
        world.close_pull(which)
    elif choice < 191:
        world.resume(which)
    elif choice < 193:
        world.lease_again(which)
    elif choice < 195:
        world.commit_again(which)
    elif choice < 196:
        world.early(which)
    elif choice < 199:
        world.finish_on_a_copy(random)
    elif random.random() < 0.4:
        world.reset()


def live(windows: frozenset[Window], seed: int) -> Counter[str]:
    """One cache from its first use to its last; a failure names the seed, with which it happens again."""
    random = Random(seed)
    world = make_world(windows, random)
    try:
        while world.seen["compared"] < LIFE:
            step(world, random)
        world.drain()
    except BaseException as error:
        names = sorted(str(window) for window in windows)
        error.add_note(f"again by live(frozenset({names}), {seed}), at compared operation {world.seen['compared']}")
        raise
    seen, oracle = world.seen, world.oracle
    seen.update(offloaded=oracle.offloaded, onboarded=oracle.onboarded, dropped=oracle.dropped)
    seen.update(doubled=oracle.doubled, replaced=oracle.replaced)
    return seen


@pytest.mark.parametrize("windows", [ATTENTION, RECURRENT, BOTH, NONE], ids=["attention", "recurrent", "both", "none"])
def test_random_use_agrees_with_the_model(windows: frozenset[Window]) -> None:
    """And nothing is left at the end of any life."""
    share = {ATTENTION: 0.3, RECURRENT: 0.25, BOTH: 0.4, NONE: 0.05}[windows]
    seen: Counter[str] = Counter()
    for seed in range(max(1, round(STEPS * share / LIFE))):
        seen.update(live(windows, seed))
    often = {"compared", "leased", "commit: committed", "ended early", "kept for a pull"}
    if windows:
        often |= {"prepare: NoRoom", "commit: NoRoom", "trimmed", "substituted", "lease stopped"}
        often |= {"materialised", "left half-way", "finished on a copy", "offloaded", "onboarded", "dropped"}
    if Window.ATTENTION in windows:
        often |= {"doubled", "replaced"}
    if Window.RECURRENT in windows:
        often |= {"commit: prepared", "commit: cut short"}
    least = STEPS // 10000
    assert {what: seen[what] for what in often if seen[what] < least} == {}, "hardly exercised"


class AnyUse(RuleBasedStateMachine):
    """The same steps, found and shrunk by hypothesis."""

    @initialize(
        windows=st.sampled_from([ATTENTION, RECURRENT, BOTH]),
        pages=st.integers(1, 20),
        slots=st.integers(1, 8),
        host=st.integers(0, 6),
        floors=st.integers(0, 3),
        retention=st.sampled_from(["lru", "cost"]),
    )
    def start(self, windows: frozenset[Window], pages: int, slots: int, host: int, floors: int, retention: str) -> None:
        by_cost = "cost" if retention == "cost" else "lru"
        self.world = World(windows, pages, slots, host, host // 2, Floors(floors, floors // 2), by_cost)

    which = st.integers(0, 20)
    bits = st.integers(0, 511)

    @rule(prompt=which, tail=st.integers(0, 3), lower=st.integers(-1, 3))
    def lease(self, prompt: int, tail: int, lower: int) -> None:
        self.world.lease(prompt, tail, lower)

    @rule(stay=st.booleans())
    def flood(self, stay: bool) -> None:
        self.world.flood(stay)

    @rule(which=which, tail=st.integers(0, 3))
    def twin(self, which: int, tail: int) -> None:
        self.world.twin(which, tail)

    @rule(which=which, bits=bits)
    def prepare(self, which: int, bits: int) -> None:
        self.world.prepare(which, bits)

    @rule(which=which, lower=st.integers(0, 1), bits=bits)
    def admit(self, which: int, lower: int, bits: int) -> None:
        self.world.admit(which, lower, bits)

    @rule(which=which, lower=st.integers(-1, 3), bits=bits)
    def commit(self, which: int, lower: int, bits: int) -> None:
        self.world.commit(which, lower, bits)

    @rule(which=which)
    def repeat(self, which: int) -> None:
        self.world.lease_again(which)
        self.world.commit_again(which)
        self.world.early(which)

    @rule(which=which)
    def withdraw(self, which: int) -> None:
        self.world.withdraw(which)

    @rule(which=which, blocks=st.integers(0, 4), limit=st.integers(0, 2))
    def materialise(self, which: int, blocks: int, limit: int) -> None:
        self.world.materialise(which, blocks, limit)

    @rule(which=which)
    def resume(self, which: int) -> None:
        self.world.resume(which)

    @rule(which=which, blocks=st.integers(0, 4))
    def compute(self, which: int, blocks: int) -> None:
        self.world.compute(which, blocks)

    @rule(which=which, publish=st.booleans())
    def seal(self, which: int, publish: bool) -> None:
        self.world.seal(which, publish)

    @rule(which=which)
    def release(self, which: int) -> None:
        self.world.release(which)

    @rule(which=which)
    def release_handle(self, which: int) -> None:
        self.world.release_handle(which)

    @rule(which=which)
    def retire(self, which: int) -> None:
        self.world.retire(which)

    @rule(which=which)
    def open_pull(self, which: int) -> None:
        self.world.open_pull(which)

    @rule(which=which)
    def close_pull(self, which: int) -> None:
        self.world.close_pull(which)

    @rule(seed=which)
    def finish_on_a_copy(self, seed: int) -> None:
        self.world.finish_on_a_copy(Random(seed))

    @rule()
    def reset(self) -> None:
        self.world.reset()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
