"""The main job, against transformers on the same weights: what a decode worker pulls continues as if nothing had
happened in between, however the prompt was computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from wavepp.client.http import PrefillClient

from .conftest import SMALL_CACHE, Subject, SubjectOf
from .harness import Server
from .reference import check_first_token, check_pulled_state

LENGTH = 64
"""Tokens of every continuation."""

GROUPS = [
    *(("kimi-KKKA", pp) for pp in (1, 2, 3, 4)),
    *(("qwen3", pp) for pp in (1, 2, 3, 4)),
    *(("demo-hybrid", pp) for pp in (1, 2, 3, 4)),
    *(("demo", pp) for pp in (1, 2, 3, 4)),
]


class Group:
    """A server for one model at one number of stages, and the prompts that it is tried with."""

    def __init__(self, subject: Subject, server: Server, client: PrefillClient) -> None:
        self.subject, self.server, self.client = subject, server, client
        rng = random.Random(20)
        vocabulary = min(subject.decoder.spec.vocab_size, 2000)

        def text(length: int) -> tuple[int, ...]:
            return tuple(rng.randrange(3, vocabulary) for _ in range(length))

        few = subject.name == "demo"
        self.long = text(239)
        self.cold = [self.long, text(16), text(17)] if few else [self.long, text(1), text(15), text(16), text(97)]
        self.shared = [self.long[:cut] + text(tail) for cut, tail in ((160, 7), (128, 33))]
        stem = text(96)
        self.together = [stem[: 16 * (2 + i % 4)] + text(5 + i) for i in range(4 if few else 16)]

    def prefill_and_check(self, prompt: tuple[int, ...], *, keep: bool = False) -> dict:
        """One prompt through the server and the decode worker; returns the server's answer."""
        answer = self.server.prefill(list(prompt))
        self.check(prompt, answer)
        return answer

    def check(self, prompt: tuple[int, ...], answer: dict) -> None:
        expected = self.subject.reference.continuation(prompt, LENGTH)
        check_first_token(answer, expected)
        check_pulled_state(self.client, self.subject.decoder, answer["handle"], expected, len(prompt))
        self.server.release(answer["handle"])


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-pp{group[1]}")
def group(request: pytest.FixtureRequest, subject_of: SubjectOf) -> Iterator[Group]:
    name, pp = request.param
    subject = subject_of(name)
    # Room for about three of the long prompts: later ones push out what earlier ones left.
    with (
        Server(subject.folder, pp, *SMALL_CACHE, "--num-pages", "52", "--num-slots", "44") as server,
        PrefillClient(server.url) as client,
    ):
        yield Group(subject, server, client)


def test_cold_prompts_continue_as_in_transformers(group: Group) -> None:
    for prompt in group.cold:
        assert group.prefill_and_check(prompt)["usage"]["cached_tokens"] == 0


def test_chunks_of_one_prompt_are_in_flight_together_where_there_are_stages(group: Group) -> None:
    before = group.server.state()["waves_done"]
    group.server.http.post("/reset_prefix_cache").raise_for_status()
    group.prefill_and_check(group.long)
    assert group.server.state()["waves_done"] - before == 4, "239 tokens in waves of 64"


def test_a_shared_prefix_is_reused_and_only_the_suffix_computed(group: Group) -> None:
    group.prefill_and_check(group.long)
    for prompt in group.shared:
        computed = group.server.state()["tokens_computed"]
        answer = group.prefill_and_check(prompt)
        cached = answer["usage"]["cached_tokens"]
        assert 96 <= cached <= len(prompt) - 1
        assert cached % 16 == 0
        assert group.server.state()["tokens_computed"] - computed == len(prompt) - cached


def test_an_equal_prompt_computes_its_last_block_only(group: Group) -> None:
    group.prefill_and_check(group.long)
    assert group.prefill_and_check(group.long)["usage"]["cached_tokens"] == 224


def test_prompts_that_arrive_together_do_not_disturb_each_other(group: Group) -> None:
    one_decoder = Lock()

    def prefill_and_check(prompt: tuple[int, ...]) -> None:
        answer = group.server.prefill(list(prompt))
        with one_decoder:
            group.check(prompt, answer)

    for prompt in group.together:
        group.subject.reference.continuation(prompt, LENGTH)
    with ThreadPoolExecutor(len(group.together)) as pool:
        assert len(list(pool.map(prefill_and_check, group.together))) == len(group.together)


def test_prompts_are_right_after_pressure_has_evicted_and_refilled(group: Group) -> None:
    rng = random.Random(4)
    group.prefill_and_check(group.long)
    for _ in range(6):
        crowd = group.server.prefill([rng.randrange(3, 200) for _ in range(230)])
        group.server.release(crowd["handle"])
    again = group.prefill_and_check(group.long)
    assert again["usage"]["cached_tokens"] == 0, "the pressure was meant to evict the prompt"
    assert group.prefill_and_check(group.long)["usage"]["cached_tokens"] == 224


def test_nothing_is_held_when_all_is_done(group: Group) -> None:
    group.server.wait_until_idle()
