"""A stage of one rank inside this process: the real model, executor, LOOP, WAVE and leader, put together as
`engine/stage.py` does, but for HTTP, the data plane and the transfer server. What LOOP shares with WAVE is timed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import torch
import zmq

from ..admission.claim import Order
from ..admission.claims import Claims
from ..admission.effects import Admitted
from ..admission.leader import Leader
from ..admission.limiter import floors
from ..admission.messages import Hello, RoundDown, RoundUp, WaveDone, WaveStarted
from ..admission.participant import Participant
from ..admission.prompt_keys import PromptKeys
from ..cache.device_pools import DevicePools
from ..cache.keys import KeySpace
from ..cache.stage_cache import StageCache
from ..engine.executor import Executor
from ..engine.group_view import GroupView
from ..engine.inbox import Control, FromLoop, LoopInbox, ToLoop, WakingQueue, WaveArrived
from ..engine.loop import Loop
from ..engine.materialiser import Materialiser
from ..engine.messages import ToFrontEnd
from ..engine.rounds import LoopRounds, OwnRounds
from ..engine.settings import GroupSettings
from ..engine.trace import NullTracer
from ..engine.wave_leader import LeaderWave
from ..models.config import load_spec
from ..models.runtime import prepare_torch
from ..models.stage_model import StageModel, load_stage
from ..scheduler.planner import Planner
from .timed_lock import TimedLock

CPU = torch.device("cpu")
EPOCH = 1
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Mark:
    """How things stood with LOOP at one moment: seconds by time.perf_counter, and so many of them so far spent waiting
    for the cache's mutex, inside the mailbox, applying rounds (in lockstep), and waiting with nothing to do. `cpu_s` is
    the processor time that it has had."""

    at: float
    cpu_s: float
    mutex_s: float
    mailbox_s: float
    rounds_s: float
    idle_s: float


class LoopClock:
    """What LOOP does with its time. Written by LOOP, but for the admissions."""

    def __init__(self, mutex: TimedLock) -> None:
        self._mutex = mutex
        self.mailbox_s = self.rounds_s = self.idle_s = 0.0
        self.marks: list[Mark] = []
        """When the first wave began, and when each wave was done."""
        self.admitted = Count()
        """Told by WAVE."""
        self.finished = Count()

    def mark(self) -> None:
        waited = self._mutex.waited_s.get(threading.get_ident(), 0.0)
        now, cpu_s = time.perf_counter(), time.thread_time()
        self.marks.append(Mark(now, cpu_s, waited, self.mailbox_s, self.rounds_s, self.idle_s))


class Count:
    """Counts up to a number that another thread waits for. One thread counts."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """By time.perf_counter, of each."""
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self.times.append(time.perf_counter())
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def wait(self, number: int, failure: Callable[[], str]) -> None:
        with self._changed:
            while len(self.times) < number:
                if failure() or not self._changed.wait(TIMEOUT_S):
                    raise RuntimeError(f"{len(self.times)} of {number} requests: {failure() or 'no more came'}")


class _TimedInbox(LoopInbox):
    def __init__(self, clock: LoopClock) -> None:
        super().__init__()
        self._clock = clock

    def put(self, event: ToLoop) -> None:
        super().put(event)
        if isinstance(event, Admitted):
            self._clock.admitted.add()

    def take(self, block: bool) -> tuple[list[Control], WaveArrived | None]:
        begun = time.perf_counter()
        taken = super().take(block)
        if block:
            self._clock.idle_s += time.perf_counter() - begun
        else:
            self._clock.mailbox_s += time.perf_counter() - begun
        return taken


class _TimedQueue(WakingQueue[FromLoop]):
    """Takes what LOOP says; nobody else puts anything in while waves run."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__()
        self._clock = clock

    def put(self, item: FromLoop) -> None:
        clock, begun = self._clock, time.perf_counter()
        super().put(item)
        clock.mailbox_s += time.perf_counter() - begun
        if isinstance(item, WaveStarted) and not clock.marks:
            clock.mark()
        elif isinstance(item, WaveDone):
            clock.mark()
            for _ in item.first_tokens:
                clock.finished.add()


class _TimedRounds(OwnRounds):
    """Times the rounds that LOOP applies itself, in lockstep."""

    def __init__(self, clock: LoopClock, participant: Participant, hand_over: Callable[[Order], object]) -> None:
        super().__init__(participant, hand_over, _nothing, NullTracer())
        self._clock = clock

    def apply(self, down: RoundDown) -> RoundUp:
        begun = time.perf_counter()
        up = super().apply(down)
        if threading.current_thread().name == "LOOP":
            self._clock.rounds_s += time.perf_counter() - begun
        return up


class StageParts:
    """What takes long to make, and serves one stage after the other."""

    def __init__(self, folder: Path, settings: GroupSettings, num_pages: int, num_slots: int) -> None:
        prepare_torch(CPU, 1)
        self.settings = settings
        layers = range(load_spec(folder).num_layers)
        self.model: StageModel = load_stage(folder, layers, dtype=torch.float32, device=CPU)
        self.pools = DevicePools(
            self.model.cache_layout(),
            num_pages=num_pages,
            num_slots=num_slots,
            block_size=settings.cache.block_size,
            device=CPU,
        )


