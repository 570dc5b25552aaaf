"""Takes a checked prefill request through tokenizing, submission and waiting to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request

from ..engine.messages import Finished, Progress, Submit
from . import handles
from .context import Context
from .errors import ApiError, BadRequestError, ClientGoneError, ConflictError, TimedOutError
from .pending import Outcome, Pending
from .responses import (
    BatchAnswer,
    BatchItem,
    BatchItemFailed,
    FirstTokenAnswer,
    PrefillAnswer,
    ProgressEvent,
    ReuseAnswer,
    TimingAnswer,
    TokenLogprob,
    Usage,
)
from .schemas import PrefillRequest
from .tokenizer import TokenArray

log = logging.getLogger(__name__)

_REFUSAL_WAIT_S = 0.25
"""A stream's head waits this long for its first event, so that a prompt refusal keeps its own status code."""
_KEEPALIVE_S = 15.0


class Prefill:
    """One HTTP request's prompts: one, or a batch. Holds its places in the in-flight count from `open` to `close`,
    and closing abandons whatever is not over. Owned by the task that serves the request."""

    def __init__(self, context: Context, body: PrefillRequest) -> None:
        self._context = context
        self._body = body
        self._arrived = time.monotonic()
        prompt = body.prompt
        self.is_batch = isinstance(prompt, list) and isinstance(prompt[0], str | list)
        self._prompts: list[Any] = prompt if self.is_batch else [prompt]
        self.id = body.request_id or f"pf-{uuid.uuid4().hex}"
        self.names = [f"{self.id}-{i}" for i in range(len(self._prompts))] if self.is_batch else [self.id]
        self._pending: list[Pending] = []
        self._entered = False

    def open(self) -> None:
        """Checks what can be checked at once. Errors: `NotFoundError`, `BadRequestError`, `TooManyError`,
        `UnavailableError`."""
        self._context.check_model(self._body.model)
        self._ttl_s = self._context.handle_life(self._body.ttl_s)
        if any(not 0 <= token < self._context.tokenizer.vocab_size for token in self._body.sampling.logit_bias):
            raise BadRequestError(
                f"sampling.logit_bias: token ids lie within 0 to {self._context.tokenizer.vocab_size - 1}",
                "token_out_of_range",
            )
        self._context.in_flight.enter(len(self.names))
        self._entered = True
        self._context.client.group.require_up()

    def close(self) -> None:
        for pending in self._pending:
            self._context.client.abandon(pending)
        if self._context.batches.get(self.id) is self.names:
            del self._context.batches[self.id]
        if self._entered:
            self._entered = False
            self._context.in_flight.leave(len(self.names))

    async def submit(self, sink: Callable[[int, Outcome], None] | None = None) -> None:
        """Tokenizes every prompt, then sends all of them off, or none. Errors: `BadRequestError`, `ConflictError`,
        `UnavailableError`."""
        tokens = await self._tokenize()
        self._refuse_what_would_wait_for_itself(tokens)
        client = self._context.client
        for name in self.names:
            await client.check_free(name)
        taken = self._context.batches
        if any(client.has(name) or name in taken for name in (self.id, *self.names)):
            raise ConflictError(f"a request with the id {self.id} is in flight", "duplicate")
        if self.is_batch:
            taken[self.id] = self.names
        for index, (name, ids) in enumerate(zip(self.names, tokens, strict=True)):
            message = Submit(
                name=name,
                tokens=ids.astype("<i4").tobytes(),
                sampling=self._body.sampling.for_engine(),
                salt=self._body.cache_salt or "",
                ttl_s=self._ttl_s,
                priority=self._body.priority,
                deadline_s=self._time_left(),
            )
            self._pending.append(client.submit(message, self._listener(index, sink)))

    async def wait(self, request: Request) -> PrefillAnswer | BatchAnswer:
        """Errors: the only prompt's own, or the first of a batch in which all failed; `TimedOutError`;
        `ClientGoneError`."""
        results = asyncio.gather(*(pending.result for pending in self._pending), return_exceptions=True)
        results.add_done_callback(lambda gathered: gathered.cancelled() or gathered.exception())
        hung_up = asyncio.create_task(_disconnected(request), name="disconnect watch")
        try:
            limit = self._context.config.request_timeout_s
            await asyncio.wait({results, hung_up}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if hung_up.done():
                await self._release_finished()
                raise ClientGoneError
            if not results.done():
                await self._release_finished()
                raise self._timed_out()
            return self._answer(await self._renewed(results.result()))
        finally:
            results.cancel()
            hung_up.cancel()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events until every prompt is over. The first item is empty: it comes when the head may
        leave. Errors before that: those of `submit`, and a single prompt's prompt refusal."""
        queue: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()
        await self.submit(lambda index, outcome: queue.put_nowait((index, outcome)))
        deadline = self._arrived + self._context.config.request_timeout_s
        left = len(self.names)
        first = b""
        with contextlib.suppress(TimeoutError):
            index, outcome = await asyncio.wait_for(queue.get(), _REFUSAL_WAIT_S)
            if isinstance(outcome, ApiError) and not self.is_batch:
                raise outcome
            left -= not isinstance(outcome, Progress)
            first = self._event(index, outcome)
        yield b""
        if first:
            yield first
        while left:
            patience = min(_KEEPALIVE_S, deadline - time.monotonic())
            if patience <= 0:
                yield _event("error", self._timed_out().body() | {"id": self.id})
                return
            try:
                index, outcome = await asyncio.wait_for(queue.get(), patience)
            except TimeoutError:
                yield b": waiting\n\n"
                continue
            left -= not isinstance(outcome, Progress)
            yield self._event(index, outcome)

    def _event(self, index: int, outcome: Outcome) -> bytes:
        name = self.names[index]
        if isinstance(outcome, Progress):
            event = ProgressEvent(
                id=name, index=index, phase=outcome.phase, computed=outcome.computed, total=outcome.total
            )
            return _event("progress", event.model_dump())
        if isinstance(outcome, Finished):
            return _event("finished", self._item(index, outcome).model_dump())
        return _event("error", outcome.body() | {"id": name, "index": index})

    async def _tokenize(self) -> list[TokenArray]:
        tokenizer, limit = self._context.tokenizer, self._context.prompt_limit()
        if self._body.messages is not None:
            messages = [message.model_dump(exclude_unset=True) for message in self._body.messages]
            return [await tokenizer.chat(messages, limit)]
        if not self.is_batch:
            return [await tokenizer.prompt(self._prompts[0], limit)]
        return [await tokenizer.prompt(prompt, limit, f"prompt[{i}]") for i, prompt in enumerate(self._prompts)]

    def _time_left(self) -> float | None:
        """To the deadline, of which tokenizing may have taken its part."""
        deadline_s = self._body.deadline_s
        return None if deadline_s is None else self._arrived + deadline_s - time.monotonic()

    def _refuse_what_would_wait_for_itself(self, tokens: list[TokenArray]) -> None:
        """The handles of a batch are given out together, so all must fit the caches at once. Errors:
        `BadRequestError`."""
        up = self._context.client.group.require_up()
        if not self.is_batch or self._body.stream:
            return
        # A block that is cached and computed again is held twice, and admission may want half of the slots for one.
        needed = 2 * sum(-(-len(ids) // up.block_size) * up.block_size for ids in tokens)
        slots = min((stage.num_slots for stage in up.stages if stage.num_slots), default=2 * len(tokens))
        too_much = ""
        if 2 * len(tokens) > slots:
            too_much = f"has {len(tokens)} prompts, the stages hold the recurrent states of {slots // 2} at once"
        elif len(tokens) > 1 and needed > up.max_prompt_tokens:
            too_much = f"may take {needed} tokens of cache at once, the stages hold {up.max_prompt_tokens}"
        if too_much:
            remedy = "send fewer prompts, or stream: true, which hands out each handle as it comes"
            raise BadRequestError(f"prompt: the batch {too_much}: {remedy}", "too_long")

    async def _renewed(self, results: list[Finished | BaseException]) -> list[Finished | BaseException]:
        """A batch's first handles have aged while the last were computed: their lives begin anew."""
        if not self.is_batch:
            return results
        renewed: list[Finished | BaseException] = []
        for result in results:
            try:
                if isinstance(result, Finished):
                    await handles.renew(self._context.client, result.handle, self._ttl_s)
                renewed.append(result)
            except ApiError as error:
                renewed.append(error)
        return renewed

    def _answer(self, results: list[Finished | BaseException]) -> PrefillAnswer | BatchAnswer:
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == len(results):
            raise errors[0]
        if not self.is_batch:
            item = self._item(0, _finished(results[0]))
            return PrefillAnswer(**{name: getattr(item, name) for name in PrefillAnswer.model_fields})
        items: list[BatchItem | BatchItemFailed] = []
        for index, result in enumerate(results):
            if isinstance(result, ApiError):
                items.append(BatchItemFailed(index=index, id=self.names[index], **result.body()))
            else:
                items.append(self._item(index, _finished(result)))
        good = [item.usage for item in items if isinstance(item, BatchItem)]
        usage = Usage(
            prompt_tokens=sum(one.prompt_tokens for one in good), cached_tokens=sum(one.cached_tokens for one in good)
        )
        return BatchAnswer(id=self.id, model=self._context.model_name, results=items, usage=usage)

    def _item(self, index: int, done: Finished) -> BatchItem:
        text = self._context.tokenizer.token_text
        return BatchItem(
            index=index,
            id=done.name,
            model=self._context.model_name,
            handle=done.handle,
            first_token=FirstTokenAnswer(
                id=done.token,
                text=text(done.token),
                logprob=done.logprob,
                top=[TokenLogprob(id=token, text=text(token), logprob=logprob) for token, logprob in done.top],
            ),
            usage=_usage(done),
            timing=TimingAnswer(
                queue_s=done.timing.queue_s,
                admit_s=done.timing.admit_s,
                prefill_s=done.timing.prefill_s,
                deadline_met=done.timing.deadline_met,
            ),
        )

    async def _release_finished(self) -> None:
        """Nobody will ever learn these handles, so their memory need not wait for them to expire."""
        for pending in self._pending:
            if pending.result.done() and not pending.result.cancelled() and pending.result.exception() is None:
                with contextlib.suppress(ApiError):
                    await handles.release(self._context.client, pending.result.result().handle)

    def _listener(self, index: int, sink: Callable[[int, Outcome], None] | None) -> Callable[[Outcome], None]:
        def hear(outcome: Outcome) -> None:
            if isinstance(outcome, Finished):
                self._context.metrics.first_token_after(time.monotonic() - self._arrived)
                _log_finished(outcome, self._context.client.group.epoch)
            if sink is not None:
                sink(index, outcome)

        return hear

    def _timed_out(self) -> TimedOutError:
        limit = self._context.config.request_timeout_s
        return TimedOutError(f"the prefill was not done within {limit:g} s and has been cancelled")


def _finished(result: Finished | BaseException) -> Finished:
    if isinstance(result, BaseException):
        raise result
    return result


def _usage(done: Finished) -> Usage:
    reuse = done.reuse
    limited_by = reuse.limited_by or None
    return Usage(
        prompt_tokens=done.prompt_tokens,
        cached_tokens=done.cached_tokens,
        cached_tokens_limited_by=limited_by,
        reuse=ReuseAnswer(
            hinted_tokens=reuse.hinted,
            leased_tokens=reuse.leased,
            cached_tokens=reuse.endpoint,
            limited_by=limited_by,
            held_s=reuse.held_s,
        ),
    )


def _log_finished(done: Finished, epoch: int) -> None:
    """One line a request, in a form that tools may rely on: `key=value`, always these, in this order."""
    reuse, timing = done.reuse, done.timing
    log.info(
        "finished id=%s epoch=%d prompt_tokens=%d hinted_tokens=%d leased_tokens=%d cached_tokens=%d "
        'limited_by="%s" held_s=%.6f queue_s=%.6f admit_s=%.6f prefill_s=%.6f',
        done.name,
        epoch,
        done.prompt_tokens,
        reuse.hinted,
        reuse.leased,
        done.cached_tokens,
        reuse.limited_by,
        reuse.held_s,
        timing.queue_s,
        timing.admit_s,
        timing.prefill_s,
    )


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
