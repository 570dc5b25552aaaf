"""Pulls the state of one prompt from every stage, over ZMQ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import zmq

from ..engine.messages import Manifest
from ..engine.transfer_messages import Complete, Data, FromStage, Opened, Read, Refusal, Valid
from .connection import StageConnection
from .errors import PullError
from .plan import plan_reads, token_rows
from .sink import StateSink, check_layers
from .stats import PullStats


def pull_state(
    manifest: Manifest,
    into: StateSink,
    *,
    timeout_s: float = 60.0,
    context: zmq.Context[zmq.Socket[bytes]] | None = None,
) -> PullStats:
    """Pulls everything that `manifest` names into the sink, and returns once every stage has confirmed it.

    OPEN pins the state on all stages, which must agree with the manifest and with the sink; READs run pipelined on
    every stage at once; COMPLETE asks each stage whether what was read was still its own. Raises `PullError` (and
    whatever the sink raises): what the sink was given must then be thrown away.
    """
    started = time.monotonic()
    pull = _Pull(manifest, into, started + timeout_s, context or zmq.Context.instance())
    try:
        pull.open()
        into.begin(manifest.num_tokens)
        pull.read()
    finally:
        pull.close()
    return PullStats(manifest.num_tokens, len(manifest.stages), pull.num_bytes, time.monotonic() - started)


class _Pull:
    """One pull from all stages. Owner: the caller's thread."""

    def __init__(
        self, manifest: Manifest, sink: StateSink, deadline: float, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        if not manifest.stages:
            raise PullError("mismatch", "the manifest names no stage")
        self._manifest = manifest
        self._sink = sink
        self._deadline = deadline
        self.num_bytes = 0
        self._context = context
        self._stages: list[StageConnection] = []

    def open(self) -> None:
        """Pins the state on every stage and checks that it is what the manifest and the sink say."""
        for manifest in self._manifest.stages:
            stage = StageConnection(self._context, manifest)
            self._stages.append(stage)
            stage.open(self._manifest.handle, self._manifest.epoch)
        self._run(self._on_opened, "to open")
        for stage in self._stages:
            _check_stage(self._manifest, stage)
        check_layers(self._sink.layers, {stage.rank: stage.opened.layers for stage in self._stages})

    def read(self) -> None:
        """Reads everything, and has every stage confirm it."""
        for stage in self._stages:
            stage.waiting = True
            stage.todo.extend(plan_reads(stage.opened))
            self._advance(stage)
        self._run(self._on_data, "to send its state")

    def close(self) -> None:
        """Also lets go of what is still pinned, when the pull has failed."""
        for stage in self._stages:
            stage.close()

    def _run(self, handle: Callable[[StageConnection, FromStage, list[zmq.Frame]], None], what: str) -> None:
        """Feeds answers to `handle` until no stage is waited for."""
        poller = zmq.Poller()
        by_socket = {socket: stage for stage in self._stages for socket in stage.sockets}
        for socket in by_socket:
            poller.register(socket, zmq.POLLIN)
        while waiting := [stage for stage in self._stages if stage.waiting]:
            left = self._deadline - time.monotonic()
            ready = poller.poll(int(left * 1000) + 1) if left > 0 else []
            if not ready:
                ranks = ", ".join(str(stage.rank) for stage in waiting)
                raise PullError("timeout", f"stage {ranks} took too long {what}")
            for socket, _ in ready:
                stage = by_socket[socket]
                answer = stage.receive(socket)
                if answer is not None:
                    message, frames = answer
                    if isinstance(message, Refusal):
                        raise PullError(message.code, message.message, stage.rank)
                    handle(stage, message, frames)

    def _on_opened(self, stage: StageConnection, message: FromStage, frames: list[zmq.Frame]) -> None:
        if not isinstance(message, Opened) or frames:
            raise PullError("protocol", f"answered {type(message).__name__} to OPEN", stage.rank)
        stage.take(message)
        stage.waiting = False

    def _on_data(self, stage: StageConnection, message: FromStage, frames: list[zmq.Frame]) -> None:
        if stage.outstanding:
            self._store(stage, stage.outstanding.popleft(), message, frames)
            self._advance(stage)
        elif isinstance(message, Valid) and message.pull == stage.opened.pull and not frames:
            stage.forget()
            stage.waiting = False
        else:
            raise PullError("protocol", f"answered {type(message).__name__} to COMPLETE", stage.rank)

    def _advance(self, stage: StageConnection) -> None:
        """Keeps a few READs under way; when none is left, asks whether all was well."""
        while stage.todo and len(stage.outstanding) < min(stage.opened.max_reads, 4):
            read = stage.todo.popleft()
            stage.send(read)
            stage.outstanding.append(read)
        if not stage.outstanding:
            stage.send(Complete(stage.opened.pull))

    def _store(self, stage: StageConnection, read: Read, message: FromStage, frames: list[zmq.Frame]) -> None:
        if message != Data(read.pull, read.layer, read.first, read.count):
            raise PullError("protocol", f"answered {message} to {read}", stage.rank)
        layer = stage.layers[read.layer]
        if len(frames) != len(layer.tensors):
            raise PullError("protocol", f"sent {len(frames)} tensors of {read.layer}", stage.rank)
        start = read.first * stage.opened.block_size
        for spec, frame in zip(layer.tensors, frames, strict=True):
            try:
                values = token_rows(frame.buffer, spec, read, stage.opened)
            except ValueError as error:
                raise PullError("protocol", f"{read.layer} {spec.name}: {error}", stage.rank) from error
            if read.count:
                self._sink.put_tokens(read.layer, spec.name, start, values)
            else:
                self._sink.put_state(read.layer, spec.name, values)
            self.num_bytes += len(frame)


def _check_stage(manifest: Manifest, stage: StageConnection) -> None:
    opened = stage.opened
    checks: Sequence[tuple[str, object, object]] = (
        ("rank", stage.rank, opened.rank),
        ("epoch", manifest.epoch, opened.epoch),
        ("number of tokens", manifest.num_tokens, opened.num_tokens),
        ("block size", manifest.block_size, opened.block_size),
        ("layers", stage.manifest.layers, tuple(layer.name for layer in opened.layers)),
    )
    for what, expected, actual in checks:
        if expected != actual:
            raise PullError("mismatch", f"the {what} should be {expected} and is {actual}", stage.rank)
