"""Clients that send their next request when the last one has completed, before a virtual pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..scheduler.config import SchedulerConfig
from ..scheduler.cost_model import StageProfile
from ..scheduler.planner import Planner
from .virtual_pipeline import VirtualPipeline
from .workloads import Job


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the pipeline stands in. `admission_s`: from a request's sending to its lane. `planned_ahead`: waves that
    rank 0 plans before their turn. `jitter`: of stage times, as the standard deviation of their logarithm."""

    num_stages: int
    block_size: int = 64
    admission_s: float = 0.0
    planned_ahead: int = 0
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`tokens_s`: input tokens of completed requests, cached ones included, over the whole run's time, from the first
    request's sending to the last one's completion. Seconds to complete count from a request's sending. `bubble`: the
    part of that time for which the stages, on average, were idle."""

    tokens_s: float
    p50_s: float
    p95_s: float
    mean_s: float
    bubble: float
    wall_s: float
    requests: int
    waves: int


class ClosedLoop:
    """Owner of the virtual clock. All `clients` send at time 0, in order; whoever's request has completed sends the
    next one at once, until the jobs run out: the run counts the filling and the draining of the pipeline."""

    def __init__(
        self, config: SchedulerConfig, profile: StageProfile, jobs: Sequence[Job], clients: int, around: Surroundings
    ) -> None:
        """`profile` is how long stages take; what the planner believes of it is in its config."""
        self._planner = Planner(config, around.block_size, around.num_stages)
        self._pipeline = VirtualPipeline(
            self._planner,
            profile,
            around.num_stages,
            planned_ahead=around.planned_ahead,
            jitter=around.jitter,
            seed=around.seed,
        )
        self._jobs, self._clients, self._around = jobs, clients, around
        self._sent = 0
        self._sent_at: dict[int, float] = {}
        self._admissions: deque[tuple[float, int]] = deque()
        """In order: when a request gets its lane, and which."""
        self._took: list[float] = []

    def run(self) -> Outcome:
        now = 0.0
        for _ in range(min(self._clients, len(self._jobs))):
            self._send(now)
        while True:
            self._admit(now)
            self._pipeline.launch(now, admitting=bool(self._admissions))
            following = self._next_event()
            if following is None:
                break
            now = max(now, following)
            while (completes := self._pipeline.completes_at()) is not None and completes <= now:
                for span in self._pipeline.complete():
                    if span.last:
                        self._took.append(now - self._sent_at.pop(span.request))
                        self._send(now)
        return self._outcome(now)

    def _send(self, now: float) -> None:
        if self._sent < len(self._jobs):
            self._sent_at[self._sent] = now
            self._admissions.append((now + self._around.admission_s, self._sent))
            self._sent += 1

    def _admit(self, now: float) -> None:
        while self._admissions and self._admissions[0][0] <= now:
            _, request = self._admissions.popleft()
            job = self._jobs[request]
            self._planner.admit(request, 0, job.endpoint, job.num_tokens)

    def _next_event(self) -> float | None:
        times = [self._pipeline.completes_at(), self._pipeline.ready_at()]
        if self._admissions:
            times.append(self._admissions[0][0])
        return min((time for time in times if time is not None), default=None)

    def _outcome(self, wall_s: float) -> Outcome:
        took = sorted(self._took)
        return Outcome(
            tokens_s=sum(job.num_tokens for job in self._jobs) / wall_s,
            p50_s=percentile(took, 50),
            p95_s=percentile(took, 95),
            mean_s=sum(took) / len(took),
            bubble=1 - self._pipeline.busy_s / (wall_s * self._around.num_stages),
            wall_s=wall_s,
            requests=len(took),
            waves=self._pipeline.waves,
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest values, in proportion."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
