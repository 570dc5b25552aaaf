"""Reads a request's body within its limits and checks it against a schema."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from .config import ServerConfig
from .errors import (
    BadRequestError,
    BodyTimedOutError,
    ClientGoneError,
    TooLargeError,
    UnsupportedMediaTypeError,
    from_validation,
)

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """The whole body. Errors: `TooLargeError` (before the rest has arrived), `BodyTimedOutError`, `ClientGoneError`."""
    limit = config.max_body_bytes
    too_large = TooLargeError(f"the body is larger than {limit} bytes", headers={"Connection": "close"})
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large
                chunks.append(chunk)
    except TimeoutError:
        message = f"the body did not arrive within {config.body_timeout_s:g} s"
        raise BodyTimedOutError(message, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(chunks)


async def parse_body(
    request: Request, config: ServerConfig, model: type[Model], *, empty_is_default: bool = False
) -> Model:
    """The body as `model`; no body at all is `{}` where `empty_is_default`. Errors: those of `read_body`, and
    `BadRequestError` that names the field."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaTypeError(f"the body must be application/json, not {kind[:100]}")
    body = await read_body(request, config)
    if not body and empty_is_default:
        return model()
    if not body:
        raise BadRequestError("the body is empty; a JSON object is expected", "invalid_json")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


def body_docs(model: type[BaseModel]) -> dict[str, object]:
    """`openapi_extra` for a route that reads its body with `parse_body`."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}
