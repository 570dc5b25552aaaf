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
from .reference import Pulled, check_first_token, check_pulled_states, pull

LENGTH = 64
"""Tokens of every continuation."""

GROUPS = [
    *(("kimi-KKKA", pp, "lease") for pp in (1, 2, 3, 4)),
    *(("qwen3", pp, "lease") for pp in (1, 2, 4)),
    *(("demo-hybrid", pp, "lease") for pp in (1, 2, 4)),
    *(("demo", pp, "lease") for pp in (1, 2, 4)),
    ("kimi-KKKA", 2, "lockstep"),
    ("qwen3", 3, "lockstep"),
]


class Group:
    """A server for one model at one number of stages, and the prompts that it is tried with."""

    def __init__(self, subject: Subject, server: Server, client: PrefillClient) -> None:
        self.subject, self.server, self.client = subject, server, client
        self.pulled: list[Pulled] = []
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
        if subject.name == "demo":
            # 135M parameters take a CPU seconds a prompt: the whole set at P = 2 only.
            whole = len(server.state()["ranks"]) == 2
            self.cold = [self.long, self.cold[1], self.cold[4]] if whole else [self.long]
            self.together = self.together if whole else self.together[::4]
            self.shared = self.shared if whole else self.shared[:1]

    def prefill(self, prompt: tuple[int, ...], how: str) -> dict:
        """One prompt through the server; checks its first token, pulls its state and lets the handle go. From any
        thread. The state is continued in the last of the tests, with all others at once."""
        answer = self.server.prefill(list(prompt))
        with self._one_decoder:
            expected = self.subject.reference.continuation(prompt, LENGTH)
            check_first_token(answer, expected)
            state = pull(self.client, self.subject.decoder, answer["handle"], len(prompt))
            self.pulled.append(Pulled(how, state, expected))
        self.server.release(answer["handle"])
        return answer


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-pp{group[1]}-{group[2]}")
def group(request: pytest.FixtureRequest, subject_of: SubjectOf) -> Iterator[Group]:
    name, pp, admission = request.param
    subject = subject_of(name)
    # Room for two of the long prompts: later ones push out what earlier ones left.
    with (
        Server(
            subject.folder, pp, *SMALL_CACHE, "--num-pages", "36", "--num-slots", "40", "--admission", admission
        ) as server,
        PrefillClient(server.url) as client,
    ):
        group = Group(subject, server, client)
        yield group
        for one in group.pulled:
            one.state.free()


def test_cold_prompts_are_computed_whole_in_full_waves(group: Group) -> None:
    before = group.server.state()["waves_done"]
    cached = [group.prefill(prompt, "cold")["usage"]["cached_tokens"] for prompt in group.cold]
    assert cached == [0] * len(group.cold)
    waves = [-(-len(prompt) // 64) for prompt in group.cold]
    assert group.server.state()["waves_done"] - before == sum(waves), "each in waves of 64 tokens, the longest in four"


def test_what_is_cached_is_reused_and_only_the_rest_computed(group: Group) -> None:
    group.server.release(group.server.prefill(list(group.long))["handle"])
    assert group.prefill(group.long, "reused")["usage"]["cached_tokens"] == 224, "all but the last block"
    for prompt in group.shared:
        before = group.server.state()["tokens_computed"]
        cached = group.prefill(prompt, "shared prefix")["usage"]["cached_tokens"]
        assert cached % 16 == 0
        assert 96 <= cached < len(prompt)
        assert group.server.state()["tokens_computed"] - before == len(prompt) - cached


def test_prompts_that_arrive_together_do_not_disturb_each_other(group: Group) -> None:
    group.subject.reference.continuations(group.together, LENGTH)
    with ThreadPoolExecutor(len(group.together)) as pool:
        answers = list(pool.map(lambda prompt: group.prefill(prompt, "together"), group.together))
    if len(answers) == 16:
        # The cache holds five of them: those who wait find the stem that the first have left.
        assert max(answer["usage"]["cached_tokens"] for answer in answers) >= 32


def test_prompts_are_right_after_pressure_has_evicted_and_refilled(group: Group) -> None:
    rng = random.Random(4)
    group.server.release(group.server.prefill(list(group.long))["handle"])
    for _ in range(3):
        crowd = group.server.prefill([rng.randrange(3, 200) for _ in range(230)])
        group.server.release(crowd["handle"])
    evicted = group.prefill(group.long, "evicted")["usage"]
    assert evicted["cached_tokens"] == 0, "the pressure was meant to evict the prompt"
    assert group.prefill(group.long, "refilled")["usage"]["cached_tokens"] == 224


def test_every_pulled_state_continues_as_in_transformers(group: Group) -> None:
    pulled, group.pulled = group.pulled, []
    assert {one.how for one in pulled} == {"cold", "reused", "shared prefix", "together", "evicted", "refilled"}
    check_pulled_states(group.subject.decoder, pulled)


def test_nothing_is_held_when_all_is_done(group: Group) -> None:
    group.server.wait_until_idle()
