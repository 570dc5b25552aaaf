"""A whole stage group on virtual time: the same leader, participants, caches and planner that serve, and a model that
only takes time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ..admission.config import AdmissionConfig
from ..admission.effects import Completed, Effect, Ended
from ..admission.leader import Leader
from ..admission.limiter import floors
from ..admission.messages import RoundDown, RoundUp, WaveDone, WaveStarted
from ..admission.request import Sampling
from ..scheduler.config import SchedulerConfig
from ..scheduler.cost_model import StageProfile, pairs_of
from ..scheduler.planner import Planner
from .clock import Alarm, Clock
from .costs import PlaneCosts
from .leading import Leading
from .loop import Mail, Wave
from .memory import StageMemory
from .rank import KEYS, Rank, RankSpec
from .rungs import LEASED, Rung
from .shared_keys import SharedPromptKeys
from .timed_loop import Handing, TimedLoop
from .timed_storage import TimedStorage

EPOCH = 1
_HOST_BATCH = 64


class RefusedError(ValueError):
    """The group cannot serve the prompt at all."""


class NoRoomError(ValueError):
    """The caches cannot hold what is to be there beforehand."""


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster is made of. `profile` is how long stages take; what the planner believes of it is in `scheduler`.
    `jitter`: the standard deviation of the logarithm of a stage's time about the profile's."""

    num_stages: int
    block_size: int
    profile: StageProfile
    memory: StageMemory
    scheduler: SchedulerConfig
    admission: AdmissionConfig
    costs: PlaneCosts = field(default_factory=PlaneCosts)
    rung: Rung = LEASED
    jitter: float = 0.0
    seed: int = 0


class TimedRank(Rank):
    storage_type = TimedStorage


