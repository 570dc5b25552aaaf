"""LOOP of one simulated rank, which the caller lets go on from one call of the cache to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum, auto

from ..admission.claim import Claim as Claimed
from ..admission.claim import Drop, Grant, Order, Retract
from ..admission.claims import Claims
from ..admission.effects import Admitted, StopPlanning
from ..admission.messages import FirstToken, RoundDown, RoundUp, WaveDone, WaveStarted
from ..admission.participant import Participant
from ..cache.stage_cache import StageCache
from ..scheduler.planner import Planner
from .storage import Storage


@dataclass(frozen=True, slots=True)
class Piece:
    request: int
    attempt: int
    endpoint: int
    start: int
    end: int
    last: bool


@dataclass(frozen=True, slots=True)
class Wave:
    number: int
    spans: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """Rank 0 is about to run the wave."""

    wave: Wave


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more of the request will be planned."""

    request: int
    after_wave: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last rank has run the wave."""

    wave: int


@dataclass(frozen=True, slots=True)
class Timed:
    """How long a rank's stage took for a wave."""

    rank: int
    wave: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Grew:
    """Capacity has grown on this rank."""


class Phase(Enum):
    """Where a running wave stands: at a touch of the cache, or at the work of the device itself."""

    CACHE = auto()
    DEVICE = auto()


Mail = RoundUp | Planned | WaveStarted | WaveDone | Stopped | Grew
"""From LOOP to its rank's WAVE."""

Control = Order | RoundDown | Admitted | StopPlanning | Finished | Timed | Grew
"""From WAVE to its rank's LOOP."""


