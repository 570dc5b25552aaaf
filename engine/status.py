"""What a child tells the supervisor: one JSON line each on its standard output."""

import sys
import threading

import msgspec
from msgspec import Struct

from .messages import GroupUp


class Loading(Struct, frozen=True, tag="loading"):
    """Weights read so far, in bytes."""

    rank: int
    done: int
    total: int


class HostTier(Struct, frozen=True):
    """What a stage may keep in host memory; all zero where there is no such tier."""

    num_pages: int = 0
    num_slots: int = 0
    num_bytes: int = 0


class Loaded(Struct, frozen=True, tag="loaded"):
    """The stage is ready to join its group. `layers` is (first, one past the last), `cache_bytes` of the device."""

    rank: int
    layers: tuple[int, int]
    weight_bytes: int
    cache_bytes: int
    host: HostTier = HostTier()


class Ready(Struct, frozen=True, tag="ready"):
    """Rank 0: the group serves."""

    group: GroupUp


class Broken(Struct, frozen=True, tag="broken"):
    """The stage leaves because of this."""

    rank: int
    reason: str


class Listening(Struct, frozen=True, tag="listening"):
    """The front end: its own URL, and the endpoint that rank 0 and the supervisor send to."""

    http: str
    address: str


Status = Loading | Loaded | Ready | Broken | Listening

_decoder = msgspec.json.Decoder(Status)
_lock = threading.Lock()


def say(status: Status) -> None:
    """Safe from any thread. A supervisor that is gone is found out elsewhere, so a closed pipe is no error here."""
    line = msgspec.json.encode(status).decode() + "\n"
    with _lock:
        try:
            sys.stdout.write(line)
            sys.stdout.flush()
        except BrokenPipeError:
            return


def parse(line: bytes) -> Status | None:
    """None for a line that is not a status, such as a library's own print."""
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
