"""Where prompts part, against a plain comparison of every prompt with every other."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.admission.forks import ForkMemory, common_blocks
from wavepp.cache.keys import KeySpace

from .scripted import Script, prompt

SPACE = KeySpace("forks")


def keys(*tokens: int) -> tuple[bytes, ...]:
    """One token a block."""
    return SPACE.block_keys(prompt(tokens), 1)


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )


def forks_by_hand(prompts: list[tuple[int, ...]], wanted: tuple[int, ...]) -> list[int]:
    """Prefixes of `wanted` after which the prompts go on in at least two ways."""
    ways = {
        length: {p[length] for p in prompts if p[:length] == wanted[:length] and len(p) > length}
        for length in range(1, len(wanted) + 1)
    }
    return [length for length, tokens in ways.items() if len(tokens) > 1]


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=8).map(tuple), min_size=1, max_size=12)


@given(PROMPTS)
def test_forks_are_where_prompts_go_on_in_two_ways(prompts: list[tuple[int, ...]]) -> None:
    memory = ForkMemory(1000)
    for number, tokens in enumerate(prompts):
        expected = max((shared(tokens, other) for other in prompts[:number]), default=0)
        assert memory.remember(keys(*tokens)) == expected
    for tokens in prompts:
        assert list(memory.forks(keys(*tokens))) == forks_by_hand(prompts, tokens)
    assert len(memory) == len({p[: i + 1] for p in prompts for i in range(len(p))})


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9), st.data())
def test_common_blocks_is_the_length_of_the_common_prefix(a: list[int], b: list[int], data: st.DataObject) -> None:
    length = shared(tuple(a), tuple(b))
    assert common_blocks(keys(*a), keys(*b)) == length
    assert common_blocks(keys(*a), keys(*b), data.draw(st.integers(0, length))) == length


def test_prompts_that_only_go_on_where_others_ended_are_no_fork_until_two_do() -> None:
    memory = ForkMemory(100)
    memory.remember(keys(1, 2))
    memory.remember(keys(1, 2, 3))
    assert list(memory.forks(keys(1, 2, 9))) == []
    memory.remember(keys(1, 2, 4))
    assert list(memory.forks(keys(1, 2, 9))) == [2]


@pytest.mark.parametrize("seed", range(5))
def test_the_least_recently_seen_are_forgotten_and_what_is_remembered_stays_within_its_bound(seed: int) -> None:
    rng = random.Random(seed)
    memory = ForkMemory(60)
    seen: list[tuple[int, ...]] = []
    for _ in range(400):
        trunk = rng.choice(seen[-6:]) if seen and rng.random() < 0.7 else ()
        tokens = (*trunk[: rng.randint(0, len(trunk))], *(rng.randrange(1000) for _ in range(rng.randint(0, 9))))[:30]
        memory.remember(keys(*tokens))
        seen.append(tokens)
        assert len(memory) <= 60
        assert memory.remember(keys(*tokens)) == len(tokens), "the newest is whole"
        assert set(memory.forks(keys(*tokens))) <= set(forks_by_hand(seen, tokens))


def test_a_prompt_that_is_seen_again_and_again_outlives_newer_ones() -> None:
    memory = ForkMemory(20)
    for number in range(50):
        memory.remember(keys(1, 2, 3, 4, 5))
        memory.remember(keys(1000 + number, 2, 3, 4, 5))
    assert memory.remember(keys(1, 2, 3, 4, 5, 6)) == 5
    assert memory.remember(keys(1000, 2)) == 0


def test_a_prompt_longer_than_the_memory_is_not_remembered_and_breaks_nothing() -> None:
    memory = ForkMemory(4)
    memory.remember(keys(*range(10)))
    assert len(memory) == 0
    assert memory.remember(keys(*range(10))) == 0
    memory.remember(keys(1, 2, 3))
    assert memory.remember(keys(1, 2, 9)) == 2


def test_the_second_of_several_prompts_captures_the_fork_and_the_third_resumes_there() -> None:
    script = Script(windows=[("attention",), ("recurrent",)], snapshot_interval=1024)
    for number in range(3):
        script.submit(f"r{number}", [*range(36), *range(100 * (number + 1), 100 * (number + 1) + 4)])
        script.rounds()
        script.finish(f"r{number}")
        if number == 1:
            for rank in script.ranks:
                rank.hint = lambda request: 36
    assert [(install.candidate, install.snapshots) for install in script.installs] == [(0, (36,)), (0, (36,)), (36, ())]


def test_a_fork_in_the_middle_of_a_prompt_is_planned_by_those_that_pass_it() -> None:
    script = Script(windows=[("recurrent",)], snapshot_interval=1024)
    for name, tokens in {
        "first": range(60),
        "second": [*range(20), *range(100, 140)],
        "passes": [*range(20), *range(200, 240)],
        "leaves": [*range(16), *range(300, 340)],
        "stranger": range(400, 460),
    }.items():
        script.submit(name, tokens)
        script.rounds()
        script.finish(name)
    assert [install.snapshots for install in script.installs] == [(56,), (20, 56), (20, 56), (16, 52), (56,)]
