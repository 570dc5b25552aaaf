"""A pipeline of stages on virtual time, behind a real planner."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from ..scheduler.cost_model import StageProfile, load_of
from ..scheduler.planner import Planner
from ..scheduler.span import Span, WavePlan


class VirtualPipeline:
    """Stages that take as long as their profile says, in the order of waves, with room for any number of waves between
    them; the ring bounds them all. Rank 0 plans a wave when its stage is free, or `planned_ahead` waves before it.

    The caller owns the clock: it calls `launch` at `ready_at()` and whenever something was admitted or completed, and
    `complete` at `completes_at()`. Stages never wait for what is not known when a wave is launched, so its whole way is
    worked out then: O(P) a wave, and no event a stage."""

    def __init__(
        self,
        planner: Planner,
        profile: StageProfile,
        num_stages: int,
        *,
        planned_ahead: int = 0,
        jitter: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`jitter`: the standard deviation of the logarithm of a stage's time about the profile's."""
        self._planner, self._profile = planner, profile.at(num_stages)
        self._factors = profile.factors(num_stages)
        self._ahead, self._jitter, self._random = planned_ahead, jitter, random.Random(seed)
        self._free = [0.0] * num_stages
        self._starts: deque[float] = deque()
        """When the waves that are planned, and were not begun when last looked at, begin on stage 0."""
        self._running: deque[tuple[float, WavePlan, Sequence[float]]] = deque()
        """In order: when a wave leaves the last stage, and how long each stage took."""
        self.busy_s = 0.0
        """All stages' busy seconds together."""
        self.waves = 0

    def completes_at(self) -> float | None:
        """When the oldest wave leaves the last stage."""
        return self._running[0][0] if self._running else None

    def ready_at(self) -> float | None:
        """The earliest time, past ones included, at which `launch` could plan a wave as things stand; None while the
        planner waits for an admission or a completion."""
        if not self._planner.can_plan:
            return None
        if self._ahead == 0:
            return self._free[0]
        return self._starts[-self._ahead] if len(self._starts) >= self._ahead else 0.0

    def launch(self, now: float, admitting: bool = False) -> int:
        """Plans all that can be planned now. `admitting`: some request is on its way. Returns how many waves."""
        launched = 0
        while self._planner.can_plan and self._has_turn(now):
            plan = self._planner.plan(now, admitting)
            if plan is None:
                break
            self._planner.accept(plan)
            self._run(plan, now)
            launched += 1
        return launched

    def complete(self) -> tuple[Span, ...]:
        """Takes out the oldest wave; the planner hears how long each stage took. Returns its spans."""
        _, plan, took = self._running.popleft()
        for rank, seconds in enumerate(took):
            self._planner.observe(rank, plan.wave, seconds)
        return self._planner.complete(plan.wave)

    def _has_turn(self, now: float) -> bool:
        while self._starts and self._starts[0] <= now:
            self._starts.popleft()
        if self._ahead == 0:
            return self._free[0] <= now
        return len(self._starts) < self._ahead

    def _run(self, plan: WavePlan, now: float) -> None:
        tokens, pairs = load_of(plan.spans)
        average, hop = self._profile.wave(tokens, pairs), self._profile.hop(tokens)
        took: list[float] = []
        ready = now
        for stage, factor in enumerate(self._factors):
            seconds = average * factor
            if self._jitter:
                seconds *= self._random.lognormvariate(0.0, self._jitter)
            begins = max(ready, self._free[stage])
            if stage == 0:
                self._starts.append(begins)
            self._free[stage] = begins + seconds
            ready = begins + seconds + hop
            took.append(seconds)
        self.busy_s += sum(took)
        self.waves += 1
        self._running.append((self._free[-1], plan, took))
