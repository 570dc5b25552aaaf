"""A stage joins its group: the rounds plane first, then, with everybody there, the data plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version

import torch
import torch.distributed as dist
import zmq

from ..admission.messages import Hello, Welcome
from ..models.stage_model import StageModel
from .data_plane import Edges, form_group
from .handshake import gather, join, welcome
from .settings import StageSettings
from .stage_memory import StageMemory


@dataclass(frozen=True, slots=True)
class Membership:
    """A place in a formed group. `hellos` (all ranks, in order) and `routes` are known to rank 0 only."""

    epoch: int
    rounds: zmq.Socket[bytes]
    edges: Edges
    hellos: tuple[Hello, ...] = ()
    routes: dict[int, bytes] = field(default_factory=dict)


class Meeting:
    """Owned by the main thread; used once."""

    def __init__(self, settings: StageSettings, context: zmq.Context[zmq.Socket[bytes]], device: torch.device) -> None:
        self._settings, self._context, self._device = settings, context, device
        self._rank, self._size = settings.rank, settings.group.engine.pp
        self._timeout_s = settings.group.engine.start_timeout_s

    def attend(
        self,
        model: StageModel,
        memory: StageMemory,
        weight_bytes: int,
        transfer_address: str,
        still_wanted: Callable[[], bool],
    ) -> Membership:
        """Raises HandshakeError when a rank does not come or does not fit."""
        hello = Hello(
            rank=self._rank,
            version=version("wavepp"),
            fingerprint=model.spec.fingerprint,
            config=self._settings.group.digest(),
            layers=(model.layers.start, model.layers.stop),
            windows=tuple(sorted(memory.windows)),
            num_pages=memory.capacity.num_pages,
            num_slots=memory.capacity.num_slots,
            cache_bytes=memory.pools.num_bytes,
            weight_bytes=weight_bytes,
            transfer_address=transfer_address,
        )
        return self._lead(hello, still_wanted) if self._rank == 0 else self._follow(hello, still_wanted)

    def _lead(self, hello: Hello, still_wanted: Callable[[], bool]) -> Membership:
        rounds = self._socket(zmq.ROUTER)
        rounds.router_mandatory = False
        rounds.bind(self._settings.leader)
        joined = gather(rounds, hello, self._size, self._timeout_s, still_wanted)
        epoch = self._settings.epoch
        edges = Edges(None, None)
        if self._size > 1:
            store = self._store(self._settings.host, 0, is_master=True)
            welcome(rounds, joined, Welcome(epoch, self._settings.host, store.port))
            edges = self._form(store)
        return Membership(epoch, rounds, edges, joined.hellos, joined.routes)

    def _follow(self, hello: Hello, still_wanted: Callable[[], bool]) -> Membership:
        rounds = self._socket(zmq.DEALER)
        rounds.connect(self._settings.leader)
        word = join(rounds, hello, self._timeout_s, still_wanted)
        edges = self._form(self._store(word.store_host, word.store_port, is_master=False))
        return Membership(word.epoch, rounds, edges)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        rounds = self._context.socket(kind)
        rounds.linger = 200
        rounds.maxmsgsize = self._settings.group.engine.max_frame_bytes
        rounds.sndhwm = rounds.rcvhwm = 0
        return rounds

    def _store(self, host: str, port: int, is_master: bool) -> dist.TCPStore:
        return dist.TCPStore(
            host,
            port,
            world_size=None,
            is_master=is_master,
            timeout=timedelta(seconds=self._timeout_s),
            wait_for_workers=False,
        )

    def _form(self, store: dist.TCPStore) -> Edges:
        return form_group(self._rank, self._size, store, self._device, self._timeout_s)
