"""How the stages of an epoch find each other, and refuse those that do not belong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq

from ..admission.messages import FromLeader, Hello, Refused, ToLeader, Welcome

_LOOK_UP_MS = 200
"""How often a stage that waits for others looks whether it is still wanted itself."""


class HandshakeError(RuntimeError):
    """A stage did not come in time, or is not one of this group; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What the leader knows once all have come: `hellos` by rank, and the routing id of every follower."""

    hellos: tuple[Hello, ...]
    routes: dict[int, bytes]


def mismatch(mine: Hello, theirs: Hello, size: int) -> str:
    """Why `theirs` cannot serve in the group of `mine`; empty when it can."""
    if not 0 < theirs.rank < size:
        return f"rank {theirs.rank} does not exist in a group of {size}"
    for field in ("version", "fingerprint", "config"):
        ours, other = getattr(mine, field), getattr(theirs, field)
        if ours != other:
            name = {"version": "wavepp version", "fingerprint": "model", "config": "configuration"}[field]
            return f"rank {theirs.rank} has another {name}: {other}, the leader has {ours}"
    return ""


def gather(
    socket: zmq.Socket[bytes], mine: Hello, size: int, timeout_s: float, still_wanted: Callable[[], bool]
) -> Joined:
    """Rank 0: waits for every other rank's Hello. Those that do not fit are told why, and are not counted."""
    decoder = msgspec.msgpack.Decoder(ToLeader)
    encoder = msgspec.msgpack.Encoder()
    hellos = {mine.rank: mine}
    routes: dict[int, bytes] = {}
    deadline = time.monotonic() + timeout_s
    refused = ""
    while len(hellos) < size:
        if time.monotonic() > deadline or not still_wanted():
            missing = sorted(set(range(size)) - set(hellos))
            raise HandshakeError(f"ranks {missing} did not join within {timeout_s:g} s{refused and '; '}{refused}")
        if not socket.poll(_LOOK_UP_MS):
            continue
        route, frame = socket.recv_multipart()
        message = decoder.decode(frame)
        if not isinstance(message, Hello):
            continue
        reason = mismatch(mine, message, size)
        if not reason and message.rank in hellos:
            reason = f"rank {message.rank} has already joined"
        if reason:
            refused = reason
            socket.send_multipart([route, encoder.encode(Refused(reason))])
            continue
        hellos[message.rank] = message
        routes[message.rank] = route
    return Joined(tuple(hellos[rank] for rank in range(size)), routes)


def welcome(socket: zmq.Socket[bytes], joined: Joined, message: Welcome) -> None:
    frame = msgspec.msgpack.encode(message)
    for route in joined.routes.values():
        socket.send_multipart([route, frame])


def join(socket: zmq.Socket[bytes], hello: Hello, timeout_s: float, still_wanted: Callable[[], bool]) -> Welcome:
    """Ranks 1 to P-1: says Hello and waits to be taken in. Raises HandshakeError when refused or left waiting."""
    decoder = msgspec.msgpack.Decoder(FromLeader)
    socket.send(msgspec.msgpack.encode(hello))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and still_wanted():
        if not socket.poll(_LOOK_UP_MS):
            continue
        message = decoder.decode(socket.recv())
        match message:
            case Welcome():
                return message
            case Refused():
                raise HandshakeError(f"the leader refused this stage: {message.reason}")
            case _:
                raise HandshakeError(f"the leader sent {type(message).__name__} before it took this stage in")
    raise HandshakeError(f"the leader did not answer within {timeout_s:g} s")
