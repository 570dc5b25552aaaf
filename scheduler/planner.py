"""Rank 0's planner: from admitted requests to waves."""

from .budget import BudgetPolicy, Work, make_policy
from .config import SchedulerConfig, check_block_alignment
from .lanes import DuplicateLane, Lane, Lanes
from .packer import Packer
from .ring import Ring, WaveOutOfOrder
from .span import Span, WavePlan


class Planner:
    """Chooses the spans of every wave and keeps the account of what has been planned and what is in flight.

    Owner: rank 0's LOOP thread. `plan` only proposes: nothing moves until `accept`, so a caller that could take
    less passes the smaller plan to `accept`, or none at all. Chunks of one request may be in flight in successive
    waves, one span a wave. Time is whatever monotonic seconds the caller passes."""

    def __init__(
        self, config: SchedulerConfig, block_size: int, num_stages: int, policy: BudgetPolicy | None = None
    ) -> None:
        """Raises `ValueError` where the config does not suit the block size. `policy` overrides the config's."""
        check_block_alignment(config, block_size)
        self._config = config
        self._policy = policy or make_policy(config)
        self._lanes = Lanes(block_size)
        self._ring = Ring(2 * num_stages)
        self._packer = Packer(block_size, config.max_spans, config.min_wave_tokens if config.avoid_fragments else None)
        self._next_wave = 0

    @property
    def runnable(self) -> bool:
        """Whether some lane has tokens to plan, be the ring full or not."""
        return len(self._lanes) > 0

    @property
    def can_plan(self) -> bool:
        """Whether `plan` would return a wave."""
        return self.runnable and not self._ring.full

    @property
    def in_flight(self) -> int:
        """Waves accepted and not yet completed."""
        return len(self._ring)

    @property
    def num_lanes(self) -> int:
        return len(self._lanes)

    def lane(self, request: int) -> Lane | None:
        """The request's lane, to be read only; None before admission and once its last chunk is scheduled."""
        return self._lanes.get(request)

    def admit(self, request: int, attempt: int, endpoint: int, num_tokens: int) -> None:
        """Opens a lane for the tokens [endpoint, num_tokens), behind those before it. Raises `DuplicateLane`, and
        `ValueError` on an endpoint that is unaligned or leaves nothing to compute."""
        if self._ring.last_wave_of(request) >= 0:
            raise DuplicateLane(f"request {request} is still in flight")
        self._lanes.add(request, attempt, endpoint, num_tokens)

    def stop(self, request: int) -> int:
        """Plans no more of the request. Returns the last wave that names it, or −1: none ever did, or the last
        one, which ended its prompt, has completed."""
        lane = self._lanes.remove(request)
        return self._ring.last_wave_of(request) if lane is None else lane.last_wave

    def plan(self, now: float) -> WavePlan | None:
        """The next wave; None when the ring is full or nothing is runnable. Calling it again plans the same."""
        overdue = self._overdue(now)
        if not self.can_plan:
            return None
        spans = self._packer.pack(self._lanes, self._policy.budget(self._work()), overdue)
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

    def complete(self, wave: int) -> tuple[Span, ...]:
        """Takes the oldest wave out of the ring, and returns its spans. Raises `UnknownWave`, `WaveOutOfOrder`."""
        return self._ring.complete(wave)

    def _work(self) -> Work:
        return Work(
            unscheduled=tuple(lane.remaining for lane in self._lanes),
            in_flight=tuple(span.length for span in self._ring.latest_chunks().values()),
        )

    def _overdue(self, now: float) -> frozenset[int]:
        late: list[int] = []
        for lane in self._lanes:
            if lane.waiting_since is None:
                lane.waiting_since = now
            elif now - lane.waiting_since >= self._config.progress_deadline_s:
                late.append(lane.request)
        return frozenset(late)
