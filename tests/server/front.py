"""What the tests of the front end share."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from wavepp.server.context import Context
from wavepp.server.engine_client import EngineClient
from wavepp.server.front_end import HttpServer, listen
from wavepp.server.tokenizer import TokenizerService

from .fake_engine import TIMEOUT_S, FakeEngine

CONTEXT = 256
"""The model's longest prompt."""
VOCAB = 400
DEFAULT_TTL_S = 90.0
MAX_TTL_S = 200_000.0
"""Longer than a day: no limit but the configured one may stand in its way."""


@dataclass(frozen=True)
class Front:
    """`http` speaks to the app, `engine` is what the app speaks to."""

    app: FastAPI
    http: httpx.AsyncClient
    engine: FakeEngine
    client: EngineClient
    tokenizer: TokenizerService

    @property
    def context(self) -> Context:
        return self.app.state.context

    async def prefill(self, prompt: Any = "hello world", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/prefill", json={"prompt": prompt, **fields})

    async def until(self, true: Callable[[], bool]) -> None:
        """Returns once the other tasks have made it true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not true():
                await asyncio.sleep(0.001)


OpenFront = Callable[..., AbstractAsyncContextManager[Front]]
"""`async with open_front(**config) as front`; `up=False` leaves the group unformed, `real=True` serves the app over
TCP, where clients can hang up."""


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The URL of the app on a free port."""
    server = HttpServer(uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, ws="none"))
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        await task


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Lets a coroutine be a test."""

    @functools.wraps(test)
    def wrapper(*args: Any, **fixtures: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(3 * TIMEOUT_S):
                await test(*args, **fixtures)

        asyncio.run(limited())

    return wrapper


def error_of(response: httpx.Response, status: int) -> dict[str, str]:
    """The error that the answer carries, in its one and only shape."""
    assert response.status_code == status, response.text
    body = json.loads(response.content)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "code"}
    assert all(isinstance(value, str) and value for value in body["error"].values())
    return body["error"]


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of each server-sent event; comments are left out."""
    events = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            name, data = block.split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events
