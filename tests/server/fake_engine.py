"""A rank 0 and a supervisor made of nothing but their sockets: they keep what they hear, and say what tests want."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio
from wavepp.admission.effects import Reuse
from wavepp.admission.messages import Gauges
from wavepp.engine.messages import (
    CancelRequest,
    Finished,
    GetState,
    GroupDown,
    GroupState,
    GroupUp,
    KvGet,
    KvRelease,
    KvRenew,
    Manifest,
    Progress,
    Reply,
    RequestFailed,
    ResetCache,
    StageInfo,
    StageManifest,
    Submit,
    Timing,
    ToFrontEnd,
    ToRankZero,
)

T = TypeVar("T")
TIMEOUT_S = 20.0
LIFE_S = 60.0
"""What every handle still has to live, whatever was asked for."""
TIMING = Timing(0.25, 0.5, 1.5)

STAGES = tuple(
    StageInfo(rank, (2 * rank, 2 * rank + 2), ("attention",), 100, 8, 1 << 20, 1 << 21, f"tcp://10.0.0.{rank}:7000")
    for rank in range(2)
)
STATE = GroupState(
    epoch=1,
    queued=3,
    running=2,
    waves_in_flight=4,
    handles=5,
    waves_done=60,
    tokens_computed=7000,
    tokens_reused=800,
    ranks=(
        Gauges(
            pages_total=100,
            pages_free=20,
            pages_reclaimable=30,
            slots_total=8,
            slots_free=1,
            slots_reclaimable=2,
            leases=9,
            handles=10,
            pulls=11,
            pages_promised=12,
            slots_promised=3,
            escrows=7,
            host_pages_total=60,
            host_pages_free=40,
            host_pages_reclaimable=15,
            host_slots_total=6,
            host_slots_free=1,
            host_slots_reclaimable=3,
            offloaded=70,
            onboarded=25,
            dropped=13,
        ),
        Gauges(pages_total=50, pages_free=50),
    ),
    stage_seconds=(12.5, 13.25),
)


def token_of(message: Submit) -> int:
    """What the fake model samples: the last token of the prompt, plus one."""
    return int.from_bytes(message.tokens[-4:], "little") + 1


class FakeEngine:
    """Owned by the test's event loop. By default every prompt finishes at once, under the handle `kv-NAME`;
    with `hold` set, requests wait until the test says `finish` or `fail`."""

    def __init__(self, front_address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._push.linger = 0
        self._push.connect(front_address)
        self._pull: zmq.asyncio.Socket | None = None
        self._decoder = msgspec.msgpack.Decoder(ToRankZero)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self.heard: list[ToRankZero] = []
        self.hold = False
        self.silent = False
        self.cached = 0
        self.handles: dict[str, str] = {}
        self.state = STATE
        self.on_submit: Callable[[Submit], ToFrontEnd | None] | None = None

    async def up(self, epoch: int = 1, max_prompt_tokens: int = 1_000_000) -> None:
        if self._pull is not None:
            self._stop_hearing()
        self._pull = self._context.socket(zmq.PULL)
        port = self._pull.bind_to_random_port("tcp://127.0.0.1")
        self._task = asyncio.create_task(self._hear(self._pull))
        await self.say(GroupUp(epoch, f"tcp://127.0.0.1:{port}", STAGES, 16, 64, max_prompt_tokens))

    async def down(self, epoch: int = 1, reason: str = "stage 1 was killed", final: bool = False) -> None:
        await self.say(GroupDown(epoch, reason, final))

    async def say(self, message: ToFrontEnd) -> None:
        await self._push.send(msgspec.msgpack.encode(message))

    async def say_raw(self, frame: bytes) -> None:
        await self._push.send(frame)

    async def wait_heard(self, kind: type[T], count: int = 1) -> list[T]:
        """The messages of one kind, once there are `count`."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.all_heard(kind)) >= count)
        return self.all_heard(kind)

    def all_heard(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def finish(
        self,
        message: Submit,
        top: tuple[tuple[int, float], ...] = (),
        reuse: Reuse | None = None,
        deadline_met: bool | None = None,
    ) -> None:
        handle = f"kv-{message.name}"
        self.handles[handle] = message.name
        length = len(message.tokens) // 4
        cached = min(self.cached, length)
        reuse = reuse or Reuse(cached, cached, cached)
        timing = msgspec.structs.replace(TIMING, deadline_met=deadline_met)
        await self.say(
            Finished(message.name, handle, token_of(message), -0.5, top, length, reuse.endpoint, timing, reuse)
        )

    async def fail(self, name: str, code: str, text: str = "because") -> None:
        await self.say(RequestFailed(name, code, text))

    async def progress(self, name: str, computed: int, total: int, phase: str = "computing") -> None:
        await self.say(Progress(name, phase, computed, total))

    async def close(self) -> None:
        self._stop_hearing()
        self._push.close(linger=0)
        self._context.term()

    def _stop_hearing(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._pull is not None:
            self._pull.close(linger=0)

    async def _hear(self, pull: zmq.asyncio.Socket) -> None:
        while True:
            message = self._decoder.decode(await pull.recv())
            async with self._changed:
                self.heard.append(message)
                self._changed.notify_all()
            if not self.silent:
                await self._answer(message)

    async def _answer(self, message: ToRankZero) -> None:
        match message:
            case Submit():
                if self.on_submit is not None and (answer := self.on_submit(message)) is not None:
                    await self.say(answer)
                elif not self.hold:
                    await self.progress(message.name, 0, len(message.tokens) // 4, "admitted")
                    await self.finish(message)
            case CancelRequest():
                await self.fail(message.name, "cancelled", "the request was cancelled")
            case KvGet() | KvRenew():
                await self.say(self._manifest(message))
            case KvRelease():
                error = self._error(message.handle)
                if not error:
                    del self.handles[message.handle]
                await self.say(Reply(message.call, error))
            case ResetCache():
                await self.say(Reply(message.call))
            case GetState():
                await self.say(Reply(message.call, body=self.state))

    def _error(self, handle: str) -> str:
        if handle.startswith("expired"):
            return "expired_handle"
        if handle.startswith("early"):
            return "not_finished"
        return "" if handle in self.handles else "unknown_handle"

    def _manifest(self, message: KvGet | KvRenew) -> Reply:
        if error := self._error(message.handle):
            return Reply(message.call, error)
        stages = tuple(StageManifest(stage.rank, stage.address, ("model.layers.0",)) for stage in STAGES)
        return Reply(message.call, body=Manifest(message.handle, 1, "tiny", 5, 16, 9, LIFE_S, stages))
