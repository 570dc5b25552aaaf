"""One stage process: loads its layers, joins the group, and runs its threads until the epoch ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import NoReturn

import torch
import zmq

from ..admission.claims import Claims
from ..admission.leader import Leader
from ..admission.participant import Participant
from ..admission.prompt_keys import PromptKeys
from ..cache.keys import KeySpace
from ..models.config import load_spec
from ..models.emulated import emulate_stage
from ..models.layout import cache_layout
from ..models.runtime import prepare_torch
from ..models.stage_model import StageModel, load_stage
from ..scheduler.cost_model import StageProfile
from ..scheduler.planner import Planner
from ..scheduler.urgency import Ageing
from .data_plane import Edges, Receiver, Sender
from .emulation import EmulatedExecutor, Pace
from .executor import Executor
from .group_view import GroupView
from .inbox import CapacityGrew, FromLoop, LoopInbox, WakingQueue
from .loop import Loop
from .materialiser import Materialiser
from .meeting import Meeting, Membership
from .placement import place, stage_profile
from .rounds import LoopRounds, OwnRounds, RankRounds
from .settings import StageSettings
from .stage_memory import StageMemory, allocate
from .status import Broken, HostTier, Loaded, Loading, Ready, say
from .trace import open_tracer
from .transfer_server import TransferServer
from .wave_follower import FollowerWave
from .wave_leader import LeaderWave

log = logging.getLogger("wavepp.stage")


class Stage:
    """Owned by the main thread of the process, which waits in `run` for a signal, a failure or the leader's word."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings, self._group, self._rank = settings, settings.group, settings.rank
        self._last_rank = settings.group.engine.pp - 1
        self._device = _device(settings)
        self._leased = settings.group.admission.admission == "lease"
        self._done = threading.Event()
        self._failing = threading.Lock()
        self._failure = ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wave: LeaderWave | FollowerWave | None = None
        self._transfer: TransferServer | None = None
        self._tracer = open_tracer(self._group.engine.trace, self._rank)

    def run(self) -> int:
        """Returns the process's exit status."""
        signal.signal(signal.SIGTERM, lambda *_: self._done.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._start()
            self._done.wait()
        except Exception as error:
            log.debug("rank %d could not start", self._rank, exc_info=True)
            self.fail(str(error) or type(error).__name__)
        if not self._failure:
            if isinstance(self._wave, LeaderWave):
                self._wave.stop()
            if self._transfer is not None:
                self._transfer.stop()
        self._tracer.close()
        return 1 if self._failure else 0

    def fail(self, reason: str) -> None:
        """From any thread: this epoch cannot go on. The first reason stands."""
        with self._failing:
            if self._failure or self._done.is_set():
                return
            self._failure = reason
        log.error("rank %d: %s", self._rank, reason)
        say(Broken(self._rank, reason))
        if isinstance(self._wave, FollowerWave):
            self._wave.report_failure(reason)
        self._done.set()

    def _start(self) -> None:
        self._prepare_torch()
        self._spec = load_spec(self._group.model)
        self._placement = place(self._spec, self._group.engine, self._group.scheduler.stage_profile)
        model = self._load()
        memory = allocate(model, self._group, self._rank, self._device)
        inbox, to_wave = LoopInbox(), WakingQueue[FromLoop]()
        # Whoever owns the participant wants to know when pulls have ended.
        grown = to_wave.put if self._leased else inbox.put
        self._transfer = transfer = TransferServer(
            self._group.transfer.of_rank(self._rank),
            rank=self._rank,
            block_size=self._group.cache.block_size,
            layers=memory.layout,
            pools=memory.pools.pools,
            source=memory.cache,
            on_closed=lambda: grown(CapacityGrew()),
            on_failure=self.fail,
        )
        weight_bytes = model.weight_bytes
        pools, capacity = memory.pools, memory.capacity
        host = HostTier(capacity.host_pages, capacity.host_slots, pools.num_host_bytes)
        say(Loaded(self._rank, (model.layers.start, model.layers.stop), weight_bytes, pools.num_bytes, host))
        membership = Meeting(self._settings, self._context, self._device).attend(
            model, memory, weight_bytes, transfer.address, still_wanted=lambda: not self._done.is_set()
        )
        transfer.start(membership.epoch)
        self._start_threads(model, memory, transfer, membership, inbox, to_wave)

    def _prepare_torch(self) -> None:
        prepare_torch(self._device, self._group.engine.resolved_threads())

    def _load(self) -> StageModel:
        engine = self._group.engine
        shown = 0.0

        def on_progress(done: int, total: int) -> None:
            nonlocal shown
            if done == total or time.monotonic() - shown > 0.2:
                shown = time.monotonic()
                say(Loading(self._rank, done, total))

        dtype = getattr(torch, engine.resolved_dtype())
        layers = self._placement[self._rank]
        if engine.device == "emulated":
            return emulate_stage(self._group.model, layers, dtype)
        return load_stage(self._group.model, layers, dtype=dtype, device=self._device, on_progress=on_progress)

    def _start_threads(
        self,
        model: StageModel,
        memory: StageMemory,
        transfer: TransferServer,
        membership: Membership,
        inbox: LoopInbox,
        to_wave: WakingQueue[FromLoop],
    ) -> None:
        group, rank, epoch = self._group, self._rank, membership.epoch
        cache, block_size = memory.cache, group.cache.block_size
        keys = PromptKeys(KeySpace(model.spec.fingerprint), block_size)
        claims = Claims(cache)
        hints = cache.hint if self._leased else cache.probe
        participant = Participant(rank, epoch, cache, keys, block_size, hints, self._tracer.span)
        # Where the participant lives is all that tells the policies apart here.
        hand_over = inbox.put if self._leased else claims.take
        own = OwnRounds(participant, hand_over, transfer.notify, self._tracer)
        on_wave, on_loop = (own, None) if self._leased else (LoopRounds(inbox), own)
        materialiser = Materialiser(cache, memory.pools, self._tracer, group.engine.host_batch_pages)
        parts = model, memory.pools, cache, claims, materialiser, block_size, self._device, self._tracer
        if group.engine.device == "emulated":
            pace = Pace(self._stage_profile(), group.engine.pp, rank, group.engine.emulation_speed)
            executor = EmulatedExecutor(*parts, pace=pace, busy_since=lambda: inbox.busy_since)
        else:
            executor = Executor(*parts)
        receiver, sender = self._neighbours(model, membership.edges, epoch, inbox)
        loop = Loop(
            rank=rank,
            epoch=epoch,
            inbox=inbox,
            to_wave=to_wave,
            cache=cache,
            claims=claims,
            rounds=on_loop,
            materialiser=materialiser,
            executor=executor,
            planner=self._planner() if rank == 0 else None,
            receiver=receiver,
            sender=sender,
            tracer=self._tracer,
            handles_changed=transfer.notify,
            prepare=self._prepare_torch,
            fail=self.fail,
        )
        if rank == 0:
            self._wave = self._lead(model, membership, keys, on_wave, inbox, to_wave)
        else:
            self._wave = FollowerWave(
                rank, epoch, membership.rounds, on_wave, inbox, to_wave, self.fail, on_stop=self._done.set
            )
        loop.start()
        self._wave.start()

    def _stage_profile(self) -> StageProfile:
        return stage_profile(self._spec, self._placement, self._group.engine, self._group.scheduler)

    def _planner(self) -> Planner:
        group = self._group
        scheduler = group.scheduler.model_copy(update={"stage_profile": self._stage_profile()})
        return Planner(scheduler, group.cache.block_size, group.engine.pp)

    def _neighbours(
        self, model: StageModel, edges: Edges, epoch: int, inbox: LoopInbox
    ) -> tuple[Receiver | None, Sender | None]:
        receiver = sender = None
        if edges.previous is not None:
            receiver = Receiver(
                edges.previous,
                source=self._rank - 1,
                epoch=epoch,
                hop=model.hop_from(self._placement[self._rank - 1]),
                max_tokens=self._group.scheduler.max_wave_tokens,
                device=self._device,
                inbox=inbox,
                tracer=self._tracer,
                fail=self.fail,
            )
        if edges.following is not None:
            sender = Sender(edges.following, self._rank + 1, self._device, self._tracer, self.fail)
        return receiver, sender

    def _lead(
        self,
        model: StageModel,
        membership: Membership,
        keys: PromptKeys,
        own: RankRounds,
        inbox: LoopInbox,
        to_wave: WakingQueue[FromLoop],
    ) -> LeaderWave:
        group, hellos = self._group, membership.hellos
        leader = Leader(
            group.admission,
            membership.epoch,
            hellos,
            group.cache.block_size,
            group.scheduler.max_wave_tokens,
            keys if self._leased else PromptKeys(KeySpace(model.spec.fingerprint), group.cache.block_size),
            Ageing(group.scheduler.ageing_s).urgency,
        )
        layer_names = [
            tuple(layer.name for layer in cache_layout(model.spec, range(*hello.layers), group.engine.resolved_dtype()))
            for hello in hellos
        ]
        view = GroupView(
            membership.epoch,
            group.model_name,
            hellos,
            layer_names,
            group.cache.block_size,
            group.admission.snapshot_interval,
            group.engine.emulation_speed if group.engine.device == "emulated" else 1.0,
        )
        submissions = self._context.socket(zmq.PULL)
        submissions.rcvhwm = 0
        submissions.maxmsgsize = group.engine.max_frame_bytes
        submissions.bind(self._settings.submit)
        front_end = None
        if self._settings.front_end:
            front_end = self._context.socket(zmq.PUSH)
            front_end.sndhwm = 0
            front_end.connect(self._settings.front_end)
        up = view.group_up(self._settings.submit, leader.max_prompt_tokens)
        wave = LeaderWave(
            leader=leader,
            view=view,
            rounds=membership.rounds,
            routes=membership.routes,
            own=own,
            submissions=submissions,
            front_end=front_end,
            inbox=inbox,
            from_loop=to_wave,
            tracer=self._tracer,
            fail=self.fail,
        )
        wave.announce(up)
        say(Ready(up))
        return wave


def _device(settings: StageSettings) -> torch.device:
    if settings.group.engine.resolved_device() == "cuda":
        return torch.device("cuda", settings.rank % torch.cuda.device_count())
    return torch.device("cpu")


def main(settings: StageSettings) -> NoReturn:
    """Runs the stage in this process, and leaves with its exit status."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.group.engine.log_level.upper(),
        format=f"%(asctime)s %(levelname)s rank {settings.rank}: %(message)s",
    )
    if settings.host in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Two threads that both compute in Python would otherwise wait five milliseconds for each other at every hand-over.
    sys.setswitchinterval(settings.group.engine.switch_interval_s)
    status = Stage(settings).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads may wait in the data plane for a peer that is gone, and the interpreter would wait for them.
    os._exit(status)