class Cluster:
    """Owner of everything, on one virtual clock. Submit, and let the clock go on; `completed` is called with every
    request that has its first token, and with how much of it was reused."""

    def __init__(self, spec: ClusterSpec, clock: Clock, completed: Callable[[Completed], None]) -> None:
        self._spec, self._clock, self._completed = spec, clock, completed
        self._costs, self._random = spec.costs, random.Random(spec.seed)
        leased = spec.rung.leased
        ring_tokens = 2 * spec.num_stages * spec.scheduler.max_wave_tokens
        memory, admission = spec.memory, spec.admission
        sizes = RankSpec(
            attention=memory.num_pages > 0,
            recurrent=memory.num_slots > 0,
            num_pages=memory.num_pages,
            num_slots=memory.num_slots,
            host_pages=memory.host_pages,
            host_slots=memory.host_slots,
            floors=floors(admission, memory.num_pages, memory.num_slots, spec.block_size, ring_tokens),
            retention=memory.retention,
        )
        self._profile = spec.profile.at(spec.num_stages)
        self._factors = self._profile.factors(spec.num_stages)
        keys = SharedPromptKeys(KEYS, spec.block_size, spec.num_stages + (not leased))
        self.ranks = [
            TimedRank(
                number,
                spec.num_stages,
                sizes,
                spec.block_size,
                leased=leased,
                planner=None if number else Planner(spec.scheduler, spec.block_size, spec.num_stages),
                batch=_HOST_BATCH,
                chance=self._random,
                send=self._sender(number + 1),
                epoch=EPOCH,
                keys=keys,
            )
            for number in range(spec.num_stages)
        ]
        hellos = [rank.hello() for rank in self.ranks]
        self.leader = Leader(admission, EPOCH, hellos, spec.block_size, spec.scheduler.max_wave_tokens, keys)
        self._leading = Leading(self.leader, self.ranks[0].loop, spec.num_stages, self._see)
        self.loops = [self._timed(rank) for rank in self.ranks]
        self._doors = [
            spec.rung.door(rank, loop, self._answered) for rank, loop in zip(self.ranks, self.loops, strict=True)
        ]
        self._free_at = [0.0] * spec.num_stages
        """When each rank's WAVE has nothing to do."""
        self._alarm = Alarm(clock, self._pump)
        self._open: dict[int, int] = {}
        """Rounds that hold planning up, and how many ranks have not answered each."""
        self._names = 0
        if spec.rung.blocking:
            self.loops[0].may_plan = lambda: not self._open
            for sender, receiver in zip(self.loops, self.loops[1:], strict=False):
                Handing(sender, receiver, lambda wave: spec.rung.hand_over_s(_tokens(wave)))

    # Requests.

    def submit(self, tokens: bytes) -> str:
        """A name for the request, which is on its way to the leader. Raises `RefusedError` when that refuses it."""
        self._names += 1
        name = f"{self._names}"
        self._clock.after(self._costs.front_s, lambda: self._submit(name, tokens))
        return name

    def preload(self, tokens: bytes, upto: int, snapshots: tuple[int, ...]) -> None:
        """Leaves the first `upto` tokens cached on every rank, with these snapshots, in no time. Raises NoRoomError."""
        for rank in self.ranks:
            if not rank.leave(tokens, upto, snapshots):
                raise NoRoomError(f"a prefix of {upto} tokens and {len(snapshots)} snapshots finds no room")
        self._wake_all()

    # What was measured.

    @property
    def busy_s(self) -> float:
        """All stages' busy seconds together."""
        return sum(loop.busy_s for loop in self.loops)

    @property
    def waves(self) -> int:
        return self.loops[0].waves

    @property
    def idle(self) -> bool:
        """Whether nothing is held by anybody: what a group must come back to."""
        return self.leader.queued == self.leader.running == self.leader.handles == 0

    # Inside.

    def _submit(self, name: str, tokens: bytes) -> None:
        now, admission = self._clock.now, self._spec.admission
        refusal = self.leader.submit(name, tokens, Sampling(), "", "", admission.default_ttl_s, f"handle-{name}", now)
        if refusal is not None:
            raise RefusedError(refusal.message)
        self._told()

    def _see(self, effect: Effect) -> None:
        match effect:
            case Completed():
                # Whoever asked has the state at once; how long pulls take is not simulated.
                self._clock.at(self._clock.now, lambda: self._finish(effect))
            case Ended():
                raise AssertionError(f"{effect.name} ended: {effect.code}: {effect.message}")
            case _:
                pass

    def _finish(self, effect: Completed) -> None:
        self.leader.release_handle(effect.handle, self._clock.now)
        self._told()
        self._completed(effect)

    def _told(self) -> None:
        self._leading.carry_out()
        self.loops[0].wake()
        self._pump()

    def _pump(self) -> None:
        """Whatever the leader has to say now, and when to ask it again."""
        now = self._clock.now
        self.leader.tick(now)
        silent = self.leader.silent_ranks(now)
        if silent:
            raise RuntimeError(f"ranks {list(silent)} have been silent for too long")
        self._leading.carry_out()
        while (down := self.leader.next_round(now)) is not None:
            if self._spec.rung.blocking and (down.probes or down.installs):
                self._open[down.round] = len(self.ranks)
            for number in range(len(self.ranks)):
                self._broadcast(number, down)
        deadline = self.leader.next_deadline()
        if deadline is not None:
            self._alarm.set(deadline)

    def _broadcast(self, number: int, down: RoundDown) -> None:
        planned = self.loops[0].waves + self.ranks[0].loop.busy
        link = self._costs.link_s if number else 0.0
        self._clock.after(link, lambda: self._receive(number, down, planned))

    def _receive(self, number: int, down: RoundDown, planned: int) -> None:
        now = self._clock.now
        self._free_at[number] = free = max(now, self._free_at[number]) + self._round_s(down)
        self._clock.at(free, lambda: self._doors[number].round(down, planned))

    def _round_s(self, down: RoundDown) -> float:
        """What a rank's WAVE does for a round."""
        costs, block = self._costs, self._spec.block_size
        hashed = sum(len(request.tokens) // 4 for request in down.announces) / block
        walked = sum(len(install.snapshots) + install.candidate / block for install in down.installs)
        return costs.round_s + costs.hash_block_s * hashed + costs.walk_block_s * walked

    def _answered(self, number: int, up: RoundUp | None) -> None:
        """WAVE of a rank has an answer, or LOOP has been given something."""
        if up is not None:
            self._up(number, up)
        self._report(number)
        self.loops[number].wake()

    def _report(self, number: int) -> None:
        self._up(number, self.ranks[number].report())

    def _mail(self, number: int, mail: Mail) -> None:
        if number == 0 or isinstance(mail, RoundUp | WaveStarted | WaveDone):
            self._up(number, mail)
        self._report(number)

    def _up(self, number: int, message: object) -> None:
        if message is not None:
            link = self._costs.link_s if number else 0.0
            self._clock.after(link, lambda: self._heard(message))

    def _heard(self, message: object) -> None:
        if isinstance(message, RoundUp) and message.round in self._open:
            self._open[message.round] -= 1
            if not self._open[message.round]:
                del self._open[message.round]
        self._leading.take(message, self._clock.now)
        self.loops[0].wake()
        self._pump()

    def _timed(self, rank: TimedRank) -> TimedLoop:
        number, storage = rank.number, rank.storage
        assert isinstance(storage, TimedStorage)
        storage.costs = self._costs
        timed = TimedLoop(
            rank.loop,
            storage,
            self._clock,
            stage_s=lambda wave: self._stage_s(number, wave),
            overhead_s=lambda _: self._costs.launch_s,
            deliver=lambda mail: self._mail(number, mail),
        )
        timed.after_wave = lambda: self._doors[number].wave_run()
        return timed

    def _stage_s(self, number: int, wave: Wave) -> float:
        pairs = sum(pairs_of(span.start, span.end - span.start) for span in wave.spans)
        seconds = self._factors[number] * self._profile.wave(_tokens(wave), pairs)
        if self._spec.jitter:
            seconds *= self._random.lognormvariate(0.0, self._spec.jitter)
        return seconds

    def _sender(self, to: int) -> Callable[[Wave], None]:
        def send(wave: Wave) -> None:
            if to < len(self.ranks):
                hop = 0.0 if self._spec.rung.blocking else self._profile.hop(_tokens(wave))
                self._clock.after(hop, lambda: arrive(wave))

        def arrive(wave: Wave) -> None:
            self.ranks[to].loop.arrive(wave)
            self.loops[to].wake()

        return send

    def _wake_all(self) -> None:
        for loop in self.loops:
            loop.wake()


def _tokens(wave: Wave) -> int:
    return sum(span.end - span.start for span in wave.spans)
