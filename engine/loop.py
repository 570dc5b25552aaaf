"""LOOP: the thread that walks the caches, runs the waves and, on rank 0, plans them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..admission.messages import RoundDown, WaveDone, WaveStarted
from ..admission.participant import Participant
from ..models.batch import Activations
from ..scheduler.planner import Planner
from ..scheduler.span import Span
from .data_plane import Receiver, Sender
from .executor import Executor
from .header import WaveHeader, WaveSpan
from .inbox import (
    CapacityGrew,
    ChunksDone,
    FromLoop,
    Leave,
    LoopInbox,
    PlanRequest,
    Stopped,
    StopRequest,
    WakingQueue,
    WaveArrived,
    WaveFinished,
)
from .trace import Tracer


class Loop:
    """One thread a stage. Under lockstep admission every walk, claim, wave and release of the rank happens here, in
    one order; WAVE only carries the messages."""

    def __init__(
        self,
        rank: int,
        epoch: int,
        inbox: LoopInbox,
        to_wave: WakingQueue[FromLoop],
        participant: Participant,
        executor: Executor,
        planner: Planner | None,
        receiver: Receiver | None,
        sender: Sender | None,
        tracer: Tracer,
        handles_changed: Callable[[], None],
        prepare: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        """`handles_changed` is called when a handle became good or ended here, and `prepare` first of all on the
        thread itself: some of torch's settings belong to a thread."""
        self._handles_changed, self._prepare = handles_changed, prepare
        self._rank, self._epoch = rank, epoch
        self._inbox, self._to_wave = inbox, to_wave
        self._participant, self._executor, self._planner = participant, executor, planner
        self._receiver, self._sender, self._tracer, self._fail = receiver, sender, tracer, fail
        self.thread = threading.Thread(target=self._run, name="LOOP", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        try:
            self._prepare()
            while self._step():
                pass
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _step(self) -> bool:
        """One event, or one planned wave. False when the thread shall leave."""
        event = self._inbox.get(block=not self._can_plan())
        match event:
            case None:
                self._run_planned()
            case RoundDown():
                with self._tracer.span("walk", round=event.round):
                    self._to_wave.put(self._participant.apply(event))
                if event.releases or event.cancels:
                    self._handles_changed()
            case WaveArrived():
                self._run_wave(event.header, event.inputs, event.buffer)
            case PlanRequest():
                self._planned().admit(event.request, event.attempt, event.endpoint, event.num_tokens)
            case StopRequest():
                self._to_wave.put(Stopped(event.request, self._planned().stop(event.request)))
            case WaveFinished():
                spans = self._planned().complete(event.wave)
                self._to_wave.put(ChunksDone(tuple((span.request, span.end) for span in spans)))
            case CapacityGrew():
                pass
            case Leave():
                return False
        report = self._participant.report()
        if report is not None:
            self._to_wave.put(report)
        return True

    def _planned(self) -> Planner:
        if self._planner is None:
            raise RuntimeError(f"rank {self._rank} was told to plan, but only rank 0 plans")
        return self._planner

    def _can_plan(self) -> bool:
        return self._planner is not None and self._planner.can_plan

    def _run_planned(self) -> None:
        planner = self._planned()
        plan = planner.plan(time.monotonic())
        if plan is None:
            return
        header = WaveHeader(self._epoch, plan.wave, tuple(_wave_span(planner, span) for span in plan.spans))
        planner.accept(plan)
        self._run_wave(header, {}, None)

    def _run_wave(self, header: WaveHeader, inputs: Activations, buffer: int | None) -> None:
        self._to_wave.put(WaveStarted(self._epoch, self._rank, header.wave))
        outputs, seconds = self._executor.forward(header, inputs)
        first_tokens = ()
        if self._sender is not None:
            self._sender.send(header, outputs)
        else:
            first_tokens = self._executor.sample(header, outputs)
        if self._executor.settle(header):
            self._handles_changed()
        if buffer is not None and self._receiver is not None:
            self._receiver.recycle(buffer)
        self._to_wave.put(WaveDone(self._epoch, self._rank, header.wave, seconds, first_tokens))


def _wave_span(planner: Planner, span: Span) -> WaveSpan:
    lane = planner.lane(span.request)
    assert lane is not None, "a planned span has a lane until the plan is accepted"
    return WaveSpan(span.request, lane.attempt, lane.endpoint, span.start, span.length, span.last)