class Loop:
    """`inbox` and `waves` wait until the caller lets the rank take the next one; `mails` are its answers to WAVE. While
    a wave runs (`busy`), WAVE, pulls and the other ranks may come in between any two steps."""

    def __init__(
        self,
        number: int,
        epoch: int,
        last: bool,
        cache: StageCache,
        claims: Claims,
        storage: Storage,
        batch: int,
        planner: Planner | None,
        participant: Participant | None,
        send: Callable[[Wave], None],
    ) -> None:
        """`planner` on rank 0; `participant` where rounds are applied here, in lockstep; `send` brings a wave that has
        been computed to the next rank."""
        self._number, self._epoch, self._last, self._send = number, epoch, last, send
        self._cache, self._claims, self._storage, self._batch = cache, claims, storage, batch
        self.planner, self._participant = planner, participant
        self.inbox: deque[Control] = deque()
        self.waves: deque[tuple[int, Wave]] = deque()
        """With how many controls had been put in before it came: it is run after those."""
        self.mails: deque[Mail] = deque()
        self._put = self._taken = self._released = 0
        self._running: Generator[Phase] | None = None
        self.stage_time: Callable[[Wave], float] = lambda _: 0.0
        """Seconds that the device needs for a wave, as they are reported."""
        self._wave: Wave | None = None
        self.admitting = False
        """On rank 0: whether a request is being committed, as WAVE has left word."""
        self._admitted: dict[int, Admitted] = {}

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def wave(self) -> Wave | None:
        """The one that runs."""
        return self._wave if self.busy else None

    @property
    def can_bring(self) -> bool:
        """Whether an admitted prefix is not on the device; on rank 0 none that is stopped."""
        granted = self._claims.granted()
        return bool(granted) and (self.planner is None or any(claim.request.id in self._admitted for claim in granted))

    @property
    def can_plan(self) -> bool:
        return self.planner is not None and self.planner.can_plan

    def put(self, control: Control) -> None:
        self._put += 1
        self.inbox.append(control)

    def arrive(self, wave: Wave) -> None:
        self.waves.append((self._put, wave))

    def acts(self) -> list[tuple[str, Callable[[], object]]]:
        """What may happen next; planning apart."""
        if self._running is not None:
            return [("go on", self.go_on)]
        acts: list[tuple[str, Callable[[], object]]] = []
        if self.inbox:
            acts.append(("take", self.take))
        if self.can_bring:
            acts.append(("bring", self.bring))
        if self.waves:
            acts.append(("begin", self.begin))
        return acts

    # What happens. All of it between waves, but for `go_on`.

    def take(self) -> None:
        """The oldest control."""
        self._taken += 1
        match self.inbox.popleft():
            case (Claimed() | Grant() | Retract() | Drop()) as order:
                self._claims.take(order)
            case RoundDown() as down:
                assert self._participant is not None
                up = self._participant.apply(down)
                for order in self._participant.take_orders():
                    self._claims.take(order)
                self.mails.append(up)
            case Admitted() as admitted:
                self._admitted[admitted.request.id] = admitted
            case StopPlanning(request):
                assert self.planner is not None
                stopped = self._admitted.pop(request, None) is not None
                self.mails.append(Stopped(request, -1 if stopped else self.planner.stop(request)))
            case Finished(wave):
                assert self.planner is not None
                self.planner.complete(wave)
            case Timed(rank, wave, seconds):
                assert self.planner is not None
                self.planner.observe(rank, wave, seconds)
            case Grew():
                pass
        self.tell_of_room()

    def bring(self) -> None:
        """A batch of the oldest admitted prefix that is not on the device; those that need none pass it."""
        brought = False
        for claim in self._claims.granted():
            request = claim.request.id
            if self.planner is not None and request not in self._admitted:
                continue
            if brought and not self._cache.on_device(request):
                continue
            moves = self._cache.materialise(request, claim.endpoint, self._batch)
            if moves is not None:
                self._storage.execute(moves)
                brought = True
                continue
            self._claims.on_device(request)
            if self.planner is not None:
                admitted = self._admitted.pop(request)
                self.planner.admit(
                    request,
                    admitted.attempt,
                    admitted.endpoint,
                    admitted.num_tokens,
                    priority=admitted.priority,
                    deadline=admitted.deadline,
                    arrived_at=admitted.submitted_at,
                )
        self.tell_of_room()

    def plan(self, now: float) -> None:
        """Begins the next wave on rank 0, when there is one."""
        assert self.planner is not None
        plan = self.planner.plan(now, admitting=bool(self._admitted) or self.admitting)
        if plan is None:
            return
        spans: list[Piece] = []
        for span in plan.spans:
            lane = self.planner.lane(span.request)
            assert lane is not None
            spans.append(Piece(span.request, lane.attempt, lane.endpoint, span.start, span.end, span.last))
        self.planner.accept(plan)
        wave = Wave(plan.wave, tuple(spans))
        self.mails.append(Planned(wave))
        self._running = self._run(wave)

    def begin(self) -> None:
        """The oldest wave that came from the rank before, after all that WAVE had handed over by then."""
        after, wave = self.waves[0]
        while self._taken < after:
            self.take()
        self.waves.popleft()
        self._running = self._run(wave)

    def go_on(self) -> Phase | None:
        """The running wave, up to its next touch of the cache or the device's work; None when it is done."""
        assert self._running is not None
        phase = next(self._running, None)
        if phase is None:
            self._running = None
            self.tell_of_room()
        return phase

    def tell_of_room(self) -> None:
        if self._participant is not None:
            report = self._participant.report()
            if report is not None:
                self.mails.append(report)
        elif self._cache.released != self._released:
            self._released = self._cache.released
            self.mails.append(Grew())

    def _run(self, wave: Wave) -> Generator[Phase]:
        self._wave = wave
        self.mails.append(WaveStarted(self._epoch, self._number, wave.number))
        for span in wave.spans:
            yield from self._materialise(span)
        for span in wave.spans:
            sequence = self._cache.sequence(span.request)
            self._storage.compute(sequence, self._claims.request(span.request).tokens, span.start, span.end)
        yield Phase.DEVICE
        self._send(wave)
        tokens = tuple(FirstToken(span.request, 7, -0.5) for span in wave.spans if span.last and self._last)
        yield Phase.CACHE
        for span in wave.spans:
            self._cache.publish(span.request, span.end)
            yield Phase.CACHE
            if span.last:
                self._cache.seal(span.request)
                self._claims.finished(span.request)
                yield Phase.CACHE
        self._claims.wave_completed(wave.number)
        self.mails.append(WaveDone(self._epoch, self._number, wave.number, self.stage_time(wave), tokens))

    def _materialise(self, span: Piece) -> Generator[Phase]:
        request = span.request
        assert self._claims.find(request) is not None, "a wave names what this rank has not committed"
        sequence = self._cache.sequence(request)
        assert (sequence.attempt, sequence.endpoint) == (span.attempt, span.endpoint), "not what the ranks agreed on"
        assert sequence.computed == span.start
        while (moves := self._cache.materialise(request, span.end)) is not None:
            self._storage.execute(moves)
            yield Phase.CACHE
        if sequence.source_slot >= 0:
            self._storage.resume(sequence)
            yield Phase.CACHE
            self._cache.resumed(request)
