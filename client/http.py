"""The HTTP side of a decode worker: asks for a prefill, and manages its handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from ..engine.messages import Manifest
from .errors import ClientError, ServerError, UnreachableError

Message = Mapping[str, Any]

T = TypeVar("T")


class FirstToken(msgspec.Struct, frozen=True):
    id: int
    text: str = ""
    logprob: float | None = None


class Reuse(msgspec.Struct, frozen=True):
    """Tokens that the hints promised, that all stages then had, and that were reused; `limited_by` is `rank N: window`,
    and `held_s` seconds of waiting for another request to compute the same prefix."""

    hinted_tokens: int = 0
    leased_tokens: int = 0
    cached_tokens: int = 0
    limited_by: str | None = None
    held_s: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """`reuse` is None where the server does not tell."""

    prompt_tokens: int
    cached_tokens: int = 0
    cached_tokens_limited_by: str | None = None
    reuse: Reuse | None = None

    @property
    def reasons(self) -> list[str]:
        """In words: why no more was reused, and what was waited for, as far as there is something to say."""
        reasons = [f"limited by {self.cached_tokens_limited_by}"] if self.cached_tokens_limited_by else []
        if self.reuse is not None:
            if self.reuse.hinted_tokens > self.cached_tokens:
                reasons.append(f"the hints had promised {self.reuse.hinted_tokens}")
            if self.reuse.held_s:
                reasons.append(f"waited {self.reuse.held_s:.3f} s for another request to compute them")
        return reasons


class PrefillTiming(msgspec.Struct, frozen=True):
    """Seconds."""

    queue_s: float = 0.0
    admit_s: float = 0.0
    prefill_s: float = 0.0


class PrefillResult(msgspec.Struct, frozen=True):
    id: str
    model: str
    handle: str
    first_token: FirstToken
    usage: Usage
    timing: PrefillTiming = PrefillTiming()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to prefill: exactly one of a text, token ids, or chat messages."""

    text: str | None = None
    tokens: Sequence[int] | None = None
    messages: Sequence[Message] | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.text, self.tokens, self.messages)) != 1:
            raise ValueError("a prompt is exactly one of text, tokens and messages")

    def body(self) -> dict[str, Any]:
        if self.messages is not None:
            return {"messages": [dict(message) for message in self.messages]}
        return {"prompt": self.text if self.tokens is None else list(self.tokens)}


class PrefillClient:
    """Calls one prefill server. Safe to share between threads (httpx's client is). Every call may raise
    `ServerError`, which carries the server's own message, or `UnreachableError`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0))
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=timeout, transport=transport)

    def prefill(
        self,
        prompt: Prompt | str | Sequence[int],
        *,
        model: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        request_id: str | None = None,
        ttl_s: float | None = None,
    ) -> PrefillResult:
        """Computes the state of a prompt and its first token. `sampling` has the fields of the HTTP interface."""
        optional = {
            "model": model,
            "sampling": dict(sampling) if sampling else None,
            "cache_salt": cache_salt,
            "request_id": request_id,
            "ttl_s": ttl_s,
        }
        body = as_prompt(prompt).body() | {name: value for name, value in optional.items() if value is not None}
        return _convert(self._call("POST", "/v1/prefill", body), PrefillResult)

    def cancel(self, request_id: str) -> None:
        self._call("DELETE", f"/v1/prefill/{quote(request_id, safe='')}")

    def manifest(self, handle: str) -> Manifest:
        """Where the state is. 404 for an unknown handle, 410 for one that has expired."""
        return _convert(self._call("GET", _kv(handle)), Manifest)

    def renew(self, handle: str, ttl_s: float) -> None:
        """The handle lives for `ttl_s` seconds from now at least."""
        self._call("POST", _kv(handle) + "/renew", {"ttl_s": ttl_s})

    def release(self, handle: str) -> None:
        """The state is no longer wanted."""
        self._call("DELETE", _kv(handle))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise UnreachableError(f"{self._http.base_url} did not answer in time ({method} {path})") from error
        except httpx.TransportError as error:
            raise UnreachableError(f"{self._http.base_url} cannot be reached: {error}") from error
        if response.is_error:
            raise _server_error(response)
        if not response.content:
            return {}
        try:
            reply = response.json()
        except ValueError as error:
            raise ClientError(f"{method} {path} was not answered in JSON: is this a prefill server?") from error
        return reply if isinstance(reply, dict) else {"data": reply}


def as_prompt(prompt: Prompt | str | Sequence[int]) -> Prompt:
    if isinstance(prompt, Prompt):
        return prompt
    return Prompt(text=prompt) if isinstance(prompt, str) else Prompt(tokens=prompt)


def _kv(handle: str) -> str:
    return f"/v1/kv/{quote(handle, safe='')}"


def _convert(reply: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise ClientError(f"the server's answer is not a {kind.__name__}: {error}") from error


def _server_error(response: httpx.Response) -> ServerError:
    retry_after = response.headers.get("Retry-After", "")
    retry_after_s = float(retry_after) if retry_after.replace(".", "", 1).isdigit() else None
    try:
        error = response.json()["error"]
        code, message = str(error.get("code") or error.get("type") or ""), str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = "", response.text[:500] or response.reason_phrase
    return ServerError(response.status_code, code, message, retry_after_s)
