"""What a decode side does with a handle."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from ..engine.messages import Manifest
from . import handles
from .body import body_docs, parse_body
from .context import context_of
from .responses import HandleAnswer
from .schemas import RenewRequest

router = APIRouter(prefix="/v1/kv", tags=["handles"])

Handle = Annotated[str, Path(description="from the answer of a prefill")]
_MANIFEST_SCHEMA = {"application/json": {"schema": {"$ref": "#/components/schemas/Manifest"}}}


@router.get("/{handle}", responses={200: {"content": _MANIFEST_SCHEMA}}, response_class=Response)
async def manifest(request: Request, handle: Handle) -> Response:
    """Where and what to pull, stage by stage."""
    found: Manifest = await handles.manifest(context_of(request).client, handle)
    return Response(msgspec.json.encode(found), media_type="application/json")


@router.post("/{handle}/renew", openapi_extra=body_docs(RenewRequest))
async def renew(request: Request, handle: Handle) -> HandleAnswer:
    """Makes the handle live `ttl_s` seconds from now at least; answers how long it really has. A life that was to last
    longer is not shortened."""
    context = context_of(request)
    body = await parse_body(request, context.config, RenewRequest, empty_is_default=True)
    life = await handles.renew(context.client, handle, context.handle_life(body.ttl_s))
    return HandleAnswer(handle=handle, status="renewed", ttl_s=life)


@router.delete("/{handle}")
async def release(request: Request, handle: Handle) -> HandleAnswer:
    """Ends the handle: its memory is free once no pull is running."""
    await handles.release(context_of(request).client, handle)
    return HandleAnswer(handle=handle, status="released")
