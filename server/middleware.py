"""Around every route, as plain ASGI: who may come in, what is counted, and no error without a body of ours."""

from __future__ import annotations

import hmac
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, ClientGoneError, InternalError, UnauthorizedError
from .metrics import Metrics

log = logging.getLogger(__name__)

_OPEN = ("/health", "/ready", "/metrics")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Gate:
    """The outermost layer. Checks the key before anything of the body is read; only liveness and metrics are
    open to everybody."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._api_key = api_key.encode() if api_key is not None else None
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_key(scope)
            await self._app(scope, receive, watched)
        except ClientGoneError:
            status = status or 499
        except ApiError as error:
            await error.response()(scope, receive, watched)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"][:200])
            if status:
                raise
            await InternalError().response()(scope, receive, watched)
        finally:
            self._count(scope, status, time.monotonic() - began)

    def _check_key(self, scope: Scope) -> None:
        if self._api_key is None or scope["path"] in _OPEN:
            return
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = sent.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._api_key):
            message = "a valid key is needed: Authorization: Bearer KEY"
            raise UnauthorizedError(message, headers={"WWW-Authenticate": "Bearer"})

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = scope.get("route")
        handler = getattr(route, "path", "none")
        self._metrics.http_requests.labels(method, handler, str(status)).inc()
        self._metrics.http_seconds.labels(method, handler).observe(seconds)