class LoopStage:
    """One life of the stage, with an empty cache, until it is closed. LOOP does nothing before `gate` is set. Use as a
    context manager, from one thread."""

    def __init__(self, parts: StageParts, group: GroupSettings, fill: Callable[[StageCache], None]) -> None:
        self.gate = threading.Event()
        self._failure = ""
        self._context: zmq.Context[Any] = zmq.Context()
        self._decoder = msgspec.msgpack.Decoder(ToFrontEnd)
        self._to_stage, submissions = self._pair("submit")
        front_end, self._from_stage = self._pair("front")
        rounds = self._context.socket(zmq.ROUTER)
        rounds.bind("inproc://rounds")
        self._sockets = (self._to_stage, submissions, front_end, self._from_stage, rounds)
        mutex = TimedLock()
        self.clock = LoopClock(mutex)
        self._build(parts, group, mutex, fill, rounds, submissions, front_end)

    def _build(
        self,
        parts: StageParts,
        group: GroupSettings,
        mutex: TimedLock,
        fill: Callable[[StageCache], None],
        rounds: zmq.Socket[bytes],
        submissions: zmq.Socket[bytes],
        front_end: zmq.Socket[bytes],
    ) -> None:
        """As `Stage._start_threads` and `Stage._lead` do."""
        model, pools, block_size = parts.model, parts.pools, group.cache.block_size
        leased, wave_tokens = group.admission.admission == "lease", group.scheduler.max_wave_tokens
        windows = frozenset(layer.window for layer in pools.layout)
        self.cache = cache = StageCache(
            windows,
            pools.num_pages,
            pools.num_slots,
            block_size,
            floors=floors(group.admission, pools.num_pages, pools.num_slots, block_size, 2 * wave_tokens),
            retention=group.cache.snapshot_retention,
            mutex=mutex,
        )
        fill(cache)
        space = KeySpace(model.spec.fingerprint)
        inbox, to_wave, tracer = _TimedInbox(self.clock), _TimedQueue(self.clock), NullTracer()
        keys, claims = PromptKeys(space, block_size), Claims(cache)
        participant = Participant(0, EPOCH, cache, keys, block_size, cache.hint if leased else cache.probe)
        own = _TimedRounds(self.clock, participant, inbox.put if leased else claims.take)
        materialiser = Materialiser(cache, pools, tracer, group.engine.host_batch_pages)
        self._loop = Loop(
            rank=0,
            epoch=EPOCH,
            inbox=inbox,
            to_wave=to_wave,
            cache=cache,
            claims=claims,
            rounds=None if leased else own,
            materialiser=materialiser,
            executor=Executor(model, pools, cache, claims, materialiser, block_size, CPU, tracer),
            planner=Planner(group.scheduler, block_size, 1),
            receiver=None,
            sender=None,
            tracer=tracer,
            handles_changed=_nothing,
            prepare=self._prepare,
            fail=self._fail,
        )
        spec = model.spec
        layers, names = (0, spec.num_layers), tuple(sorted(windows))
        hello = Hello(0, "", spec.fingerprint, "", layers, names, pools.num_pages, pools.num_slots, 0, 0, "")
        leaders_keys = keys if leased else PromptKeys(space, block_size)
        self._wave = LeaderWave(
            leader=Leader(group.admission, EPOCH, [hello], block_size, wave_tokens, leaders_keys),
            view=GroupView(EPOCH, "", [hello], [()], block_size, group.admission.snapshot_interval),
            rounds=rounds,
            routes={},
            own=own if leased else LoopRounds(inbox),
            submissions=submissions,
            front_end=front_end,
            inbox=inbox,
            from_loop=to_wave,
            tracer=tracer,
            fail=self._fail,
        )

    def __enter__(self) -> Self:
        self._loop.start()
        self._wave.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.gate.set()
        self._wave.stop()
        self._loop.thread.join()
        for socket in self._sockets:
            socket.close(0)
        self._context.term()

    def submit(self, submissions: Sequence[bytes]) -> None:
        """Encoded `Submit`s, all at once."""
        for frame in submissions:
            self._to_stage.send(frame)

    def await_admitted(self, requests: int) -> None:
        """Until so many have been admitted in all."""
        self.clock.admitted.wait(requests, lambda: self._failure)

    def await_finished(self, requests: int) -> None:
        self.clock.finished.wait(requests, lambda: self._failure)

    def said(self) -> list[ToFrontEnd]:
        """What the stage has told its front end since this was last asked."""
        said: list[ToFrontEnd] = []
        while self._from_stage.poll(100):
            said.append(self._decoder.decode(self._from_stage.recv()))
        return said

    def _pair(self, name: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        push, pull = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        push.sndhwm = pull.rcvhwm = 0
        pull.bind(f"inproc://{name}")
        push.connect(f"inproc://{name}")
        return push, pull

    def _prepare(self) -> None:
        prepare_torch(CPU, 1)
        self.gate.wait()

    def _fail(self, reason: str) -> None:
        self._failure = reason
        # Whoever waits for requests waits in vain.
        self.clock.admitted.wake()
        self.clock.finished.wake()


def _nothing() -> None:
    """Nobody pulls from this stage."""
