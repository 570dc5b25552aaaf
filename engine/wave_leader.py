"""WAVE on rank 0: drives the leader with the front end's messages, the ranks' answers and LOOP's reports."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from ..admission.effects import Admitted, Completed, Ended, Progressed, StopPlanning
from ..admission.leader import Leader
from ..admission.messages import Failed, Refused, RoundDown, RoundUp, Stop, ToLeader, WaveDone, WaveStarted
from .group_view import GroupView
from .inbox import (
    CapacityGrew,
    FromLoop,
    Leave,
    LoopInbox,
    StageTimed,
    Stopped,
    WakingQueue,
    WaveFinished,
    WavePlanned,
)
from .messages import (
    CancelRequest,
    Finished,
    GetState,
    GroupUp,
    KvGet,
    KvRelease,
    KvRenew,
    Progress,
    Reply,
    RequestFailed,
    ResetCache,
    Submit,
    Timing,
    ToFrontEnd,
    ToRankZero,
)
from .publication import Publication
from .rounds import RankRounds
from .trace import Tracer


class LeaderWave:
    """Owns the leader, the rounds plane's ROUTER, the two sockets towards the front end and, under leases, rank 0's own
    side of admission, which it calls directly. Waits by event on all of them and on the queue of LOOP and of the
    transfer thread, and no longer than the leader's next deadline."""

    def __init__(
        self,
        leader: Leader,
        view: GroupView,
        rounds: zmq.Socket[bytes],
        routes: dict[int, bytes],
        own: RankRounds,
        submissions: zmq.Socket[bytes],
        front_end: zmq.Socket[bytes] | None,
        inbox: LoopInbox,
        from_loop: WakingQueue[FromLoop],
        tracer: Tracer,
        fail: Callable[[str], None],
    ) -> None:
        self._leader, self._view = leader, view
        self._rounds, self._routes, self._members = rounds, routes, frozenset(routes.values())
        self._own, self._publication = own, Publication(view.size)
        self._submissions, self._front_end = submissions, front_end
        self._inbox, self._from_loop, self._tracer, self._fail = inbox, from_loop, tracer, fail
        self._encoder = msgspec.msgpack.Encoder()
        self._from_ranks = msgspec.msgpack.Decoder(ToLeader)
        self._from_front = msgspec.msgpack.Decoder(ToRankZero)
        self._waiting: list[tuple[int, int, bool]] = []
        """(round that every rank must have answered, call, whether the state is asked for) of calls that wait."""
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="WAVE", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def announce(self, up: GroupUp) -> None:
        """Before `start`: tell the front end that the epoch serves."""
        self._send(up)

    def stop(self) -> None:
        """From the main thread: tell every rank that the epoch ends, and leave."""
        self._stopping.set()
        self._from_loop.put(Leave())
        self.thread.join(timeout=5)

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._rounds, self._submissions, self._from_loop.fileno()):
            poller.register(source, zmq.POLLIN)
        try:
            while not self._stopping.is_set():
                deadline = self._leader.next_deadline()
                wait_ms = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000) + 1)
                poller.poll(wait_ms)
                self._step(time.monotonic())
            self._say_stop()
        except Exception as error:
            self._fail(f"the leader failed: {type(error).__name__}: {error}")

    def _step(self, now: float) -> None:
        for event in self._from_loop.drain():
            self._take_from_rank(event, now)
        while self._rounds.poll(0):
            route, frame = self._rounds.recv_multipart()
            if route in self._members:
                self._take_from_rank(self._from_ranks.decode(frame), now)
            else:
                refusal = Refused(f"epoch {self._view.epoch} has all of its ranks")
                self._rounds.send_multipart([route, self._encoder.encode(refusal)])
        while self._submissions.poll(0):
            self._take_from_front(self._submissions.recv(), now)
        self._take_own(self._own.report(), now)
        self._leader.tick(now)
        silent = self._leader.silent_ranks(now)
        if silent:
            raise RuntimeError(f"ranks {list(silent)} have been silent for too long")
        self._carry_out()
        while (down := self._leader.next_round(now)) is not None:
            self._broadcast(down, now)
            self._carry_out()
        self._answer_waiting()

    def _broadcast(self, down: RoundDown, now: float) -> None:
        frame = self._encoder.encode(down)
        for route in self._routes.values():
            self._rounds.send_multipart([route, frame])
        self._take_own(self._own.apply(down), now)

    def _take_own(self, up: RoundUp | None, now: float) -> None:
        if up is not None:
            self._leader.on_round_up(up, now)

    def _say_stop(self) -> None:
        frame = self._encoder.encode(Stop(self._view.epoch))
        for route in self._routes.values():
            self._rounds.send_multipart([route, frame])
        self._inbox.put(Leave())

    def _take_from_rank(self, message: FromLoop | ToLeader, now: float) -> None:
        match message:
            case RoundUp():
                self._leader.on_round_up(message, now)
            case WaveStarted():
                self._leader.heard(message.rank, now, in_wave=True)
            case WaveDone():
                self._wave_done(message, now)
            case WavePlanned():
                self._publication.planned(message.wave, message.chunks)
            case Stopped():
                self._leader.on_stopped(message.request, message.after_wave, now)
            case CapacityGrew() | Leave():
                pass
            case Failed():
                raise RuntimeError(f"rank {message.rank} failed: {message.reason}")
            case _:
                raise RuntimeError(f"a rank sent {type(message).__name__} after the group was formed")

    def _wave_done(self, done: WaveDone, now: float) -> None:
        if done.epoch != self._view.epoch:
            raise RuntimeError(f"rank {done.rank} reports a wave of epoch {done.epoch}, this is {self._view.epoch}")
        self._view.wave_done(done)
        self._leader.heard(done.rank, now)
        self._inbox.put(StageTimed(done.rank, done.wave, done.stage_time))
        if done.rank == self._view.size - 1:
            self._inbox.put(WaveFinished(done.wave))
        for request, computed in self._publication.done(done.rank, done.wave):
            self._leader.on_published(request, computed, now)
        for token in done.first_tokens:
            self._leader.on_first_token(token, now)

    def _take_from_front(self, frame: bytes, now: float) -> None:
        try:
            message = self._from_front.decode(frame)
        except msgspec.MsgspecError as error:
            raise RuntimeError(f"the front end sent a frame that does not decode: {error}") from error
        match message:
            case Submit():
                self._submit(message, now)
            case CancelRequest():
                self._leader.cancel(message.name, now)
            case KvGet():
                self._manifest(message, now)
            case KvRenew():
                self._leader.renew_handle(message.handle, message.ttl_s, now)
                self._manifest(message, now)
            case KvRelease():
                self._reply(message.call, self._leader.release_handle(message.handle, now))
            case ResetCache():
                self._waiting.append((self._leader.reset(now), message.call, False))
            case GetState():
                self._waiting.append((self._leader.request_report(), message.call, True))

    def _submit(self, message: Submit, now: float) -> None:
        refusal = self._leader.submit(
            name=message.name,
            tokens=message.tokens,
            sampling=message.sampling,
            salt=message.salt,
            adapter=message.adapter,
            ttl_s=message.ttl_s,
            handle=secrets.token_urlsafe(24),
            now=now,
            priority=message.priority,
            deadline=None if message.deadline_s is None else now + message.deadline_s,
        )
        if refusal is not None:
            self._send(RequestFailed(message.name, refusal.code, refusal.message))

    def _manifest(self, message: KvGet | KvRenew, now: float) -> None:
        info = self._leader.handle_info(message.handle, now)
        if isinstance(info, str):
            self._reply(message.call, info)
        else:
            self._send(Reply(message.call, body=self._view.manifest(info, now)))

    def _reply(self, call: int, error: str) -> None:
        self._send(Reply(call, error))

    def _carry_out(self) -> None:
        for effect in self._leader.take_effects():
            match effect:
                case Admitted():
                    self._inbox.put(effect)
                    self._view.admitted(effect)
                case Progressed():
                    self._send(Progress(effect.name, effect.phase, effect.computed, effect.total))
                case StopPlanning():
                    self._inbox.put(effect)
                case Completed():
                    self._send(_finished(effect))
                case Ended():
                    self._send(RequestFailed(effect.name, effect.code, effect.message))
        self._inbox.admitting = self._leader.installing

    def _answer_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for wanted, call, state in waiting:
            if not self._leader.all_answered(wanted):
                self._waiting.append((wanted, call, state))
            else:
                self._send(Reply(call, body=self._view.state(self._leader) if state else None))

    def _send(self, message: ToFrontEnd) -> None:
        if self._front_end is not None:
            self._front_end.send(self._encoder.encode(message))


def _finished(done: Completed) -> Finished:
    return Finished(
        name=done.name,
        handle=done.handle,
        token=done.token.token,
        logprob=done.token.logprob,
        top=done.token.top,
        prompt_tokens=done.prompt_tokens,
        cached_tokens=done.cached_tokens,
        timing=Timing(done.queue_s, done.admit_s, done.prefill_s, done.deadline_met),
        reuse=done.reuse,
    )
