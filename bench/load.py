"""Load on a running server: a named workload from clients that never rest, or as a stream of arrivals.

    wavepp bench --url http://127.0.0.1:8000 --workload reuse-131k -c 8 [--scale 64]
    wavepp bench --url http://127.0.0.1:8000 --workload mixed --rate 0.5

Closed loop (`-c`): all clients send at once, in the order of the workload, and each sends the next request as soon as
its last one has completed, until all have been sent. Open loop (`--rate`): requests come as a Poisson stream, whatever
has completed. Every handle is released as soon as it comes. What warm requests share is sent, and completes, before
time begins to count; each run has a cache salt of its own, so that it never meets what an earlier one left.

Throughput is the input tokens of completed requests, cached ones included, over the time from the first sending to the
last completion: the filling and the draining of the pipeline count. All bodies are made before that, which takes about
7 bytes of memory a token.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from ..simulator.closed_loop import percentile
from ..simulator.workloads import Job, Prompts, Tokens, named
from .load_config import LoadConfig
from .load_server import Answer, LoadError, LoadServer, State

Progress = Callable[[Literal["warm-up", "load"]], object]
"""Called at the end of every request."""
GOOD_HIT = 0.8
"""The part of the expected prefix that a good hit reuses."""


class Report(msgspec.Struct, frozen=True):
    """Times are seconds, and None where nothing has completed. `bubble`: the part of the time for which the stages, on
    average, did not compute, where the server tells; `good_hits`: the part of completed warm requests that reused at
    least 80% of what they should."""

    workload: str
    concurrency: int | None
    rate: float | None
    requests: int
    completed: int
    errors: dict[str, int]
    wall_s: float
    tokens_s: float
    requests_s: float
    p50_s: float | None
    p95_s: float | None
    mean_s: float | None
    cached: float | None
    """Cached tokens of all input tokens."""
    expected_cached: float
    good_hits: float | None
    bubble: float | None
    waves: int | None
    prefixes: int
    seed: int
    unreleased: int
    """Handles that the server did not take back."""


async def run_load(server: LoadServer, config: LoadConfig, progress: Progress = lambda _: None) -> Report:
    """Raises `LoadError` when nothing can be sent, or when the cache cannot be warmed up."""
    name, jobs, prompts = _prompts(config, await server.state(), await server.longest_prompt())
    salt = secrets.token_hex(8)
    first = [_body(tokens, salt) for tokens in prompts.warm_up()]
    bodies = [_body(tokens, salt) for tokens in prompts]
    run = _Run(server, lambda: progress("warm-up"))
    await run.closed_loop(first, config.concurrency)
    if failed := [answer.error for answer in run.answers.values() if answer.error]:
        raise LoadError(f"a prompt that warms the cache up failed: {failed[0]}")
    run = _Run(server, lambda: progress("load"))
    before = await server.state()
    if config.rate is None:
        await run.closed_loop(bodies, config.concurrency)
    else:
        await run.open_loop(bodies, arrivals(len(bodies), config.rate, config.seed))
    return _report(config, name, jobs, prompts.num_prefixes, run, before, await server.state())


class _Run:
    """Owned by the event loop. `answers` by the request's number."""

    def __init__(self, server: LoadServer, progress: Callable[[], object]) -> None:
        self.answers: dict[int, Answer] = {}
        self.unreleased = 0
        self._server, self._progress = server, progress

    async def closed_loop(self, bodies: Sequence[bytes], clients: int) -> None:
        waiting = iter(enumerate(bodies))
        async with asyncio.TaskGroup() as group:

            async def client() -> None:
                for number, body in waiting:
                    await self._request(number, body, group)

            for _ in range(clients):
                group.create_task(client())

    async def open_loop(self, bodies: Sequence[bytes], times: Sequence[float]) -> None:
        async with asyncio.TaskGroup() as group:
            begin = time.perf_counter()
            for number, (body, at) in enumerate(zip(bodies, times, strict=True)):
                await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
                group.create_task(self._request(number, body, group))

    async def _request(self, number: int, body: bytes, group: asyncio.TaskGroup) -> None:
        answer, handle = await self._server.prefill(body)
        self.answers[number] = answer
        self._progress()
        if handle:
            # Beside the next request: nobody waits for it in the paper's runs.
            group.create_task(self._release(handle))

    async def _release(self, handle: str) -> None:
        self.unreleased += not await self._server.release(handle)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds from the beginning: `rate` a second on average, each independent of the others."""
    chance = random.Random(seed)
    return list(itertools.accumulate(chance.expovariate(rate) for _ in range(count)))


def _prompts(config: LoadConfig, state: State, most: int) -> tuple[str, list[Job], Prompts]:
    vocab_size = config.vocab_size or state.vocab_size
    if state.block_size is None or vocab_size is None:
        raise LoadError("the server does not tell its block size and vocabulary: is its stage group up?")
    workload = named(config.workload).scaled(config.scale, state.block_size)
    jobs = workload.jobs(config.count, state.block_size, config.shuffle)
    longest = max(job.num_tokens for job in jobs)
    if longest > most:
        least = config.scale * longest / most
        raise LoadError(
            f"{workload.name} has prompts of {longest:,} tokens and the server takes {most:,} at most: "
            f"scale it by {math.ceil(least)} or more"
        )
    return workload.name, jobs, Prompts(jobs, config.seed, vocab_size, config.num_prefixes)


def _body(tokens: Tokens, salt: str) -> bytes:
    return msgspec.json.encode({"prompt": tokens.tolist(), "cache_salt": salt})


def _report(
    config: LoadConfig, name: str, jobs: Sequence[Job], prefixes: int, run: _Run, before: State, after: State
) -> Report:
    good = {number: answer for number, answer in run.answers.items() if not answer.error}
    begin = min(answer.began for answer in run.answers.values())
    # Where nothing has completed, until the last failure.
    wall_s = max(answer.ended for answer in (good or run.answers).values()) - begin
    took = sorted(answer.seconds for answer in good.values())
    tokens = sum(answer.prompt_tokens for answer in good.values())
    warm = [(answer, jobs[number]) for number, answer in good.items() if jobs[number].endpoint]
    hits = sum(answer.cached_tokens >= GOOD_HIT * job.endpoint for answer, job in warm)
    same = before.epoch == after.epoch and before.fresh and after.fresh and len(after.stage_seconds) > 0
    busy = sum(after.stage_seconds) - sum(before.stage_seconds)
    return Report(
        workload=name,
        concurrency=config.concurrency if config.rate is None else None,
        rate=config.rate,
        requests=len(jobs),
        completed=len(good),
        errors=dict(Counter(answer.error for answer in run.answers.values() if answer.error)),
        wall_s=wall_s,
        tokens_s=tokens / wall_s,
        requests_s=len(good) / wall_s,
        p50_s=percentile(took, 50) if took else None,
        p95_s=percentile(took, 95) if took else None,
        mean_s=sum(took) / len(took) if took else None,
        cached=sum(answer.cached_tokens for answer in good.values()) / tokens if tokens else None,
        expected_cached=sum(job.endpoint for job in jobs) / sum(job.num_tokens for job in jobs),
        good_hits=hits / len(warm) if warm else None,
        bubble=1 - busy / (wall_s * len(after.stage_seconds)) if same else None,
        waves=after.waves_done - before.waves_done if same else None,
        prefixes=prefixes,
        seed=config.seed,
        unreleased=run.unreleased,
    )


def lines(report: Report) -> Iterator[str]:
    """For people."""
    how = f"c = {report.concurrency}" if report.rate is None else f"{report.rate:g} requests/s"
    yield f"{report.workload}, {how}: {report.completed} of {report.requests} requests in {report.wall_s:.2f} s"
    yield f"  throughput   {report.tokens_s:,.0f} input tokens/s, cached included ({report.requests_s:.3g} requests/s)"
    if report.p50_s is not None and report.p95_s is not None and report.mean_s is not None:
        yield f"  completion   p50 {report.p50_s:.3f} s, p95 {report.p95_s:.3f} s, mean {report.mean_s:.3f} s"
    if report.cached is not None:
        hits = "" if report.good_hits is None else f"; good hits {report.good_hits:.0%}"
        yield f"  cached       {report.cached:.1%} of input tokens ({report.expected_cached:.1%} expected){hits}"
    if report.bubble is not None:
        yield f"  stages       idle for {report.bubble:.1%} of the time, {report.waves} waves"
    for kind, count in sorted(report.errors.items()):
        yield f"  failed       {count} with {kind}"
    if report.unreleased:
        yield f"  handles      {report.unreleased} not taken back by the server"
