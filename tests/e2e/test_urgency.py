"""Priorities and deadlines on a real server: who is served first, and what the answers and metrics say of it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from .conftest import SMALL_CACHE, SubjectOf
from .harness import Server

LENGTH = 120
CROWD = 992
"""Tokens of a prompt that leaves no room for another one while its handle lives."""
MANY = 24


@dataclass
class Queue:
    """What is submitted waits for room until `serve`; then one request after the other is served."""

    server: Server
    pool: ThreadPoolExecutor
    random: random.Random = field(default_factory=lambda: random.Random(8))
    answers: dict[str, Future[dict[str, Any]]] = field(default_factory=dict)

    def fill(self) -> None:
        self._crowd = self.server.prefill(self._tokens(CROWD), request_id="crowd")["handle"]

    def submit(self, name: str, **fields: Any) -> None:
        """Returns when the request is in rank 0's queue, so that they arrive in the order of the calls."""
        before = self.server.state()["queued"]
        self.answers[name] = self.pool.submit(self._prefill, name, fields)
        deadline = time.monotonic() + 60
        while self.server.state()["queued"] == before:
            assert time.monotonic() < deadline, f"{name} does not arrive"

    def serve(self) -> list[str]:
        """The order in which they finished, as the server has seen it."""
        self.server.release(self._crowd)
        for answer in self.answers.values():
            answer.result(timeout=120)
        finished = re.findall(r"finished id=(\S+)", self.server.log)
        return [name for name in finished if name in self.answers]

    def _prefill(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        answer = self.server.prefill(self._tokens(LENGTH), request_id=name, **fields)
        self.server.release(answer["handle"])
        return answer

    def _tokens(self, length: int) -> list[int]:
        return [self.random.randrange(3, 250) for _ in range(length)]


@pytest.fixture(params=["lease", "lockstep"])
def queue(request: pytest.FixtureRequest, subject_of: SubjectOf) -> Iterator[Queue]:
    flags = ["--num-pages", "66", "--num-slots", "60", "--max-batch", "1", "--ageing-s", "3600"]
    with (
        Server(subject_of("kimi-KKKA").folder, 2, *SMALL_CACHE, *flags, "--admission", request.param) as server,
        ThreadPoolExecutor(MANY) as pool,
    ):
        yield Queue(server, pool)
        server.wait_until_idle()


def test_an_urgent_request_is_served_before_the_long_queue_and_deadlines_go_earliest_first(queue: Queue) -> None:
    queue.fill()
    low = [f"low-{number}" for number in range(8)]
    for name in low:
        queue.submit(name, priority=5)
    deadlines = {"second": 400, "fourth": 800, "first": 300, "third": 600}
    for name, seconds in deadlines.items():
        queue.submit(name, priority=2, deadline_s=seconds)
    queue.submit("hopeless", priority=2, deadline_s=1e-6)
    queue.submit("plain", priority=2)
    queue.submit("urgent")
    assert queue.serve() == ["urgent", "first", "second", "third", "fourth", "hopeless", "plain", *low]
    timings = {name: answer.result()["timing"] for name, answer in queue.answers.items()}
    assert {name: timing["deadline_met"] for name, timing in timings.items() if "deadline_met" in timing} == {
        **dict.fromkeys(deadlines, True),
        "hopeless": False,
    }
    metrics = queue.server.http.get("/metrics").text
    assert 'wavepp_deadlines_total{outcome="met"} 4.0' in metrics
    assert 'wavepp_deadlines_total{outcome="missed"} 1.0' in metrics
