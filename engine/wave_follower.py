"""WAVE on ranks 1 to P-1: takes the leader's rounds and carries this rank's answers and LOOP's reports."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import msgspec
import zmq

from ..admission.messages import Failed, FromLeader, RoundDown, RoundUp, Stop, ToLeader, WaveDone, WaveStarted
from .inbox import FromLoop, Leave, LoopInbox, WakingQueue
from .rounds import RankRounds


class FollowerWave:
    """Owns the rank's end of the rounds plane, and under leases the rank's side of admission. Waits by event on the
    socket and on the queue of LOOP and of the transfer thread."""

    def __init__(
        self,
        rank: int,
        epoch: int,
        socket: zmq.Socket[bytes],
        rounds: RankRounds,
        inbox: LoopInbox,
        from_loop: WakingQueue[FromLoop],
        fail: Callable[[str], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._rank, self._epoch, self._socket, self._rounds = rank, epoch, socket, rounds
        self._inbox, self._from_loop, self._fail, self._on_stop = inbox, from_loop, fail, on_stop
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromLeader)
        self.thread = threading.Thread(target=self._run, name="WAVE", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def report_failure(self, reason: str, timeout_s: float = 0.5) -> None:
        """From any thread: tells the leader, and waits until it is told or the time is up."""
        if threading.current_thread() is not self.thread:
            self._from_loop.put(Failed(self._epoch, self._rank, reason))
            self.thread.join(timeout_s)
            return
        with contextlib.suppress(zmq.ZMQError):
            self._send(Failed(self._epoch, self._rank, reason))

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._from_loop.fileno(), zmq.POLLIN)
        try:
            while self._step(poller):
                pass
        except Exception as error:
            self._fail(f"the rounds plane failed: {type(error).__name__}: {error}")

    def _step(self, poller: zmq.Poller) -> bool:
        """False when the thread shall leave."""
        poller.poll()
        for event in self._from_loop.drain():
            if isinstance(event, RoundUp | WaveStarted | WaveDone | Failed):
                self._send(event)
            if isinstance(event, Failed):
                return False
        if not self._take_rounds():
            return False
        # Whatever woke us may have freed capacity.
        self._answer(self._rounds.report())
        return True

    def _take_rounds(self) -> bool:
        while self._socket.poll(0):
            message = self._decoder.decode(self._socket.recv())
            match message:
                case RoundDown():
                    self._answer(self._rounds.apply(message))
                case Stop():
                    self._inbox.put(Leave())
                    self._on_stop()
                    return False
                case _:
                    raise RuntimeError(f"the leader sent {type(message).__name__} after the group was formed")
        return True

    def _answer(self, up: RoundUp | None) -> None:
        if up is not None:
            self._send(up)

    def _send(self, message: ToLeader) -> None:
        self._socket.send(self._encoder.encode(message))
