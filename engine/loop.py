"""LOOP: the thread that materialises claims, runs the waves and, on rank 0, plans them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..admission.claim import Claim, Drop, Grant, Retract
from ..admission.claims import Claims
from ..admission.effects import Admitted, StopPlanning
from ..admission.messages import FirstToken, RoundDown, WaveDone, WaveStarted
from ..cache.stage_cache import StageCache
from ..models.batch import Activations
from ..scheduler.planner import Planner
from ..scheduler.span import Span
from .data_plane import Receiver, Sender
from .header import WaveHeader, WaveSpan
from .inbox import (
    CapacityGrew,
    Control,
    FromLoop,
    Leave,
    LoopInbox,
    StageTimed,
    Stopped,
    WakingQueue,
    WaveFinished,
    WavePlanned,
)
from .materialiser import Materialiser
from .rounds import OwnRounds
from .trace import Tracer


class WaveRunner(Protocol):
    """What is asked of the executor here; see there."""

    def forward(self, header: WaveHeader, inputs: Activations) -> tuple[Activations, float]: ...
    def sample(self, header: WaveHeader, outputs: Activations) -> tuple[FirstToken, ...]: ...
    def settle(self, header: WaveHeader) -> bool: ...
    def took(self, forward_s: float) -> float: ...


class Loop:
    """One thread a stage, and the only one that touches device storage, evicts or allocates. A step takes what it was
    told, then brings one bounded batch of an admitted prefix onto the device, then runs one wave."""

    def __init__(
        self,
        rank: int,
        epoch: int,
        inbox: LoopInbox,
        to_wave: WakingQueue[FromLoop],
        cache: StageCache,
        claims: Claims,
        rounds: OwnRounds | None,
        materialiser: Materialiser,
        executor: WaveRunner,
        planner: Planner | None,
        receiver: Receiver | None,
        sender: Sender | None,
        tracer: Tracer,
        handles_changed: Callable[[], None],
        prepare: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        """`rounds` where rounds are applied here (lockstep); None where WAVE applies them. `handles_changed` is called
        when a handle became good or ended here, and `prepare` first of all on the thread itself: some of torch's
        settings belong to a thread."""
        self._handles_changed, self._prepare, self._fail = handles_changed, prepare, fail
        self._rank, self._epoch = rank, epoch
        self._inbox, self._to_wave = inbox, to_wave
        self._cache, self._claims, self._rounds = cache, claims, rounds
        self._materialiser, self._executor, self._planner = materialiser, executor, planner
        self._receiver, self._sender, self._tracer = receiver, sender, tracer
        self._admitted: dict[int, Admitted] = {}
        """Rank 0: admitted, and not in the planner before their prefix is on the device."""
        self._released = 0
        self.thread = threading.Thread(target=self._run, name="LOOP", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        try:
            self._prepare()
            while self.step():
                pass
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def step(self) -> bool:
        """Waits for something to do, and does it; False when the thread shall leave. Called by the thread alone."""
        idle = not self._to_bring() and not self._can_plan()
        control, wave = self._inbox.take(block=idle)
        for event in control:
            if isinstance(event, Leave):
                return False
            self._take(event)
        self._materialise()
        if wave is not None:
            self._run_wave(wave.header, wave.inputs, wave.buffer)
        elif self._can_plan():
            self._run_planned()
        self._tell_of_room()
        return True

    def _take(self, event: Control) -> None:
        match event:
            case Claim() | Grant() | Retract() | Drop():
                self._claims.take(event)
                if isinstance(event, Drop):
                    self._handles_changed()
            case RoundDown():
                assert self._rounds is not None, "rounds come here only where they are applied here"
                self._to_wave.put(self._rounds.apply(event))
            case Admitted():
                self._admitted[event.request.id] = event
            case StopPlanning():
                self._to_wave.put(Stopped(event.request, self._stop(event.request)))
            case StageTimed():
                self._planned().observe(event.rank, event.wave, event.seconds)
            case WaveFinished():
                self._planned().complete(event.wave)
            case CapacityGrew() | Leave():
                pass

    def _planned(self) -> Planner:
        if self._planner is None:
            raise RuntimeError(f"rank {self._rank} was told to plan, but only rank 0 plans")
        return self._planner

    def _can_plan(self) -> bool:
        return self._planner is not None and self._planner.can_plan

    def _stop(self, request: int) -> int:
        if self._admitted.pop(request, None) is not None:
            return -1
        return self._planned().stop(request)

    def _to_bring(self) -> Sequence[Claim]:
        """Claims whose prefix is to be brought onto the device, oldest first; on rank 0 none that is stopped."""
        granted = self._claims.granted()
        if self._planner is None:
            return granted
        return [claim for claim in granted if claim.request.id in self._admitted]

    def _materialise(self) -> None:
        """One batch for the oldest claim whose prefix is not on the device; those that need none pass it."""
        brought = False
        for claim in self._to_bring():
            request = claim.request.id
            if brought and not self._cache.on_device(request):
                continue
            if not self._materialiser.prefix(request, claim.endpoint):
                brought = True
                continue
            self._claims.on_device(request)
            if self._planner is not None:
                admitted = self._admitted.pop(request)
                self._planner.admit(
                    request,
                    admitted.attempt,
                    admitted.endpoint,
                    admitted.num_tokens,
                    priority=admitted.priority,
                    deadline=admitted.deadline,
                    arrived_at=admitted.submitted_at,
                )

    def _run_planned(self) -> None:
        planner = self._planned()
        plan = planner.plan(time.monotonic(), admitting=bool(self._admitted) or self._inbox.admitting)
        if plan is None:
            return
        header = WaveHeader(self._epoch, plan.wave, tuple(_wave_span(planner, span) for span in plan.spans))
        planner.accept(plan)
        self._to_wave.put(WavePlanned(plan.wave, tuple((span.request, span.end) for span in plan.spans)))
        self._run_wave(header, {}, None)

    def _run_wave(self, header: WaveHeader, inputs: Activations, buffer: int | None) -> None:
        self._to_wave.put(WaveStarted(self._epoch, self._rank, header.wave))
        outputs, forward_s = self._executor.forward(header, inputs)
        first_tokens = ()
        if self._sender is not None:
            self._sender.send(header, outputs)
        else:
            first_tokens = self._executor.sample(header, outputs)
        if self._executor.settle(header):
            self._handles_changed()
        if buffer is not None and self._receiver is not None:
            self._receiver.recycle(buffer)
        seconds = self._executor.took(forward_s)
        self._to_wave.put(WaveDone(self._epoch, self._rank, header.wave, seconds, first_tokens))

    def _tell_of_room(self) -> None:
        """Whoever speaks for this rank says that capacity has grown: a leader may wait for it."""
        if self._rounds is not None:
            report = self._rounds.report()
            if report is not None:
                self._to_wave.put(report)
        elif self._cache.released != self._released:
            self._released = self._cache.released
            self._to_wave.put(CapacityGrew())


def _wave_span(planner: Planner, span: Span) -> WaveSpan:
    lane = planner.lane(span.request)
    assert lane is not None, "a planned span has a lane until the plan is accepted"
    return WaveSpan(span.request, lane.attempt, lane.endpoint, span.start, span.length, span.last)
