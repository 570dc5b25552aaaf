"""The load generator sends what its workload says, as it says, and counts it right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import pytest
from wavepp.bench.load import Report, arrivals, lines, run_load
from wavepp.bench.load_config import LoadConfig
from wavepp.bench.load_server import LoadError, LoadServer
from wavepp.server.cli import main

from ..conftest import TinyModelFactory
from ..e2e.harness import Server

BLOCK, SCALE = 16, 290.0
"""Prompts of 448 tokens, of which 400 are reused: 25 blocks, which is no multiple of the snapshot interval."""
FLAGS = ("--block-size", "16", "--max-wave-tokens", "64", "--min-wave-tokens", "16", "--snapshot-interval", "32")


@dataclass
class Script:
    """A server that answers at once, or when `hold_until` requests are in flight. What was sent before is cached, under
    its salt."""

    fail: Callable[[int], httpx.Response | Exception | None] = lambda number: None
    longest: int = 10_000
    vocab_size: int | None = 500
    restarts: bool = False
    hold_until: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    in_flight_when_sent: list[int] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    asked: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        match request.method, request.url.path:
            case "GET", "/v1/models":
                return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": self.longest}]})
            case "GET", "/v1/state":
                return httpx.Response(200, json=self.state())
            case "POST", "/v1/prefill":
                return await self.prefill(json.loads(request.content))
            case "DELETE", path:
                self.live.remove(path.removeprefix("/v1/kv/"))
                return httpx.Response(200, json={})
            case unknown:
                raise AssertionError(unknown)

    def state(self) -> dict[str, Any]:
        self.asked += 1
        epoch = self.asked if self.restarts else 1
        done = len(self.bodies)
        state = {"epoch": epoch, "fresh": True, "waves_done": 3 * done, "stage_seconds": [0.0, 0.0], "unknown": 1}
        return state | ({"block_size": BLOCK, "vocab_size": self.vocab_size} if self.vocab_size else {})

    async def prefill(self, body: dict[str, Any]) -> httpx.Response:
        number = len(self.bodies)
        cached = max((shared(body, other) for other in self.bodies), default=0)
        self.bodies.append(body)
        self.in_flight_when_sent.append(self.in_flight)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self.in_flight == self.hold_until:
            self.held.set()
        await (self.held.wait() if self.hold_until else asyncio.sleep(0))
        self.in_flight -= 1
        match self.fail(number):
            case Exception() as error:
                raise error
            case httpx.Response() as response:
                return response
        self.live.add(f"h{number}")
        usage = {"prompt_tokens": len(body["prompt"]), "cached_tokens": cached}
        token = {"id": 1, "text": "", "logprob": 0.0}
        return httpx.Response(
            200, json={"id": "x", "model": "m", "handle": f"h{number}", "first_token": token, "usage": usage}
        )

    def run(self, **config: Any) -> Report:
        async def run() -> Report:
            async with LoadServer("http://test", transport=httpx.MockTransport(self.answer)) as server:
                return await run_load(server, LoadConfig.model_validate({"scale": SCALE, **config}))

        return asyncio.run(run())


def shared(body: dict[str, Any], other: dict[str, Any]) -> int:
    """Tokens, in whole blocks."""
    if body["cache_salt"] != other["cache_salt"]:
        return 0
    a, b = body["prompt"], other["prompt"]
    least = min(len(a), len(b))
    same = next((i for i in range(least) if a[i] != b[i]), least)
    return same // BLOCK * BLOCK


def test_prefixes_are_sent_first_and_then_every_request_reuses_its_own() -> None:
    script = Script()
    report = script.run(workload="reuse-131k", concurrency=3, requests=10)
    assert [len(body["prompt"]) for body in script.bodies] == [401] * 3 + [448] * 10
    assert (report.requests, report.completed, report.prefixes, report.waves) == (10, 10, 3, 30)
    assert report.cached == report.expected_cached == pytest.approx(400 / 448)
    assert report.good_hits == 1
    assert report.tokens_s * report.wall_s == pytest.approx(10 * 448)
    assert report.requests_s * report.wall_s == pytest.approx(10)
    assert report.bubble == 1
    assert not report.errors


def test_all_clients_send_at_once_and_then_each_when_its_last_request_has_completed() -> None:
    script = Script()
    script.run(workload="cold-64k", concurrency=4, requests=12)
    assert script.in_flight_when_sent[:4] == [0, 1, 2, 3]
    assert script.most_in_flight == 4


def test_every_handle_is_released() -> None:
    script = Script()
    assert script.run(workload="mixed", concurrency=2, requests=9).unreleased == 0
    assert script.live == set()


def test_the_order_of_the_workload_is_kept_and_the_seed_draws_the_tokens() -> None:
    def sent(seed: int) -> list[list[int]]:
        script = Script()
        script.run(workload="mixed", concurrency=1, requests=8, seed=seed)
        return [body["prompt"] for body in script.bodies]

    assert [len(prompt) for prompt in sent(1)] == [401, 448, 448, 448, 896, 448, 448, 448, 896]
    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_a_run_meets_nothing_that_an_earlier_one_left() -> None:
    script = Script()
    for _ in range(2):
        assert script.run(workload="cold-64k", concurrency=1, requests=3).cached == 0
    assert len({body["cache_salt"] for body in script.bodies}) == 2


def test_failures_are_counted_by_kind_and_are_no_throughput() -> None:
    failures: dict[int, httpx.Response | Exception] = {
        1: httpx.Response(429, json={"error": {"message": "full", "type": "overloaded", "code": "queue_full"}}),
        2: httpx.Response(429, json={"error": {"message": "full", "type": "overloaded", "code": "queue_full"}}),
        3: httpx.ReadTimeout("late"),
        4: httpx.ConnectError("gone"),
        5: httpx.Response(502, text="<html>"),
        6: httpx.Response(200, text="{}"),
    }
    script = Script(fail=failures.get)
    report = script.run(workload="cold-64k", concurrency=2, requests=10)
    assert report.errors == {
        "queue_full": 2,
        "timeout": 1,
        "unreachable (ConnectError)": 1,
        "502": 1,
        "answer not understood": 1,
    }
    assert report.completed == 4
    assert report.tokens_s * report.wall_s == pytest.approx(4 * 224)
    assert "failed       2 with queue_full" in "\n".join(lines(report))


def test_where_nothing_completes_there_is_a_report_still() -> None:
    report = Script(fail=lambda number: httpx.ConnectError("gone")).run(workload="cold-64k", requests=3)
    assert (report.completed, report.tokens_s, report.p50_s, report.cached) == (0, 0, None, None)
    assert report.errors == {"unreachable (ConnectError)": 3}
    assert list(lines(report))


def test_a_failing_warm_up_ends_the_run() -> None:
    script = Script(fail=lambda number: httpx.ConnectError("gone"))
    with pytest.raises(LoadError, match="warms the cache up failed: unreachable"):
        script.run(workload="reuse-131k")


def test_a_load_that_the_server_cannot_take_is_refused_with_a_scale_that_it_can() -> None:
    script = Script(longest=300)
    with pytest.raises(LoadError, match=r"448 tokens and the server takes 300 at most: scale it by (\d+)") as refused:
        script.run(workload="reuse-131k")
    assert not script.bodies
    assert script.run(workload="reuse-131k", scale=float(str(refused.value).split()[-3]), requests=1).completed == 1


def test_a_server_without_a_group_is_told_so() -> None:
    with pytest.raises(LoadError, match="is its stage group up"):
        Script(vocab_size=None).run(workload="cold-64k")


def test_the_stages_idleness_is_not_told_over_a_restart() -> None:
    report = Script(restarts=True).run(workload="cold-64k", requests=2)
    assert (report.bubble, report.waves) == (None, None)


def test_arrivals_come_at_their_rate_and_by_their_seed() -> None:
    times = arrivals(20_000, 4.0, seed=1)
    assert times == sorted(times) == arrivals(20_000, 4.0, seed=1)
    assert times[:9] != arrivals(9, 4.0, seed=2)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.03)
    # As of a Poisson stream, the gaps vary by as much as they are long.
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)


def test_an_open_loop_sends_whatever_has_completed() -> None:
    script = Script(hold_until=20)
    report = script.run(workload="cold-64k", concurrency=1, rate=5_000.0, requests=20)
    assert (report.completed, report.rate, report.concurrency) == (20, 5_000.0, None)


@pytest.fixture(scope="module")
def server(tiny_model_factory: TinyModelFactory) -> Iterator[Server]:
    """A hybrid, whose stages reuse a prefix only where they have a snapshot at its very end."""
    folder, _ = tiny_model_factory("kimi", pattern="KKKA")
    with Server(folder, 2, *FLAGS, "--num-pages", "400", "--num-slots", "200") as running:
        yield running


@pytest.mark.parametrize("how", [["-c", "3"], ["--rate", "50", "--prefixes", "2"]])
@pytest.mark.parametrize("workload", ["reuse-131k", "mixed", "cold-64k"])
def test_a_real_server_reuses_exactly_what_the_workload_says(
    server: Server, workload: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["bench", "--url", server.url, "--workload", workload, "--scale", f"{SCALE}", "--requests", "8", "--json"]
    for _ in range(2):
        assert main([*args, *how]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["completed"] == 8
        assert report["cached"] == report["expected_cached"]
        assert report["good_hits"] == (None if workload == "cold-64k" else 1)
        assert report["unreleased"] == 0
        assert report["waves"] > 0
        assert 0 < report["bubble"] < 1
    state = server.http.get("/v1/state").json()
    assert (state["handles"], state["running"], [rank["leases"] for rank in state["ranks"]]) == (0, 0, [0, 0])


def test_wrong_flags_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--workload", "reuse-1k"]) == 2
    assert "--workload: no workload is named 'reuse-1k'; there are cold-64k" in capsys.readouterr().err
    assert main(["bench", "--scale", "0.5"]) == 2
    assert "--scale" in capsys.readouterr().err
    assert main(["bench", "--url", "http://127.0.0.1:9"]) == 1
    assert "wavepp bench: error: http://127.0.0.1:9 cannot be asked" in capsys.readouterr().err
