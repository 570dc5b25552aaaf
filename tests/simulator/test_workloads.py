"""Named workloads, and the prompts that they are made of."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from wavepp.simulator.paper_k3 import MEASURED
from wavepp.simulator.workloads import CELLS, Cell, Job, Prompts, named, prompts


def test_the_papers_workloads_have_the_papers_sizes() -> None:
    assert named("cold-64k").jobs(2, 64) == [Job(65_536, 0)] * 2
    assert named("cold-131k").jobs(1, 64) == [Job(131_072, 0)]
    assert named("cold-262k").jobs(1, 64) == [Job(262_144, 0)]
    assert named("reuse-131k").jobs(1, 64) == [Job(131_072, 117_952)]
    assert named("reuse-262k").jobs(1, 64) == [Job(262_144, 235_904)]
    warm, cold = Job(131_072, 117_952), Job(262_144, 0)
    assert named("mixed").jobs(5, 64) == [warm, warm, warm, cold, warm]


def test_a_named_workload_is_what_the_papers_cells_send() -> None:
    assert {(cell.family, cell.input_tokens) for cell in MEASURED} == set(CELLS.values())
    for name, (family, tokens) in CELLS.items():
        assert named(name).jobs(9, 64, shuffle=3) == Cell(family, tokens, 8).jobs(9, 64, shuffle=3)


def test_an_unknown_name_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'reuse-1k'; there are cold-64k, .*, mixed"):
        named("reuse-1k")


@pytest.mark.parametrize("factor", [1, 3, 64, 1_000, 1e9])
@pytest.mark.parametrize("name", CELLS)
def test_scaled_prompts_are_whole_blocks_and_warm_ones_still_reuse_and_compute_some(name: str, factor: float) -> None:
    full, small = named(name).jobs(4, 32), named(name).scaled(factor, 32).jobs(4, 32)
    for before, after in zip(full, small, strict=True):
        assert after.num_tokens % 32 == after.endpoint % 32 == 0
        assert 64 <= after.num_tokens <= max(64, before.num_tokens / factor)
        assert bool(after.endpoint) == bool(before.endpoint)
        assert after.endpoint < after.num_tokens
        if factor == 64 and after.endpoint:
            assert after.endpoint / after.num_tokens == pytest.approx(0.9, abs=32 / after.num_tokens)


@pytest.mark.parametrize("factor", [0.5, 0, -1, float("nan")])
def test_a_workload_cannot_be_scaled_up(factor: float) -> None:
    with pytest.raises(ValueError, match="scaled down by 1 or more"):
        named("mixed").scaled(factor)


def made(seed: int = 5, prefixes: int = 2) -> tuple[list[Job], Prompts]:
    jobs = named("mixed").scaled(256).jobs(10, 64)
    return jobs, prompts(jobs, seed, 1_000, prefixes)


def test_prompts_are_as_long_as_their_jobs_and_of_the_vocabulary() -> None:
    jobs, sent = made()
    assert len(sent) == len(jobs)
    for job, tokens in zip(jobs, sent, strict=True):
        assert tokens.dtype == np.int32
        assert tokens.shape == (job.num_tokens,)
        assert tokens.min() >= 0
        assert 900 < tokens.max() < 1_000


def test_warm_prompts_take_the_prefixes_in_turn_and_share_nothing_else() -> None:
    jobs, sent = made()
    warm = [number for number, job in enumerate(jobs) if job.endpoint]
    endpoint = jobs[0].endpoint
    for (i, a), (j, b) in combinations(enumerate(sent), 2):
        both = i in warm and j in warm and (warm.index(i) - warm.index(j)) % 2 == 0
        shared = int(np.argmax(a[:endpoint] != b[:endpoint])) if (a[:endpoint] != b[:endpoint]).any() else endpoint
        assert (shared == endpoint) == both
        assert not np.array_equal(a[endpoint : endpoint + 64], b[endpoint : endpoint + 64])


def test_what_is_sent_first_ends_one_token_behind_each_prefix() -> None:
    jobs, sent = made()
    first = list(sent.warm_up())
    assert len(first) == sent.num_prefixes == 2
    for number, tokens in enumerate(first):
        assert len(tokens) == jobs[0].endpoint + 1
        assert np.array_equal(tokens[:-1], sent[number][: jobs[0].endpoint])


def test_nothing_is_sent_before_cold_prompts_and_no_prefix_that_nobody_takes() -> None:
    assert list(prompts(named("cold-64k").scaled(256).jobs(3, 64), 0, 100, 4).warm_up()) == []
    assert len(list(prompts(named("reuse-131k").scaled(256).jobs(3, 64), 0, 100, 8).warm_up())) == 3


def test_a_prefix_that_is_reused_to_two_lengths_is_sent_to_both_the_shorter_first() -> None:
    sent = prompts([Job(512, 256), Job(512, 128), Job(512, 0)], 0, 100)
    first = list(sent.warm_up())
    assert [len(tokens) for tokens in first] == [129, 257]
    assert np.array_equal(first[0][:128], first[1][:128])
    assert np.array_equal(sent[0][:256], first[1][:256])
    assert np.array_equal(sent[1][:128], first[0][:128])


def test_the_same_seed_draws_the_same_prompts_in_whatever_order_they_are_asked_for() -> None:
    (_, once), (_, again), (_, other) = made(), made(), made(seed=6)
    assert np.array_equal(once[7], list(again)[7])
    assert not np.array_equal(once[0], other[0])
    with pytest.raises(IndexError):
        once[10]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"vocab_size": 1}, {"prefixes": 0}])
def test_numbers_that_are_too_small_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="or more"):
        prompts([Job(64, 0)], **{"seed": 0, "vocab_size": 2, **wrong})
