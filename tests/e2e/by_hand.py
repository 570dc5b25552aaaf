"""Stages that are started one by one, with a test in the place of the front end: it sees what rank 0 says, in order."""

from __future__ import annotations

import socket
import subprocess
import sys
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import zmq
from wavepp.engine.messages import GroupUp, KvRelease, Submit, ToFrontEnd, ToRankZero

Message = TypeVar("Message")


class StagesByHand:
    """A group over TCP, as on several hosts. `stages` are the processes by rank, `up` what rank 0 said first."""

    up: GroupUp

    def __init__(self, model: Path, pp: int, *flags: str) -> None:
        self._pp = pp
        self._base = [sys.executable, "-m", "wavepp.server.cli", "stage", str(model), "--pp", str(pp)]
        self._base += ["--threads-per-stage", "1", *flags]
        self._opened = ExitStack()
        self._decoder = msgspec.msgpack.Decoder(ToFrontEnd)
        self._calls = 0
        self.stages: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            context = opening.enter_context(zmq.Context())
            self._front = opening.enter_context(context.socket(zmq.PULL))
            self._front.linger = 0
            self._front.bind("tcp://127.0.0.1:*")
            leader, submit = _free_port(), _free_port()
            addresses = ["--submit", f"127.0.0.1:{submit}", "--front-end", _endpoint_of(self._front)]
            # The followers first: they wait for their leader.
            for rank in reversed(range(self._pp)):
                command = [*self._base, "--leader", f"127.0.0.1:{leader}", "--rank", str(rank)]
                stage = subprocess.Popen(command + (addresses if rank == 0 else []), stdout=subprocess.DEVNULL)
                opening.enter_context(stage)
                opening.callback(stage.kill)
                self.stages.insert(0, stage)
            self.up = self.hear(GroupUp)
            self._to_leader = opening.enter_context(context.socket(zmq.PUSH))
            self._to_leader.connect(self.up.submit_address)
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def submit(self, name: str, prompt: Sequence[int]) -> None:
        self._tell(Submit(name, array("i", prompt).tobytes(), ttl_s=600))

    def release(self, handle: str) -> None:
        self._calls += 1
        self._tell(KvRelease(self._calls, handle))

    def next(self, timeout_s: float = 120) -> ToFrontEnd:
        """What rank 0 says next."""
        assert self._front.poll(int(timeout_s * 1000)), "rank 0 says nothing"
        return self._decoder.decode(self._front.recv())

    def hear(self, kind: type[Message]) -> Message:
        """The next message of that kind; those before it are dropped."""
        while not isinstance(message := self.next(), kind):
            pass
        return message

    def _tell(self, message: ToRankZero) -> None:
        self._to_leader.send(msgspec.msgpack.encode(message))


def _endpoint_of(bound: zmq.Socket[bytes]) -> str:
    endpoint = bound.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
