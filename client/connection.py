"""One stage as a puller sees it: its socket, what it has pinned, and what was asked of it."""

from __future__ import annotations

from collections import deque

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from ..engine.messages import StageManifest
from ..engine.transfer_messages import Abandon, FromStage, LayerInfo, Open, Opened, Read, ToStage
from .errors import PullError

_LINGER_MS = 500
# A stage that no longer listens, or that hangs up, will not finish the pull: its epoch is over.
_LOST = zmq.Event.DISCONNECTED | zmq.Event.CONNECT_RETRIED | zmq.Event.HANDSHAKE_FAILED_PROTOCOL


class StageConnection:
    """Owner: the thread that pulls. `waiting` says whether the current phase still waits for this stage."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], stage: StageManifest) -> None:
        self.rank = stage.rank
        self.manifest = stage
        self.todo: deque[Read] = deque()
        self.outstanding: deque[Read] = deque()
        self.waiting = True
        self.layers: dict[str, LayerInfo] = {}
        self._opened: Opened | None = None
        self._pinned = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromStage)
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = _LINGER_MS
        self._socket.ipv6 = "[" in stage.address
        self._monitor = self._socket.get_monitor_socket(_LOST)
        self.sockets = (self._socket, self._monitor)

    @property
    def opened(self) -> Opened:
        assert self._opened is not None, "the stage has not answered OPEN"
        return self._opened

    def open(self, handle: str, epoch: int) -> None:
        try:
            self._socket.connect(self.manifest.address)
        except zmq.ZMQError as error:
            raise PullError("lost", f"{self.manifest.address} is no address: {error}", self.rank) from error
        self.send(Open(handle, epoch))
        self._pinned = True

    def take(self, opened: Opened) -> None:
        self._opened = opened
        self.layers = {layer.name: layer for layer in opened.layers}

    def send(self, message: ToStage) -> None:
        self._socket.send(self._encoder.encode(message))

    def receive(self, socket: zmq.Socket[bytes]) -> tuple[FromStage, list[zmq.Frame]] | None:
        """What has arrived on one of `sockets`: an answer and its raw frames. Raises `PullError` when the stage is
        lost or talks nonsense."""
        if socket is self._monitor:
            recv_monitor_message(self._monitor)
            if not self.waiting:
                return None
            raise PullError("lost", f"the connection to {self.manifest.address} broke", self.rank)
        head, *frames = self._socket.recv_multipart(copy=False)
        try:
            return self._decoder.decode(head.buffer), frames
        except msgspec.DecodeError as error:
            raise PullError("protocol", f"the answer does not decode: {error}", self.rank) from error

    def forget(self) -> None:
        """The stage holds nothing for us any more."""
        self._pinned = False

    def close(self) -> None:
        if self._pinned:
            self.send(Abandon())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
