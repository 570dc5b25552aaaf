"""`POST /v1/prefill` and its cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .body import body_docs, parse_body
from .context import Context, context_of
from .errors import GoneError, NotFoundError
from .prefill import Prefill
from .responses import BatchAnswer, CancelAnswer, PrefillAnswer
from .schemas import PrefillRequest

router = APIRouter(prefix="/v1/prefill", tags=["prefill"])


class _EventStream(StreamingResponse):
    """Closes its prefill however the stream ends: a generator that was never begun runs no `finally`."""

    def __init__(self, events: AsyncIterator[bytes], prefill: Prefill) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._prefill = prefill

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._prefill.close()


@router.post("", openapi_extra=body_docs(PrefillRequest), response_model=PrefillAnswer | BatchAnswer)
async def prefill(request: Request) -> Response:
    """Computes the state of a prompt and its first token; answers with the handle under which the state is
    pulled. A list of prompts is a batch with one result each. Hanging up cancels."""
    context = context_of(request)
    body = await parse_body(request, context.config, PrefillRequest)
    work = Prefill(context, body)
    streaming = False
    try:
        work.open()
        if body.stream:
            events = work.events()
            await anext(events)
            streaming = True
            return _EventStream(events, work)
        await work.submit()
        answer = await work.wait(request)
        return Response(answer.model_dump_json(), media_type="application/json")
    finally:
        if not streaming:
            work.close()


@router.delete("/{request_id}")
async def cancel(request: Request, request_id: str) -> CancelAnswer:
    """Ends a request, or every prompt of a batch: waiting, running, or finished but not yet pulled."""
    context = context_of(request)
    members = context.batches.get(request_id)
    if members is None:
        return CancelAnswer(id=request_id, status=await context.client.cancel(request_id))
    outcomes = await asyncio.gather(*(_cancel_member(context, name) for name in members))
    if "cancelling" in outcomes:
        return CancelAnswer(id=request_id, status="cancelling")
    return CancelAnswer(id=request_id, status="cancelled" if "cancelled" in outcomes else "released")


async def _cancel_member(context: Context, name: str) -> Literal["cancelled", "released", "cancelling"]:
    try:
        return await context.client.cancel(name)
    except (NotFoundError, GoneError):
        return "released"
