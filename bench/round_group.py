"""Eight processes that hold rounds: rank 0 with a ROUTER, the others with a DEALER each, as `engine/wave_leader.py` and
`engine/wave_follower.py` do, and on every rank the real participant over a real cache. No rank has a LOOP."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from ..admission.claims import Claims
from ..admission.messages import FromLeader, Hello, RoundDown, RoundUp, Stop, ToLeader
from ..admission.participant import Participant
from ..admission.prompt_keys import PromptKeys
from ..admission.request import Request
from ..cache.keys import KeySpace
from ..cache.layout import Window
from ..cache.stage_cache import StageCache
from .full_cache import BLOCK, Requests, snapshots_of

EPOCH, FAMILIES = 1, 4
TIMEOUT_MS = 60_000


class Prompts:
    """The same on every rank: each continues one of a few that are cached, by a quarter of its length."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.cached_tokens = num_tokens * 3 // 4 // BLOCK * BLOCK
        rng = random.Random(0)
        self.cached = [rng.randbytes(4 * (self.cached_tokens + 1)) for _ in range(FAMILIES)]

    def request(self, number: int) -> Request:
        tail = random.Random(number).randbytes(4 * (self.num_tokens - self.cached_tokens))
        tokens = self.cached[number % FAMILIES][: 4 * self.cached_tokens] + tail
        return Request(number, f"request {number}", tokens, f"handle {number}")


class Rank:
    """One rank's side of admission, with a cache in which the prompts' beginnings are. `running` is how many requests
    there must be room for at once."""

    def __init__(self, rank: int, prompts: Prompts, running: int, lockstep: bool) -> None:
        snapshots = snapshots_of(prompts.cached_tokens + 1)
        blocks, slots = -(-prompts.num_tokens // BLOCK), len(snapshots_of(prompts.num_tokens)) + 2
        pages = (FAMILIES + running) * blocks
        self.hello = Hello(
            rank, "", "", "", (rank, rank + 1), tuple(Window), pages, (FAMILIES + running) * slots, 0, 0, ""
        )
        self.cache = StageCache(frozenset(Window), pages, self.hello.num_slots, BLOCK)
        space, requests = KeySpace("model"), Requests(self.cache)
        for tokens in prompts.cached:
            requests.run(space.block_keys(tokens, BLOCK), prompts.cached_tokens + 1, snapshots)
        hints = self.cache.probe if lockstep else self.cache.hint
        self._participant = Participant(rank, EPOCH, self.cache, PromptKeys(space, BLOCK), BLOCK, hints)
        self._claims = Claims(self.cache)

    def apply(self, down: RoundDown) -> RoundUp:
        up = self._participant.apply(down)
        for order in self._participant.take_orders():
            self._claims.take(order)
        return up


class RoundGroup:
    """Rank 0, in this process, and the processes of the others. Use as a context manager."""

    def __init__(self, size: int, prompts: Prompts, running: int, lockstep: bool) -> None:
        self._args = (prompts.num_tokens, running, lockstep)
        self._size = size
        self._rank = Rank(0, prompts, running, lockstep)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToLeader)
        self._opened = ExitStack()
        self._processes: list[BaseProcess] = []
        self._routes: list[bytes] = []
        self.hellos = [self._rank.hello]

    def __enter__(self) -> Self:
        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="wavepp-rounds-"))
        context: zmq.Context[Any] = self._opened.enter_context(zmq.Context())
        self._socket = self._opened.enter_context(context.socket(zmq.ROUTER))
        self._socket.rcvtimeo = TIMEOUT_MS
        self._socket.linger = 200
        self._socket.sndhwm = self._socket.rcvhwm = 0
        address = f"ipc://{Path(folder) / 'rounds'}"
        self._socket.bind(address)
        spawn = multiprocessing.get_context("spawn")
        for rank in range(1, self._size):
            process = spawn.Process(target=_follow, args=(rank, address, *self._args), daemon=True)
            process.start()
            self._processes.append(process)
        joined: dict[int, Hello] = {}
        while len(joined) < self._size - 1:
            route, frame = self._socket.recv_multipart()
            hello = msgspec.msgpack.decode(frame, type=Hello)
            joined[hello.rank] = hello
            self._routes.append(route)
        self.hellos += [joined[rank] for rank in sorted(joined)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for route in self._routes:
            self._socket.send_multipart([route, self._encoder.encode(Stop(EPOCH))])
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._opened.close()

    def round(self, down: RoundDown) -> list[RoundUp]:
        """Broadcasts it, applies it here too, and waits for the answers of all ranks."""
        frame = self._encoder.encode(down)
        for route in self._routes:
            self._socket.send_multipart([route, frame])
        answers = [self._rank.apply(down)]
        while len(answers) < self._size:
            up = self._decoder.decode(self._socket.recv_multipart()[1])
            if not isinstance(up, RoundUp):
                raise RuntimeError(f"a rank answered a round with {up}")
            answers.append(up)
        return answers


def _follow(rank: int, address: str, num_tokens: int, running: int, lockstep: bool) -> None:
    """A follower's process."""
    own = Rank(rank, Prompts(num_tokens), running, lockstep)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(FromLeader)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.rcvtimeo = TIMEOUT_MS
        socket.linger = 200
        socket.connect(address)
        socket.send(encoder.encode(own.hello))
        while isinstance(down := decoder.decode(socket.recv()), RoundDown):
            socket.send(encoder.encode(own.apply(down)))
