"""The stage cache behaves as the brute-force model says, whatever is done to it in whatever order."""

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from wavepp.cache.layout import Window

from .world import World

ATTENTION, RECURRENT = frozenset({Window.ATTENTION}), frozenset({Window.RECURRENT})
BOTH, NONE = ATTENTION | RECURRENT, frozenset[Window]()
RUNS, STEPS = 8, 800


def step(world: World, random: Random) -> None:
    """One random step. Claims and chunks come often enough to keep the cache full."""
    any_one = random.randrange(1000)
    choice = random.randrange(100)
    if choice < 30:
        lower = random.choice((0, 0, 0, 0, 1, 2, -1))
        world.claim(any_one, random.randrange(4), lower, random.randrange(512) & random.randrange(512))
    elif choice < 50:
        world.compute(any_one, random.randrange(3))
    elif choice < 65:
        world.seal(any_one, publish=random.random() < 0.9)
    elif choice < 70:
        world.release(any_one)
    elif choice < 82:
        world.release_handle(any_one)
    elif choice < 88:
        world.open_pull(any_one)
    elif choice < 94:
        world.close_pull(any_one)
    elif choice < 97:
        world.resume(any_one)
    elif choice < 99:
        world.claim_again(any_one)
    else:
        world.reset()


@pytest.mark.parametrize("windows", [ATTENTION, RECURRENT, BOTH, NONE], ids=["attention", "recurrent", "both", "none"])
def test_random_use_agrees_with_the_model(windows: frozenset[Window]) -> None:
    """Over 5,000 compared steps for each set of windows, and nothing left at the end."""
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        random = Random(seed)
        world = World(windows, pages=random.choice((9, 14, 25, 60)), slots=random.choice((4, 8, 16, 30)))
        for _ in range(STEPS):
            step(world, random)
        seen.update(world.seen)
        seen["page evicted"] += world.oracle.evicted_pages
        seen["slot evicted"] += world.oracle.evicted_slots
        seen["computed twice"] += world.oracle.duplicates
        world.drain()
    least = {"compared": 5000, "Claimed": 500, "ended early": 20, "kept for a pull": 10}
    if windows:
        least |= {"Short": 20, "NoRoom": 100}
    if Window.ATTENTION in windows:
        least |= {"page evicted": 300, "computed twice": 50}
    if Window.RECURRENT in windows:
        least |= {"slot evicted": 60}
    assert {what: seen[what] for what in least if seen[what] < least[what]} == {}, "hardly exercised"


class AnyUse(RuleBasedStateMachine):
    """The same steps, found and shrunk by hypothesis."""

    @initialize(
        windows=st.sampled_from([ATTENTION, RECURRENT, BOTH]), pages=st.integers(1, 20), slots=st.integers(1, 8)
    )
    def start(self, windows: frozenset[Window], pages: int, slots: int) -> None:
        self.world = World(windows, pages, slots)

    which = st.integers(0, 20)

    @rule(prompt=which, tail=st.integers(0, 3), lower=st.integers(-1, 3), snapshots=st.integers(0, 511))
    def claim(self, prompt: int, tail: int, lower: int, snapshots: int) -> None:
        self.world.claim(prompt, tail, lower, snapshots)

    @rule(which=which)
    def claim_again(self, which: int) -> None:
        self.world.claim_again(which)

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
    def open_pull(self, which: int) -> None:
        self.world.open_pull(which)

    @rule(which=which)
    def close_pull(self, which: int) -> None:
        self.world.close_pull(which)

    @rule()
    def reset(self) -> None:
        self.world.reset()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
