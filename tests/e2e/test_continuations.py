"""The main job, against transformers on the same weights: what a decode worker pulls continues as if nothing had
happened in between, however the prompt was computed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from wavepp.client.decode_state import DecodeState
from wavepp.client.http import PrefillClient

from .conftest import SMALL_CACHE, Subject, SubjectOf
from .harness import Server
from .reference import Continuation, check_first_token, check_pulled_states, pull

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
        self._pulled: list[tuple[DecodeState, Continuation]] = []
        self._one_decoder = Lock()
        rng = random.Random(20)
        vocabulary = min(subject.decoder.spec.vocab_size, 2000)

        def text(length: int) -> tuple[int, ...]:
            return tuple(rng.randrange(3, vocabulary) for _ in range(length))

        self.long = text(239)
        self.cold = [self.long, *(text(length) for length in (1, 15, 16, 17, 97))]
        self.shared = [self.long[:cut] + text(tail) for cut, tail in ((160, 7), (128, 33))]
        stem = text(96)
        self.together = [stem[:cut] + text(101 - cut) for cut in (32, 48, 64, 80) for _ in range(4)]
        if subject.name == "demo" and len(server.state()["ranks"]) != 2:
            # 135M parameters take a CPU seconds a prompt: the whole set at P = 2, a part of it elsewhere.
            self.cold, self.together = self.cold[:3], self.together[::4]

    def prefill(self, prompt: tuple[int, ...]) -> dict:
        """One prompt through the server; checks its first token, pulls its state and lets the handle go. From any
        thread. `check_continuations` must follow."""
        answer = self.server.prefill(list(prompt))
        with self._one_decoder:
            expected = self.subject.reference.continuation(prompt, LENGTH)
            check_first_token(answer, expected)
            state = pull(self.client, self.subject.decoder, answer["handle"], len(prompt))
            self._pulled.append((state, expected))
        self.server.release(answer["handle"])
        return answer

    def check_continuations(self) -> None:
        pulled, self._pulled = self._pulled, []
        check_pulled_states(self.subject.decoder, pulled)


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-pp{group[1]}")
def group(request: pytest.FixtureRequest, subject_of: SubjectOf) -> Iterator[Group]:
    name, pp = request.param
    subject = subject_of(name)
    # Room for about three of the long prompts: later ones push out what earlier ones left.
    with (
        Server(subject.folder, pp, *SMALL_CACHE, "--num-pages", "52", "--num-slots", "40") as server,
        PrefillClient(server.url) as client,
    ):
        yield Group(subject, server, client)


def test_cold_prompts_continue_as_in_transformers(group: Group) -> None:
    before = group.server.state()["waves_done"]
    cached = [group.prefill(prompt)["usage"]["cached_tokens"] for prompt in group.cold]
    assert cached == [0] * len(group.cold)
    waves = [-(-len(prompt) // 64) for prompt in group.cold]
    assert group.server.state()["waves_done"] - before == sum(waves), "each in waves of 64 tokens, the longest in four"
    group.check_continuations()


def test_what_is_cached_is_reused_and_only_the_rest_computed(group: Group) -> None:
    group.server.release(group.server.prefill(list(group.long))["handle"])
    assert group.prefill(group.long)["usage"]["cached_tokens"] == 224, "all but the last block"
    for prompt in group.shared:
        before = group.server.state()["tokens_computed"]
        cached = group.prefill(prompt)["usage"]["cached_tokens"]
        assert cached % 16 == 0
        assert 96 <= cached < len(prompt)
        assert group.server.state()["tokens_computed"] - before == len(prompt) - cached
    group.check_continuations()


def test_prompts_that_arrive_together_do_not_disturb_each_other(group: Group) -> None:
    group.subject.reference.continuations(group.together, LENGTH)
    with ThreadPoolExecutor(len(group.together)) as pool:
        answers = list(pool.map(group.prefill, group.together))
    assert max(answer["usage"]["cached_tokens"] for answer in answers) >= 32, "the stem was never reused"
    group.check_continuations()


def test_prompts_are_right_after_pressure_has_evicted_and_refilled(group: Group) -> None:
    rng = random.Random(4)
    group.server.release(group.server.prefill(list(group.long))["handle"])
    for _ in range(4):
        crowd = group.server.prefill([rng.randrange(3, 200) for _ in range(230)])
        group.server.release(crowd["handle"])
    assert group.prefill(group.long)["usage"]["cached_tokens"] == 0, "the pressure was meant to evict the prompt"
    assert group.prefill(group.long)["usage"]["cached_tokens"] == 224
    group.check_continuations()


def test_nothing_is_held_when_all_is_done(group: Group) -> None:
    group.server.wait_until_idle()
