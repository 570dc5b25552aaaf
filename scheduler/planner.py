"""Rank 0's planner: from admitted requests to waves."""

from .config import SchedulerConfig, check_block_alignment
from .cost_model import StageCosts
from .lanes import DuplicateLane, Lane, Lanes
from .order import ServiceOrder
from .policies import make_policy
from .policy import Situation, WavePolicy
from .ring import Ring, WaveOutOfOrder
from .span import Span, WavePlan


class Planner:
    """Chooses the spans of every wave and keeps the account of what has been planned and what is in flight.

    Owner: rank 0's LOOP thread. `plan` only proposes: nothing moves until `accept`, so a caller that could take
    less passes the smaller plan to `accept`, or none at all. Chunks of one request may be in flight in successive
    waves, one span a wave. Time is whatever monotonic seconds the caller passes."""

    def __init__(
        self, config: SchedulerConfig, block_size: int, num_stages: int, policy: WavePolicy | None = None
    ) -> None:
        """Raises `ValueError` where the config does not suit the block size. `policy` overrides the config's."""
        check_block_alignment(config, block_size)
        self._config = config
        self._costs = StageCosts(config.profile, num_stages, config.cost_smoothing)
        self._policy = policy or make_policy(config, self._costs, block_size, num_stages)
        self._lanes = Lanes(block_size)
        self._ring = Ring(2 * num_stages)
        self._order = ServiceOrder(config.ageing_s, lambda lane: self._costs.least_s(lane.position, lane.end))
        self._next_wave = 0
        self._held_wave = -1
        """The last wave that was held back for an admission: none is held twice."""
        self._holding = False

    @property
    def runnable(self) -> bool:
        """Whether some lane has tokens to plan, be the ring full or not."""
        return len(self._lanes) > 0

    @property
    def can_plan(self) -> bool:
        """Whether `plan` would look for a wave: there is something to plan, room in the ring, and no lone wave that
        waits for company. What makes it true again is `admit` or `complete`."""
        return self.runnable and not self._ring.full and not self._holding

    @property
    def in_flight(self) -> int:
        """Waves accepted and not yet completed."""
        return len(self._ring)

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    @property
    def stage_factors(self) -> tuple[float, ...]:
        """Each stage's expected time, as a multiple of the profile's."""
        return self._costs.factors

    def lane(self, request: int) -> Lane | None:
        """The request's lane, to be read only; None before admission and once its last chunk is scheduled."""
        return self._lanes.get(request)

    def admit(
        self,
        request: int,
        attempt: int,
        endpoint: int,
        num_tokens: int,
        *,
        priority: int = 0,
        deadline: float | None = None,
        arrived_at: float | None = None,
    ) -> None:
        """Opens a lane for the tokens [endpoint, num_tokens), behind those before it. Lower `priority` numbers are
        served first; `deadline`, in the planner's time, is when the last token should be computed; ageing counts from
        `arrived_at`, or from when `plan` first sees the lane. Raises `DuplicateLane`, and `ValueError` on an endpoint
        that is unaligned or leaves nothing to compute."""
        if self._ring.last_wave_of(request) >= 0:
            raise DuplicateLane(f"request {request} is still in flight")
        lane = self._lanes.add(request, attempt, endpoint, num_tokens, priority, deadline, arrived_at)
        self._policy.admitted(lane)
        self._holding = False

    def stop(self, request: int) -> int:
        """Plans no more of the request. Returns the last wave that names it, or −1: none ever did, or the last
        one, which ended its prompt, has completed."""
        lane = self._lanes.remove(request)
        if lane is None:
            return self._ring.last_wave_of(request)
        self._policy.stopped(request)
        return lane.last_wave

    def plan(self, now: float, admitting: bool = False) -> WavePlan | None:
        """The next wave; None when the ring is full, nothing is runnable, or what is left is held back until the
        next `admit` or `complete`, which happens only where `admitting` says that a request is on its way.
        Calling it again plans the same."""
        overdue = self._overdue(now)
        if not self.can_plan:
            return None
        lanes = self._order.of(self._lanes, now)
        spans = self._policy.spans(Situation(lanes, self._ring, overdue, now))
        if admitting and not overdue and self._is_lone(spans) and self._held_wave != self._next_wave:
            self._holding, self._held_wave = True, self._next_wave
            return None
        return WavePlan(self._next_wave, spans)

    def accept(self, plan: WavePlan) -> None:
        """Takes the wave into the ring and advances its lanes. The plan may hold fewer or shorter spans than
        `plan` proposed. All or nothing: raises `PositionMismatch` where a span does not continue its lane,
        `WaveOutOfOrder` on a wave id that is not the next, `RingFull`, and `ValueError` on a wave without spans or
        with two of one request."""
        if plan.wave != self._next_wave:
            raise WaveOutOfOrder(f"wave {plan.wave} was accepted where wave {self._next_wave} is next")
        if not plan.spans or len({span.request for span in plan.spans}) != len(plan.spans):
            raise ValueError(f"wave {plan.wave} must carry one span each of one request or more")
        for span in plan.spans:
            self._lanes.check(span)
        self._ring.add(plan)
        for span in plan.spans:
            self._lanes.advance(span, plan.wave)
        self._next_wave += 1
        self._costs.launched(plan)
        self._policy.accepted(plan)

    def complete(self, wave: int) -> tuple[Span, ...]:
        """Takes the oldest wave out of the ring, and returns its spans. Raises `UnknownWave`, `WaveOutOfOrder`."""
        spans = self._ring.complete(wave)
        self._holding = False
        self._policy.completed(wave, spans)
        return spans

    def observe(self, rank: int, wave: int, seconds: float) -> None:
        """Rank `rank` took `seconds` for the wave, which may have completed since. Corrects what is expected of that
        stage. Waves that left the ring long ago are ignored."""
        self._costs.observe(rank, wave, seconds)

    def _is_lone(self, spans: tuple[Span, ...]) -> bool:
        """Whether the wave would be all that is left, and less than half of what a wave may be, while others run: then
        a request that is being admitted may share it (paper §3)."""
        return (
            self._config.lone_waves_wait
            and len(self._ring) > 0
            and len(spans) == len(self._lanes)
            and all(span.last for span in spans)
            and 2 * sum(span.length for span in spans) < self._config.max_wave_tokens
        )

    def _overdue(self, now: float) -> frozenset[int]:
        late: list[int] = []
        for lane in self._lanes:
            if lane.waiting_since is None:
                lane.waiting_since = now
                if lane.arrived_at is None:
                    lane.arrived_at = now
            elif now - lane.waiting_since >= self._config.progress_deadline_s:
                late.append(lane.request)
        return frozenset(late)
