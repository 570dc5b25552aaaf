"""A stage that answers what it is told to, however wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

import msgspec
import zmq
from wavepp.engine.messages import StageManifest
from wavepp.engine.transfer_messages import ToStage

Script = Callable[[ToStage], list[bytes] | None]
"""From a request to the frames of its answer; None answers nothing."""


class ScriptedStage:
    def __init__(self, script: Script, rank: int = 0, layers: tuple[str, ...] = ()) -> None:
        self._script = script
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.manifest = StageManifest(rank, f"tcp://127.0.0.1:{port}", layers)
        self.requests: list[ToStage] = []
        self._ending = self._context.socket(zmq.PAIR)
        self._ending.bind("inproc://end")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        end = self._context.socket(zmq.PAIR)
        end.connect("inproc://end")
        end.send(b"")
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, self._ending):
            poller.register(socket, zmq.POLLIN)
        while self._ending not in dict(poller.poll()):
            peer, frame = self._socket.recv_multipart()
            request = msgspec.msgpack.decode(frame, type=ToStage)
            self.requests.append(request)
            answer = self._script(request)
            if answer is not None:
                self._socket.send_multipart([peer, *answer])
