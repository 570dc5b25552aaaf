"""The front end's side of the line to rank 0 and to the supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, Protocol, assert_never

import msgspec
import zmq
import zmq.asyncio

from ..engine.messages import (
    CancelRequest,
    Finished,
    GetState,
    GroupDown,
    GroupState,
    GroupUp,
    KvGet,
    Progress,
    Reply,
    RequestFailed,
    Submit,
    ToFrontEnd,
    ToRankZero,
)
from . import handles
from .errors import (
    ApiError,
    ConflictError,
    GoneError,
    InternalError,
    NotFoundError,
    TimedOutError,
    UnavailableError,
    from_reply,
    from_request_failed,
)
from .group_watch import GroupWatch
from .pending import Pending, PendingTable, Sink

log = logging.getLogger(__name__)

_FRAMES_PER_TURN = 64
"""Frames taken before other tasks get their turn, however many are waiting."""


class Observer(Protocol):
    """Hears how requests end."""

    def request_finished(self, message: Finished) -> None: ...
    def request_failed(self, code: str) -> None: ...


class EngineClient:
    """Owned by the event loop. Binds `address` (PULL) for what rank 0 and the supervisor say, and connects (PUSH)
    to whichever rank 0 serves now. Sends never block: what may be in flight is limited before it gets here."""

    def __init__(
        self,
        address: str,
        *,
        call_timeout_s: float,
        stall_timeout_s: float,
        retry_after_s: int,
        observer: Observer,
    ) -> None:
        self._bind_to = address
        self.group = GroupWatch(stall_timeout_s=stall_timeout_s, retry_after_s=retry_after_s)
        self._call_timeout_s = call_timeout_s
        self._retry_after_s = retry_after_s
        self._observer = observer
        self._context = zmq.Context()
        self._pull: zmq.asyncio.Socket | None = None
        self._push: zmq.Socket[bytes] | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToFrontEnd)
        self._pending = PendingTable()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self._next_call = 1
        self._asking: asyncio.Task[GroupState] | None = None
        self.address = ""
        """The endpoint really bound, once started."""

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_admitted(self) -> int:
        return self._pending.num_admitted

    async def start(self) -> None:
        """Errors: `zmq.ZMQError` when the address cannot be bound."""
        self._pull = zmq.asyncio.Context.shadow(self._context).socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, 0)
        self._pull.bind(self._bind_to)
        self.address = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
        self._receiver = asyncio.create_task(self._receive(self._pull), name="front end receiver")

    async def close(self) -> None:
        """Fails what is still in flight, tells rank 0 to drop it, and lets the last messages leave."""
        self.fail_all(UnavailableError("the server is shutting down", "draining", retry_after_s=self._retry_after_s))
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.wait({self._receiver})
        if self._pull is not None:
            self._pull.close(linger=0)
        if self._push is not None:
            self._push.close(linger=200)
        self._context.term()

    # -- requests ---------------------------------------------------------------------------------------------

    def submit(self, message: Submit, sink: Sink | None = None) -> Pending:
        """Sends a prompt off. Errors: `UnavailableError` when no group serves, `ConflictError` for a taken name."""
        self.group.require_up()
        if len(self._pending) == 0:
            self.group.progressed()
        pending = self._pending.add(message.name, sink)
        self._send(message)
        return pending

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for the request any longer. Harmless when it is over."""
        if pending.settled.is_set() or pending.cancelled:
            return
        pending.forget()
        if self._push is not None:
            self._send(CancelRequest(pending.name))

    async def cancel(self, name: str) -> Literal["cancelled", "released", "cancelling"]:
        """Ends a request by its name. Whoever waits for it gets a `ConflictError` with code `cancelled`. Errors:
        `NotFoundError`, `UnavailableError`."""
        self.group.require_up()
        pending = self._pending.get(name)
        if pending is None:
            handle = self._pending.handle_of(name)
            if handle is None:
                raise NotFoundError(f"no request with the id {name[:128]}", "unknown_request")
            await handles.release(self, handle)
            self._pending.forget_handle(name)
            return "released"
        if not pending.cancelled:
            pending.cancelled = True
            self._send(CancelRequest(name))
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await pending.settled.wait()
        except TimeoutError:
            return "cancelling"
        return "cancelled"

    async def check_free(self, name: str) -> None:
        """A finished request keeps its name while its handle lives. Errors: `ConflictError`, those of `call`.

        Rank 0 would refuse the name too. But a cancel of the second request, should its client hang up before that,
        would end the handle of the first."""
        handle = self._pending.handle_of(name)
        if handle is None:
            return
        try:
            await handles.manifest(self, handle)
        except (GoneError, NotFoundError):
            self._pending.forget_handle(name)
        else:
            raise ConflictError(f"the handle of the request with the id {name} is still alive", "duplicate")

    def has(self, name: str) -> bool:
        return self._pending.get(name) is not None

    def fail_all(self, error: ApiError) -> None:
        """Answers everything in flight with `error`, and has rank 0, where there is one, drop it."""
        for pending in self._pending.clear():
            if self._push is not None and not pending.cancelled:
                self._send(CancelRequest(pending.name))
            pending.fail(error)
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(error)

    async def call(self, make: Callable[[int], ToRankZero], timeout_s: float | None = None) -> Reply:
        """Asks rank 0 something under a fresh number. Errors: `UnavailableError`, `TimedOutError`, and what the
        reply names."""
        self.group.require_up()
        number = self._next_call
        self._next_call += 1
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        limit = timeout_s or self._call_timeout_s
        try:
            self._send(make(number))
            async with asyncio.timeout(limit):
                reply = await future
        except TimeoutError:
            raise TimedOutError(f"the stage group did not answer within {limit:g} s") from None
        finally:
            self._calls.pop(number, None)
        if reply.error:
            raise from_reply(reply.error)
        return reply

    async def state(self, timeout_s: float | None = None) -> GroupState:
        """How the group is now; callers at the same time share one question, each with a limit of its own. Errors:
        those of `call`."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_state(), name="state")
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        limit = timeout_s or self._call_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(self._asking)
        except TimeoutError:
            raise TimedOutError(f"the stage group did not answer within {limit:g} s") from None

    async def _ask_state(self) -> GroupState:
        reply = await self.call(GetState)
        if not isinstance(reply.body, GroupState):
            log.error("rank 0 answered a GetState without a state")
            raise InternalError
        self.group.last_state = reply.body
        return reply.body

    # -- the group --------------------------------------------------------------------------------------------

    def lost(self, reason: str) -> None:
        """No group will ever serve this process again."""
        self._handle(GroupDown(self.group.epoch, reason, final=True))

    async def complaint(self, probe_timeout_s: float) -> str:
        """Why the group is not healthy; empty when it is. Work that was admitted must progress, and a wave may take its
        time; when nothing was admitted (all may be waiting for handles to be pulled), rank 0 must at least answer."""
        if self.group.status != "up":
            return self.group.reason
        if not len(self._pending):
            return ""
        if self.num_admitted:
            return self.group.stalled(self.num_admitted)
        if self.group.silent_for() > probe_timeout_s:
            try:
                # Nobody has this handle: the answer comes at once from rank 0's WAVE, whatever its LOOP is doing.
                await self.call(lambda number: KvGet(number, ""), probe_timeout_s)
            except NotFoundError:
                return ""
            except ApiError as error:
                return error.message
        return ""

    def _send(self, message: ToRankZero) -> None:
        assert self._push is not None
        self._push.send(self._encoder.encode(message), zmq.NOBLOCK)

    async def _receive(self, pull: zmq.asyncio.Socket) -> None:
        taken = 0
        while True:
            frame = await pull.recv()
            try:
                self._handle(self._decoder.decode(frame))
            except msgspec.DecodeError as error:
                log.error("dropped a frame of %d bytes that does not decode: %s", len(frame), error)
            except Exception:
                log.exception("could not handle a message of the stage group")
            taken += 1
            if taken % _FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _handle(self, message: ToFrontEnd) -> None:
        self.group.heard()
        match message:
            case Progress():
                self.group.progressed()
                if (pending := self._pending.get(message.name)) is not None:
                    pending.progress(message)
            case Finished():
                self.group.progressed()
                self._finished(message)
            case RequestFailed():
                self.group.progressed()
                self._failed(message)
            case Reply():
                future = self._calls.get(message.call)
                if future is not None and not future.done():
                    future.set_result(message)
            case GroupUp():
                self._group_up(message)
            case GroupDown():
                self._group_down(message)
            case _:
                assert_never(message)

    def _finished(self, message: Finished) -> None:
        pending = self._pending.settle(message.name)
        if pending is None:
            return
        if pending.cancelled:
            # Rank 0 drops the handle when the cancel reaches it, so it must not be given out.
            pending.fail(ConflictError("the request was cancelled", "cancelled"))
            self._observer.request_failed("cancelled")
            return
        self._pending.remember(message.name, message.handle)
        self._observer.request_finished(message)
        pending.finish(message)

    def _failed(self, message: RequestFailed) -> None:
        pending = self._pending.settle(message.name)
        if pending is None:
            return
        if message.code == "internal":
            log.error("request %s failed: %s", message.name, message.message)
        self._observer.request_failed(message.code)
        pending.fail(from_request_failed(message.code, message.message, self._retry_after_s))

    def _group_up(self, message: GroupUp) -> None:
        before = self.group.epoch
        if not self.group.take_up(message):
            return
        if message.epoch != before:
            self._end_epoch(f"epoch {before} has ended")
        if self._push is None:
            self._push = self._context.socket(zmq.PUSH)
            self._push.setsockopt(zmq.SNDHWM, 0)
            self._push.connect(message.submit_address)

    def _group_down(self, message: GroupDown) -> None:
        if self.group.take_down(message):
            self._end_epoch(message.reason)

    def _end_epoch(self, reason: str) -> None:
        for _ in range(len(self._pending)):
            self._observer.request_failed("group_down")
        if self._push is not None:
            self._push.close(linger=0)
            self._push = None
        self.fail_all(self.group.ended(reason))
