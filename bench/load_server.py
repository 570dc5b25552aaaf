"""A prefill server as the load generator sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from ..client.http import PrefillResult

T = TypeVar("T")
_JSON = {"Content-Type": "application/json"}


class LoadError(RuntimeError):
    """There can be no load on this server, or not this one."""


class State(msgspec.Struct, frozen=True):
    """What is used of `GET /v1/state`."""

    block_size: int | None = None
    vocab_size: int | None = None
    fresh: bool = False
    epoch: int = 0
    waves_done: int = 0
    stage_seconds: tuple[float, ...] = ()
    """Seconds for which waves have kept the stage so far, by rank."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: `began` and `ended` on `time.perf_counter`'s clock, from its sending to its whole answer. `error` is
    what kind of failure it was, empty when it went well."""

    began: float
    ended: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class _Model(msgspec.Struct):
    max_model_len: int


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


class _Error(msgspec.Struct):
    code: str | None = None
    type: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class LoadServer:
    """Owned by one event loop. Bodies are sent as they are given, so that nothing is encoded while time runs."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0), pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, transport=transport
        )
        self._decoder = msgspec.json.Decoder(PrefillResult)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def state(self) -> State:
        """Raises `LoadError`."""
        return await self._get("/v1/state", State)

    async def longest_prompt(self) -> int:
        """In tokens. Raises `LoadError`."""
        return min(model.max_model_len for model in (await self._get("/v1/models", _Models)).data)

    async def _get(self, path: str, kind: type[T]) -> T:
        try:
            response = await self._http.get(path)
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=kind)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LoadError(f"{self._http.base_url} cannot be asked for {path}: {error or repr(error)}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise LoadError(f"{self._http.base_url}{path} is not a prefill server's: {error}") from error

    async def prefill(self, body: bytes) -> tuple[Answer, str]:
        """How it went, and the handle, empty if there is none."""
        began = time.perf_counter()
        try:
            response = await self._http.post("/v1/prefill", content=body, headers=_JSON)
        except httpx.TimeoutException:
            return Answer(began, time.perf_counter(), error="timeout"), ""
        except httpx.TransportError as error:
            return Answer(began, time.perf_counter(), error=f"unreachable ({type(error).__name__})"), ""
        ended = time.perf_counter()
        if response.is_error:
            return Answer(began, ended, error=_kind_of(response)), ""
        try:
            result = self._decoder.decode(response.content)
        except msgspec.DecodeError:
            return Answer(began, ended, error="answer not understood"), ""
        return Answer(began, ended, result.usage.prompt_tokens, result.usage.cached_tokens), result.handle

    async def release(self, handle: str) -> bool:
        """Whether the server has taken the handle back."""
        try:
            response = await self._http.delete(f"/v1/kv/{quote(handle, safe='')}")
        except httpx.TransportError:
            return False
        return response.is_success


def _kind_of(response: httpx.Response) -> str:
    try:
        error = msgspec.json.decode(response.content, type=_ErrorBody).error
        return error.code or error.type or str(response.status_code)
    except msgspec.DecodeError:
        return str(response.status_code)
