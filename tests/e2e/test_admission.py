"""Admission on real pipelines whose stages differ: what one has evicted another still has, some of it on the host.
Continuations are those of transformers all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pytest
from wavepp.client.http import PrefillClient

from .conftest import SMALL_CACHE, Subject, SubjectOf
from .harness import Server
from .reference import Pulled, check_first_token, check_pulled_states, pull

LENGTH = 24
"""Tokens of every continuation."""
TOGETHER = 6
"""Requests at a time."""
WINDOWS = ("attention", "recurrent")


@dataclass(frozen=True)
class Group:
    """A model on `pp` stages with caches of these sizes, device and host, by rank."""

    name: str
    pp: int
    pages: str
    slots: str
    host_pages: str
    host_slots: str
    admission: str = "lease"

    def __str__(self) -> str:
        return f"{self.name}-pp{self.pp}-{self.admission}"

    @property
    def flags(self) -> list[str]:
        sizes = {"pages": self.pages, "slots": self.slots, "host-pages": self.host_pages, "host-slots": self.host_slots}
        flags = [*SMALL_CACHE, "--admission", self.admission]
        for what, numbers in sizes.items():
            flags += [f"--{what}" if what.startswith("host") else f"--num-{what}", numbers]
        return flags


GROUPS = [
    Group("demo-hybrid", 2, "34,26", "14,18", "24,12", "6,10"),
    Group("demo-hybrid", 3, "40,30,24", "16,12,14", "8,16,24", "10,4,6"),
    Group("demo-hybrid", 4, "40,26,40,34", "12,16,14,18", "8,16,8,24", "12,6,8,4"),
    Group("demo", 2, "13,10", "8,8", "4,3", "0,0"),
    Group("demo", 3, "10,13,11", "8,8,8", "3,4,2", "0,0,0"),
    Group("demo", 4, "13,10,11,12", "8,8,8,8", "4,2,3,3", "0,0,0,0"),
    Group("kimi-KKKA", 2, "30,26", "12,16", "16,12", "8,6", "lockstep"),
    Group("qwen3", 3, "30,24,26", "8,8,8", "16,8,4", "0,0,0", "lockstep"),
]


class Pressure:
    """A running group, the prompts that crowd its caches, and what came of them."""

    def __init__(self, group: Group, subject: Subject, server: Server, client: PrefillClient) -> None:
        self.group, self.subject, self.server, self.client = group, subject, server, client
        self.pulled: list[Pulled] = []
        self.answers: list[dict[str, Any]] = []
        self._one_decoder = Lock()
        rng = random.Random(12)
        vocabulary = min(subject.decoder.spec.vocab_size, 2000)

        def text(length: int) -> tuple[int, ...]:
            return tuple(rng.randrange(3, vocabulary) for _ in range(length))

        # 135M parameters take a CPU seconds a prompt.
        stems, tails, longest = (4, 2, 64) if subject.name == "demo" else (4, 4, 160)
        self.prompts = [stem + text(9 + 7 * tail) for stem in map(text, [longest] * stems) for tail in range(tails)]
        rng.shuffle(self.prompts)

    def run(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Several at a time; each must begin as in transformers. Every handle is let go."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            self.answers += pool.map(self._prefill, prompts)

    def run_and_pull(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """As `run`, and keeps what a decode worker pulls, to be continued."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            self.answers += pool.map(lambda prompt: self._prefill(prompt, keep=True), prompts)

    def _prefill(self, prompt: tuple[int, ...], keep: bool = False) -> dict[str, Any]:
        answer = self.server.prefill(list(prompt))
        with self._one_decoder:
            expected = self.subject.reference.continuation(prompt, LENGTH)
            check_first_token(answer, expected)
            if keep:
                state = pull(self.client, self.subject.decoder, answer["handle"], len(prompt))
                self.pulled.append(Pulled(f"{len(prompt)} tokens", state, expected))
        self.server.release(answer["handle"])
        return answer


@pytest.fixture(scope="module", params=GROUPS, ids=str)
def pressure(request: pytest.FixtureRequest, subject_of: SubjectOf) -> Iterator[Pressure]:
    group: Group = request.param
    subject = subject_of(group.name)
    with Server(subject.folder, group.pp, *group.flags) as server, PrefillClient(server.url) as client:
        pressure = Pressure(group, subject, server, client)
        yield pressure
        for one in pressure.pulled:
            one.state.free()


def test_crowded_prompts_begin_as_in_transformers(pressure: Pressure) -> None:
    pressure.subject.reference.continuations(pressure.prompts, LENGTH)
    pressure.run(pressure.prompts)
    pressure.run(pressure.prompts[::-1])


def test_their_states_continue_as_in_transformers_after_evictions_and_refills(pressure: Pressure) -> None:
    pressure.run_and_pull(pressure.prompts)
    pulled, pressure.pulled = pressure.pulled, []
    check_pulled_states(pressure.subject.decoder, pulled)


def test_the_stages_really_differed_and_the_host_tier_was_used(pressure: Pressure) -> None:
    reuse = [answer["usage"]["reuse"] for answer in pressure.answers]
    assert any(one["cached_tokens"] > 0 for one in reuse), "nothing was reused"
    limited = {one["limited_by"] for one in reuse} - {None}
    ranks = range(pressure.group.pp)
    assert limited, "no request was kept from reusing more by one rank"
    assert all(name in {f"rank {rank}: {window}" for rank in ranks for window in WINDOWS} for name in limited)
    gauges = pressure.server.state()["ranks"]
    assert any(rank["offloaded"] > 0 for rank in gauges)
    assert any(rank["onboarded"] > 0 for rank in gauges)
    assert any(rank["dropped"] > 0 for rank in gauges), "more than both tiers hold was computed"


def test_nothing_is_held_when_all_is_done(pressure: Pressure) -> None:
    pressure.server.wait_until_idle()
