"""The policy `cost`: waves of the time that serves the pipeline best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .config import SchedulerConfig
from .cost_model import StageCosts, load_of
from .forecast import ExitForecast
from .lanes import Lane
from .policy import Situation
from .span import Span, WavePlan
from .time_packer import STRETCH, TimePacker
from .wave_time import Demand, WaveTime, rounds_of

PACE = 0.9
"""A wave is not planned to be faster than so much of the pace of those ahead: it would only catch up with them."""

RECENT = 128
"""Completions: whether requests are followed by others is judged by about so many."""

LITTLE = 2.0
"""Waves: where no more than that is left to plan, it is cut evenly."""


@dataclass(frozen=True, slots=True)
class _Suffix:
    """What a request brought, whole: tokens, and work in seconds of the profile."""

    tokens: int
    work: float


class CostWaves:
    """Equal times rather than equal tokens: every wave gets the work that `WaveTime` finds best for what is admitted,
    and at most M tokens. A request that has the pipeline to itself is cut into equal waves. Not bound by b_min."""

    def __init__(self, config: SchedulerConfig, costs: StageCosts, block_size: int, num_stages: int) -> None:
        self._costs = costs
        self._max_tokens, self._block_size = config.max_wave_tokens, block_size
        self._wave_time = WaveTime(costs, num_stages, config.cost_slack_waves)
        self._packer = TimePacker(costs.profile, block_size, config.max_wave_tokens, config.max_spans)
        self._suffixes: dict[int, _Suffix] = {}
        """Of every request that has not completed, those in flight included."""
        self._tokens, self._work = 0, 0.0
        self._arrived = self._completed = 0
        self._exits = ExitForecast()
        self._hops = num_stages - 1
        self._now = 0.0

    def admitted(self, lane: Lane) -> None:
        suffix = _Suffix(lane.remaining, self._costs.profile.work(lane.position, lane.end))
        self._suffixes[lane.request] = suffix
        self._tokens += suffix.tokens
        self._work += suffix.work
        self._arrived += 1

    def stopped(self, request: int) -> None:
        self._forget(request)

    def spans(self, situation: Situation) -> tuple[Span, ...]:
        if len(situation.ring) == 0:
            self._arrived = self._completed = 0
        self._now = situation.now
        return self._packer.pack(situation.lanes, self._target(situation))

    def accepted(self, plan: WavePlan) -> None:
        tokens, pairs = load_of(plan.spans)
        profile, costs = self._costs.profile, self._costs
        average = profile.wave(tokens, pairs)
        seconds = costs.slowest * average
        transit = costs.transit * seconds + self._hops * profile.hop(tokens)
        self._exits.launched(plan.wave, seconds, costs.factors[0] * average, transit, self._now)

    def completed(self, wave: int, spans: tuple[Span, ...]) -> None:
        for span in spans:
            if span.last:
                self._forget(span.request)
                self._completed += 1
        if self._completed > RECENT:
            self._arrived, self._completed = self._arrived // 2, self._completed // 2
        self._exits.completed(wave)

    def _forget(self, request: int) -> None:
        suffix = self._suffixes.pop(request, None)
        if suffix is not None:
            self._tokens -= suffix.tokens
            # Differences of sums would leave a remainder behind.
            self._work = self._work - suffix.work if self._suffixes else 0.0

    def _target(self, situation: Situation) -> float:
        """The work of the next wave, in seconds of the profile."""
        profile, slowest = self._costs.profile, self._costs.slowest
        lanes = situation.lanes
        oldest = self._suffixes[lanes[0].request].work
        demand = Demand(
            admitted=max(self._work, oldest) * slowest,
            oldest=oldest * slowest,
            rounds=rounds_of(self._arrived, self._completed),
            tokens=self._tokens,
        )
        longest = max(lane.end for lane in lanes)
        most = profile.work(max(0, longest - self._max_tokens), longest) * slowest
        best = self._wave_time.best(demand, min(most, self._block_size * profile.token_s * slowest), most)
        best = min(most, max(best, self._pace_ahead(situation.now)))
        return self._even(demand, situation.lanes, best, most) / slowest

    def _even(self, demand: Demand, lanes: Sequence[Lane], best: float, most: float) -> float:
        """Where little is left to plan, equal waves rather than a last small one."""
        profile, slowest = self._costs.profile, self._costs.slowest
        alone = len(self._suffixes) == 1
        left = 0.0
        for lane in lanes:
            left += profile.work(lane.position, lane.end) * slowest
            if left > LITTLE * best and not alone:
                return best
        if alone:
            fewer = max(1, int(left / best))
            waves = min(fewer, fewer + 1, key=lambda number: self._wave_time.serving_s(demand, left / number))
        else:
            waves = max(1, math.ceil(left / best - STRETCH))
        return min(most, left / waves)

    def _pace_ahead(self, now: float) -> float:
        """The work of a wave that leaves the pipeline no sooner than right behind the waves in flight."""
        if self._costs.transit == 0:
            return 0.0
        seconds = self._exits.remaining(now) / self._costs.transit
        return PACE * seconds - self._costs.slowest * self._costs.profile.wave_s
