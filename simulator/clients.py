"""Clients of a simulated cluster, and what they saw."""

from __future__ import annotations

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
        self._spec = spec
        self._sent: dict[str, tuple[int, float, int]] = {}
        """By name: its number, when it was sent, and how long it is."""
        self._seen: dict[int, Seen] = {}
        self._count = 0
        self._last = 0.0
        self._pending = False
        """Whether a prompt's time has not come yet."""
        self._timed: Iterator[tuple[float, bytes]] = iter(())
        self._waiting: Iterator[bytes] = iter(())
        self._closed = False

    def closed_loop(self, prompts: Iterable[bytes], clients: int) -> Outcome:
        """All clients send at once, in order; whoever's request has completed sends the next one, until the prompts run
        out: the filling and the draining of the pipeline count. `prompts` are int32 little-endian."""
        self._waiting, self._closed = iter(prompts), True
        for _ in range(clients):
            self._send_next()
        return self._run()

    def timed(self, prompts: Iterable[tuple[float, bytes]]) -> Outcome:
        """Prompts are sent at their times, in seconds from the beginning, whatever has completed."""
        self._closed = False
        self._timed = iter(prompts)
        self._expect_next()
        return self._run()

    @property
    def cached_tokens(self) -> int:
        return sum(seen.cached_tokens for seen in self._seen.values())

    def by_sending(self) -> list[Seen]:
        """What was seen, in the order in which it was sent."""
        return [seen for _, seen in sorted(self._seen.items())]

    def _expect_next(self) -> None:
        following = next(self._timed, None)
        if following is not None:
            at, prompt = following
            self._pending = True
            self.clock.at(at, lambda: (self._send(prompt), self._expect_next()))
        else:
            self._pending = False

    def _run(self) -> Outcome:
        begin = self.clock.now
        while self._sent or not self._seen or self._pending:
            if not self.clock.step():
                raise AssertionError("requests are waiting, and nothing is going to happen")
        return self._outcome(self._last - begin)

    def _send_next(self) -> None:
        prompt = next(self._waiting, None)
        if prompt is not None:
            self._send(prompt)

    def _send(self, prompt: bytes) -> None:
        self._sent[self.cluster.submit(prompt)] = (self._count, self.clock.now, len(prompt) // 4)
        self._count += 1

    def _completed(self, done: Completed) -> None:
        number, sent_at, num_tokens = self._sent.pop(done.name)
        self._last = self.clock.now
        self._seen[number] = Seen(sent_at, self._last - sent_at, num_tokens, done.cached_tokens)
        if self._closed:
            self._send_next()

    def _outcome(self, wall_s: float) -> Outcome:
        seen = self._seen.values()
        took = sorted(one.seconds for one in seen)
        return Outcome(
            tokens_s=sum(one.num_tokens for one in seen) / wall_s,
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
