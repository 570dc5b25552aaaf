"""Stages started one by one, as on several hosts: they find each other through the leader's address."""

from __future__ import annotations

import socket
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest
import zmq
from wavepp.engine.messages import Finished, GroupUp, Submit, ToFrontEnd

from .conftest import SMALL_CACHE, SubjectOf


@pytest.fixture
def front() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket_:
        socket_.linger = 0
        socket_.bind("tcp://127.0.0.1:*")
        yield socket_


def endpoint_of(bound: zmq.Socket[bytes]) -> str:
    endpoint = bound.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def hear(front: zmq.Socket[bytes], kind: type) -> object:
    decoder = msgspec.msgpack.Decoder(ToFrontEnd)
    while front.poll(120_000):
        message = decoder.decode(front.recv())
        if isinstance(message, kind):
            return message
    raise AssertionError(f"no {kind.__name__} came")


def test_two_stages_over_tcp_prefill_and_leave_together(front: zmq.Socket[bytes], subject_of: SubjectOf) -> None:
    subject = subject_of("kimi-KKKA")
    leader, submit = free_port(), free_port()
    base = [sys.executable, "-m", "wavepp.server.cli", "stage", str(subject.folder), "--pp", "2", *SMALL_CACHE]
    base += ["--threads-per-stage", "1", "--leader", f"127.0.0.1:{leader}"]
    addresses = ["--submit", f"127.0.0.1:{submit}", "--front-end", endpoint_of(front)]
    with ExitStack() as opened:

        def start(*flags: str) -> subprocess.Popen[bytes]:
            stage = opened.enter_context(subprocess.Popen([*base, *flags], stdout=subprocess.DEVNULL))
            opened.callback(stage.kill)
            return stage

        # The follower first: it waits for its leader.
        second, first = start("--rank", "1"), start("--rank", "0", *addresses)
        up = hear(front, GroupUp)
        assert isinstance(up, GroupUp)
        assert [stage.layers for stage in up.stages] == [(0, 2), (2, 4)]

        prompt = list(range(3, 120))
        with zmq.Context() as context, context.socket(zmq.PUSH) as to_leader:
            to_leader.connect(up.submit_address)
            to_leader.send(msgspec.msgpack.encode(Submit("a", array("i", prompt).tobytes(), ttl_s=60)))
            finished = hear(front, Finished)
        assert isinstance(finished, Finished)
        assert finished.token == subject.reference.continuation(prompt, 1).tokens[0]

        first.terminate()
        assert (first.wait(30), second.wait(30)) == (0, 0)
