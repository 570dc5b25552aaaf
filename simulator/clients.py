"""Clients of a simulated cluster, and what they saw."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..admission.effects import Completed
from .clock import Clock
from .closed_loop import Outcome, percentile
from .cluster import Cluster, ClusterSpec


@dataclass(frozen=True, slots=True)
class Seen:
    """One request, as its client saw it: seconds from its sending to its first token, and tokens."""

    sent_at: float
    seconds: float
    num_tokens: int
    cached_tokens: int


class Clients:
    """Owner of a cluster and its clock. One run a cluster."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.clock = Clock()
        self.cluster = Cluster(spec, self.clock, self._completed)
        self.seen: list[Seen] = []
        self._spec = spec
        self._sent: dict[str, tuple[float, int]] = {}
        self._waiting: Iterator[bytes] = iter(())
        self._closed = False

    def closed_loop(self, prompts: Iterable[bytes], clients: int) -> Outcome:
        """All clients send at once, in order; whoever's request has completed sends the next one, until the prompts run
        out: the filling and the draining of the pipeline count. `prompts` are int32 little-endian."""
        self._waiting, self._closed = iter(prompts), True
        for _ in range(clients):
            self._send_next()
        return self._run()

    def open_loop(self, prompts: Iterable[bytes], requests_per_s: float, seed: int) -> Outcome:
        """A Poisson stream: prompts are sent whatever has completed."""
        chance, at = random.Random(seed), 0.0
        self._closed = False
        for prompt in prompts:
            at += chance.expovariate(requests_per_s)
            self.clock.at(at, lambda prompt=prompt: self._send(prompt))
        return self._run()

    def _run(self) -> Outcome:
        begin = self.clock.now
        last = begin
        while self._sent or not self.seen:
            if not self.clock.step():
                raise AssertionError("requests are waiting, and nothing is going to happen")
            if self.seen:
                last = self.seen[-1].sent_at + self.seen[-1].seconds
        return self._outcome(last - begin)

    def _send_next(self) -> None:
        prompt = next(self._waiting, None)
        if prompt is not None:
            self._send(prompt)

    def _send(self, prompt: bytes) -> None:
        self._sent[self.cluster.submit(prompt)] = (self.clock.now, len(prompt) // 4)

    def _completed(self, done: Completed) -> None:
        sent_at, num_tokens = self._sent.pop(done.name)
        self.seen.append(Seen(sent_at, self.clock.now - sent_at, num_tokens, done.cached_tokens))
        if self._closed:
            self._send_next()

    def _outcome(self, wall_s: float) -> Outcome:
        took = sorted(one.seconds for one in self.seen)
        return Outcome(
            tokens_s=sum(one.num_tokens for one in self.seen) / wall_s,
            p50_s=percentile(took, 50),
            p95_s=percentile(took, 95),
            mean_s=sum(took) / len(took),
            bubble=1 - self.cluster.busy_s / (wall_s * self._spec.num_stages),
            wall_s=wall_s,
            requests=len(took),
            waves=self.cluster.waves,
        )

    def come_to_rest(self) -> None:
        """Lets time pass until nothing is held any more. Raises AssertionError when that does not come."""
        for _ in range(1_000_000):
            if self.cluster.idle or not self.clock.step():
                break
        assert self.cluster.idle, "an idle cluster holds something"
