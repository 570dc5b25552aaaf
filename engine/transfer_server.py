"""The transfer thread of a stage: serves pulls of finished state over ZMQ."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq

from ..cache.layout import LayerCache
from ..models.batch import LayerPools
from .transfer_config import TransferConfig
from .transfer_desk import Answer, PullSource, TransferDesk
from .transfer_gather import PoolReader
from .transfer_messages import Refusal

_log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 65_536
_LINGER_MS = 200


class TransferServer:
    """Serves the pulls of one stage in one epoch, from a thread of its own.

    The socket is bound when the object is made, so that the address can be announced before the epoch is known;
    requests wait until `start`. `notify`, `start` and `stop` may be called from any thread. The transfer thread
    calls `on_closed` when pulls have ended, so that capacity may have grown, and `on_failure` if it ends by an error of
    its own.
    """

    def __init__(
        self,
        config: TransferConfig,
        *,
        rank: int,
        block_size: int,
        layers: Sequence[LayerCache],
        pools: LayerPools,
        source: PullSource,
        on_closed: Callable[[], None] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """Raises `zmq.ZMQError` when the address cannot be bound."""
        self._config = config
        self._rank = rank
        self._block_size = block_size
        self._layers = tuple(layers)
        self._source = source
        self._reader = PoolReader(layers, pools)
        self._on_closed = on_closed
        self._on_failure = on_failure
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.router_mandatory = True
        self._socket.linger = _LINGER_MS
        self._socket.maxmsgsize = _MAX_REQUEST_BYTES
        self._socket.ipv6 = ":" in config.host
        try:
            port = _bind(self._socket, config)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.address = f"tcp://{_bracketed(config.advertise_host or config.host)}:{port}"
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._open_pulls = 0

    @property
    def open_pulls(self) -> int:
        """How many pulls are open right now (a gauge)."""
        return self._open_pulls

    def start(self, epoch: int) -> None:
        """Begins to serve, for this epoch only."""
        assert self._thread is None, "a transfer server serves one epoch"
        self._thread = threading.Thread(target=self._run, args=(epoch,), name="TRANSFER", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """A handle was sealed or has ended: waiting OPENs are looked at again. Never blocks."""
        # Full: a wake-up is on its way already. Closed: nobody waits any more.
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def stop(self) -> None:
        """Closes every pull, refuses those who wait, and ends the thread. Calling it again does nothing."""
        self._stopping.set()
        self.notify()
        if self._thread is not None:
            self._thread.join()
        self._wake_in.close()
        self._wake_out.close()
        self._socket.close()
        self._context.term()

    def _run(self, epoch: int) -> None:
        desk = TransferDesk(
            self._config,
            epoch=epoch,
            rank=self._rank,
            block_size=self._block_size,
            layers=self._layers,
            source=self._source,
            reader=self._reader,
        )
        service = _Service(self._socket, desk, self._config.max_reads_in_flight)
        reason = "the stage has stopped"
        try:
            self._serve(desk, service)
        except Exception as error:
            _log.exception("rank %d: the transfer thread failed", self._rank)
            reason = f"the transfer thread failed: {error}"
            if self._on_failure is not None:
                self._on_failure(reason)
        finally:
            service.send_all(desk.close(reason))
            self._open_pulls = 0

    def _serve(self, desk: TransferDesk, service: _Service) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        closed = 0
        while not self._stopping.is_set():
            deadline = desk.next_deadline()
            timeout = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000) + 1)
            ready = dict(poller.poll(timeout))
            if self._wake_out.fileno() in ready:
                self._drain_wakes()
                service.send_all(desk.wake(time.monotonic()))
            service.send_all(desk.expire(time.monotonic()))
            if self._socket in ready:
                service.serve_one(time.monotonic())
            self._open_pulls = desk.open_pulls
            if desk.closed_pulls > closed and self._on_closed is not None:
                closed = desk.closed_pulls
                self._on_closed()

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass


class _Service:
    """Takes requests off the socket and puts answers on it. Owner: the transfer thread.

    It counts the answers with data that ZMQ still holds for each connection, so that a puller that asks without
    reading cannot fill the memory. ZMQ's queues to other connections are their own: nobody waits for a slow one.
    """

    def __init__(self, socket: zmq.Socket[bytes], desk: TransferDesk, max_in_flight: int) -> None:
        self._socket = socket
        self._desk = desk
        self._max_in_flight = max_in_flight
        self._encoder = msgspec.msgpack.Encoder()
        self._in_flight: dict[bytes, deque[zmq.MessageTracker]] = {}

    def serve_one(self, now: float) -> None:
        peer, *frames = self._socket.recv_multipart()
        if self._is_full(peer):
            message = f"more than {self._max_in_flight} reads under way on one connection"
            self._send(Answer(peer, Refusal("busy", message)))
            return
        try:
            answer = self._desk.handle(peer, frames, now)
        except Exception as error:
            # One bad pull must not end all others; its puller learns why and discards what it has.
            _log.exception("a pull failed")
            answer = Answer(peer, Refusal("failed", f"{type(error).__name__}: {error}"))
        if answer is not None:
            self._send(answer)

    def send_all(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._send(answer)

    def _send(self, answer: Answer) -> None:
        head = self._encoder.encode(answer.message)
        try:
            if not answer.frames:
                self._socket.send_multipart([answer.peer, head], flags=zmq.NOBLOCK)
                return
            tracker = self._socket.send_multipart(
                [answer.peer, head, *answer.frames], flags=zmq.NOBLOCK, copy=False, track=True
            )
            if tracker is not None and not tracker.done:
                self._trackers_of(answer.peer).append(tracker)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            # The puller has gone, or does not read: either way it cannot complete.
            self._desk.forget(answer.peer)
            self._in_flight.pop(answer.peer, None)

    def _trackers_of(self, peer: bytes) -> deque[zmq.MessageTracker]:
        if peer not in self._in_flight:
            # Connections end without a word: what is left of them goes when new ones come.
            for other in [other for other, trackers in self._in_flight.items() if all(t.done for t in trackers)]:
                del self._in_flight[other]
            self._in_flight[peer] = deque()
        return self._in_flight[peer]

    def _is_full(self, peer: bytes) -> bool:
        trackers = self._in_flight.get(peer)
        if trackers is None:
            return False
        while trackers and trackers[0].done:
            trackers.popleft()
        if not trackers:
            del self._in_flight[peer]
        # Answers that have left may be counted for a moment longer, hence twice what pullers are told.
        return len(trackers) >= 2 * self._max_in_flight


def _bind(socket: zmq.Socket[bytes], config: TransferConfig) -> int:
    host = _bracketed(config.host)
    if config.port == 0:
        return socket.bind_to_random_port(f"tcp://{host}")
    socket.bind(f"tcp://{host}:{config.port}")
    return config.port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
