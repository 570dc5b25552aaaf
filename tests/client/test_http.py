"""The HTTP client asks as the interface says, and hands on what the server answers, errors included."""

import json
from collections.abc import Callable

import httpx
import msgspec
import pytest
from wavepp.client.errors import ClientError, ServerError, UnreachableError
from wavepp.client.http import PrefillClient, Prompt, Reuse, Usage
from wavepp.engine.messages import Manifest, StageManifest

MANIFEST = Manifest("h/1", 3, "m", 10, 4, 7, 60.0, (StageManifest(0, "tcp://a:1", ("x",)),))
ANSWER = {
    "id": "r",
    "model": "m",
    "handle": "h/1",
    "first_token": {"id": 7, "text": " a", "logprob": -0.5, "top": []},
    "usage": {
        "prompt_tokens": 10,
        "cached_tokens": 8,
        "cached_tokens_limited_by": "rank 1: recurrent",
        "reuse": {
            "hinted_tokens": 9,
            "leased_tokens": 8,
            "cached_tokens": 8,
            "limited_by": "rank 1: recurrent",
            "held_s": 0.5,
        },
    },
    "timing": {"queue_s": 0.1, "admit_s": 0.2, "prefill_s": 0.3},
}


class Recorder:
    """Answers every call alike, and remembers the calls."""

    def __init__(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self.calls: list[httpx.Request] = []
        self._answer: Callable[[], httpx.Response] = lambda: httpx.Response(status, json=body, headers=headers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(request)
        return self._answer()

    @property
    def last(self) -> tuple[str, str, object]:
        request = self.calls[-1]
        body = json.loads(request.content) if request.content else None
        return request.method, request.url.raw_path.decode(), body


def _client(handler: Callable[[httpx.Request], httpx.Response], api_key: str | None = None) -> PrefillClient:
    return PrefillClient("http://server", api_key, transport=httpx.MockTransport(handler))


def test_a_prefill_is_asked_for_and_understood() -> None:
    server = Recorder(200, ANSWER)
    with _client(server, "secret") as client:
        result = client.prefill("hello", sampling={"temperature": 0.5}, ttl_s=9, cache_salt="s")
    assert server.last == (
        "POST",
        "/v1/prefill",
        {"prompt": "hello", "sampling": {"temperature": 0.5}, "ttl_s": 9, "cache_salt": "s"},
    )
    assert server.calls[0].headers["Authorization"] == "Bearer secret"
    assert (result.handle, result.first_token.id, result.first_token.text) == ("h/1", 7, " a")
    assert (result.usage.prompt_tokens, result.usage.cached_tokens) == (10, 8)
    assert result.usage.cached_tokens_limited_by == "rank 1: recurrent"
    assert result.usage.reuse == Reuse(9, 8, 8, "rank 1: recurrent", 0.5)
    assert result.timing.prefill_s == 0.3


@pytest.mark.parametrize(
    ("usage", "reasons"),
    [
        (Usage(10), []),
        (Usage(10, 8, None, Reuse(8, 8, 8)), []),
        (Usage(10, 8, "rank 1: recurrent"), ["limited by rank 1: recurrent"]),
        (
            Usage(10, 8, "rank 1: recurrent", Reuse(9, 8, 8, "rank 1: recurrent", 0.5)),
            [
                "limited by rank 1: recurrent",
                "the hints had promised 9",
                "waited 0.500 s for another request to compute them",
            ],
        ),
    ],
)
def test_the_usage_says_in_words_why_no_more_was_reused(usage: Usage, reasons: list[str]) -> None:
    assert usage.reasons == reasons


@pytest.mark.parametrize(
    ("prompt", "body"),
    [
        ("text", {"prompt": "text"}),
        ([1, 2], {"prompt": [1, 2]}),
        (Prompt(text=""), {"prompt": ""}),
        (Prompt(messages=[{"role": "user", "content": "hi"}]), {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_every_kind_of_prompt_is_sent_as_it_is(prompt: Prompt | str | list[int], body: object) -> None:
    server = Recorder(200, ANSWER)
    _client(server).prefill(prompt)
    assert server.last == ("POST", "/v1/prefill", body)
    assert "Authorization" not in server.calls[0].headers


@pytest.mark.parametrize("parts", [{}, {"text": "a", "tokens": [1]}])
def test_a_prompt_is_one_thing(parts: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Prompt(**parts)  # pyright: ignore[reportArgumentType]


def test_handles_are_looked_up_renewed_and_released() -> None:
    server = Recorder(200, msgspec.to_builtins(MANIFEST))
    client = _client(server)
    assert client.manifest("h/1") == MANIFEST
    assert server.last == ("GET", "/v1/kv/h%2F1", None)
    client.renew("h/1", 30)
    assert server.last == ("POST", "/v1/kv/h%2F1/renew", {"ttl_s": 30})
    client.release("h/1")
    assert server.last == ("DELETE", "/v1/kv/h%2F1", None)
    client.cancel("r")
    assert server.last == ("DELETE", "/v1/prefill/r", None)


def test_an_error_carries_the_servers_own_words() -> None:
    body = {"error": {"message": "the queue is full", "type": "overloaded_error", "code": "queue_full"}}
    with pytest.raises(ServerError, match="429 queue_full: the queue is full") as raised:
        _client(Recorder(429, body, {"Retry-After": "3"})).prefill("x")
    error = raised.value
    assert (error.status, error.code, error.message, error.retry_after_s) == (429, "queue_full", "the queue is full", 3)


@pytest.mark.parametrize("body", [{}, {"error": "no"}, [], "plain"])
def test_an_error_of_unknown_form_is_still_an_error(body: object) -> None:
    with pytest.raises(ServerError) as raised:
        _client(Recorder(502, body)).manifest("h")
    assert raised.value.status == 502
    assert raised.value.message


def test_an_answer_of_another_form_is_named() -> None:
    with pytest.raises(ClientError, match="not a Manifest"):
        _client(Recorder(200, {"handle": "h"})).manifest("h")
    with pytest.raises(ClientError, match="JSON"):
        _client(lambda _: httpx.Response(200, text="<html>")).manifest("h")


def test_a_server_that_is_not_there_is_named() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    def stall(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too slow", request=request)

    with pytest.raises(UnreachableError, match="http://server cannot be reached: connection refused"):
        _client(refuse).prefill("x")
    with pytest.raises(UnreachableError, match="did not answer in time"):
        _client(stall).prefill("x")
