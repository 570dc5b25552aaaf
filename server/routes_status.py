"""How the server is doing."""

from __future__ import annotations

import contextlib

import msgspec
from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from .context import Context, context_of
from .errors import ApiError
from .responses import ModelCard, ModelList, StatusAnswer, VersionAnswer

router = APIRouter(tags=["status"])

_PROBE_S = 2.0


def _status(context: Context, complaint: str, word: str) -> Response:
    answer = StatusAnswer(status=word, epoch=context.client.group.epoch, reason=complaint)
    return JSONResponse(answer.model_dump(), 503 if complaint else 200)


@router.get("/health", response_model=StatusAnswer, responses={503: {"model": StatusAnswer}})
async def health(request: Request) -> Response:
    """200 while the stage group serves and admitted work progresses."""
    context = context_of(request)
    complaint = await context.client.complaint(_PROBE_S)
    return _status(context, complaint, "unhealthy" if complaint else "ok")


@router.get("/ready", response_model=StatusAnswer, responses={503: {"model": StatusAnswer}})
async def ready(request: Request) -> Response:
    """200 while new work is taken."""
    context = context_of(request)
    group = context.client.group
    if context.in_flight.draining:
        return _status(context, "the server is shutting down", "draining")
    return _status(
        context, "" if group.status == "up" else group.reason, "ready" if group.status == "up" else "waiting"
    )


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus metrics; the stage group's are as fresh as it could make them in a short time."""
    context = context_of(request)
    with contextlib.suppress(ApiError):
        await context.client.state(context.config.scrape_timeout_s)
    page, content_type = context.metrics.render(request.headers.get("accept", ""))
    return Response(page, headers={"Content-Type": content_type})


@router.get("/v1/state", response_class=Response)
async def state(request: Request) -> Response:
    """The stage group: gauges of every rank, and what the ranks are. Not `fresh`: some rank did not answer in time, and
    the gauges, if any, are the last known."""
    context = context_of(request)
    client = context.client
    fresh = True
    try:
        await client.state(context.config.call_timeout_s)
    except ApiError:
        fresh = False
    group = client.group
    body = {
        "status": group.status,
        "reason": group.reason,
        "epoch": group.epoch,
        "model": context.model_name,
        "draining": context.in_flight.draining,
        "fresh": fresh,
        "in_flight": context.in_flight.count,
        "block_size": group.up.block_size if group.up else None,
        "snapshot_interval": group.up.snapshot_interval if group.up else None,
        "max_prompt_tokens": group.up.max_prompt_tokens if group.up else None,
        "vocab_size": context.tokenizer.vocab_size,
        "stages": group.up.stages if group.up else [],
    }
    if group.last_state is not None:
        body |= msgspec.to_builtins(group.last_state)
        del body["type"]
    return Response(msgspec.json.encode(body), media_type="application/json")


@router.get("/v1/models")
async def models(request: Request) -> ModelList:
    """The one model that is served."""
    context = context_of(request)
    group = context.client.group
    longest = context.tokenizer.max_model_len
    if group.up is not None:
        longest = min(longest, group.up.max_prompt_tokens)
    return ModelList(data=[ModelCard(id=context.model_name, created=context.started_at, max_model_len=longest)])


@router.get("/version")
async def version(request: Request) -> VersionAnswer:
    return VersionAnswer(version=context_of(request).version)
