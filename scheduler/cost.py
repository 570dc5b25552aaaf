"""The policy `cost`: waves of the time that serves the pipeline best."""

from dataclasses import dataclass

from .config import SchedulerConfig
from .cost_model import StageCosts
from .lanes import Lane
from .policy import Situation
from .span import Span, WavePlan
from .time_packer import TimePacker
from .wave_time import Demand, WaveTime, rounds_of


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
        return self._packer.pack(situation.lanes, self._target(situation))

    def accepted(self, plan: WavePlan) -> None:
        pass

    def completed(self, wave: int, spans: tuple[Span, ...]) -> None:
        for span in spans:
            if span.last:
                self._forget(span.request)
                self._completed += 1

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
        demand = Demand(
            admitted=self._work * slowest,
            oldest=self._suffixes[lanes[0].request].work * slowest,
            rounds=rounds_of(self._arrived, self._completed),
            tokens=self._tokens,
        )
        longest = max(lane.end for lane in lanes)
        most = profile.work(max(0, longest - self._max_tokens), longest) * slowest
        best = self._wave_time.best(demand, min(most, self._block_size * profile.token_s * slowest), most)
        if len(self._suffixes) > 1:
            return best / slowest
        left = profile.work(lanes[0].position, lanes[0].end) * slowest
        fewer = max(1, int(left / best))
        waves = min(fewer, fewer + 1, key=lambda n: self._wave_time.serving_s(demand, left / n))
        return left / waves / slowest
