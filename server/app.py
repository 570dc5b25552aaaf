"""The HTTP application."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..engine.messages import Manifest
from . import routes_kv, routes_prefill, routes_status, routes_text
from .config import ServerConfig
from .context import Context
from .engine_client import EngineClient
from .errors import ApiError, BadRequestError, describe_location, from_http_exception
from .in_flight import InFlight
from .metrics import Metrics
from .middleware import Gate
from .responses import ErrorAnswer
from .schemas import DetokenizeRequest, PrefillRequest, RenewRequest, TokenizeRequest
from .tokenizer import TokenizerService

_COMPONENTS = "#/components/schemas/{model}"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "What the client got wrong"},
    "5XX": {"model": ErrorAnswer, "description": "The stage group is down, or slow; or an error of ours"},
}


def create_app(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: TokenizerService,
    *,
    model_name: str,
    version: str,
    metrics: Metrics,
    default_ttl_s: float,
    max_ttl_s: float,
) -> FastAPI:
    """The app over parts that the caller has started and will close. `app.state.context.in_flight` is what a
    shutdown drains."""
    in_flight = InFlight(config.max_in_flight, config.retry_after_s)
    app = FastAPI(title="WavePP", version=version, redirect_slashes=False, responses=_ERRORS)
    app.state.context = Context(
        config, model_name, version, client, tokenizer, metrics, in_flight, default_ttl_s, max_ttl_s
    )
    metrics.watch(client)
    for routes in (routes_prefill, routes_kv, routes_text, routes_status):
        app.include_router(routes.router)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _parameters)
    app.add_middleware(Gate, api_key=config.api_key, metrics=metrics)
    app.openapi = lambda: _openapi(app)
    return app


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return from_http_exception(error, request).response()


async def _parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return BadRequestError(f"{describe_location(first['loc'])}: {first['msg']}").response()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Routes read their bodies themselves, so the schemas of those are added here."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes, tags=app.openapi_tags)
        bodies = [(model, "validation") for model in (PrefillRequest, RenewRequest, TokenizeRequest, DetokenizeRequest)]
        _, definitions = models_json_schema(bodies, ref_template=_COMPONENTS)  # pyright: ignore[reportArgumentType]
        _, manifest = msgspec.json.schema_components((Manifest,), ref_template="#/components/schemas/{name}")
        document["components"]["schemas"].update(definitions["$defs"] | manifest)
        app.openapi_schema = document
    return app.openapi_schema
