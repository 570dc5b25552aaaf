"""What a client gets wrong is a 4xx that names it, and never reaches rank 0."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wavepp.engine.messages import Submit

from .front import CONTEXT, VOCAB, Front, OpenFront, error_of, run

BAD_BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("neither prompt nor messages", {}, "prompt"),
    ("null prompt", {"prompt": None}, "prompt"),
    ("both", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "exactly one"),
    ("empty text", {"prompt": ""}, "empty"),
    ("empty ids", {"prompt": []}, "empty"),
    ("empty ids in a batch", {"prompt": [[1], []]}, "prompt[1]"),
    ("no messages", {"messages": []}, "messages"),
    ("too many tokens", {"prompt": [1] * (CONTEXT + 1)}, f"{CONTEXT + 1} tokens"),
    ("too much text", {"prompt": "hen! " * CONTEXT}, f"{CONTEXT} tokens"),
    ("id at the vocabulary's end", {"prompt": [1, VOCAB]}, f"prompt[1]: token id {VOCAB}"),
    ("negative id", {"prompt": [-1]}, "prompt[0]: token id -1"),
    ("huge id", {"prompt": [1, 10**30]}, "prompt[1]"),
    ("boolean id", {"prompt": [1, True]}, "prompt[1]"),
    ("fraction id", {"prompt": [1.5]}, "prompt"),
    ("id in text", {"prompt": ["a", 1]}, "prompt[1]"),
    ("text in ids", {"prompt": [1, "a"]}, "prompt[1]"),
    ("deep list", {"prompt": [[[1]]]}, "prompt[0][0]"),
    ("number", {"prompt": 3}, "prompt"),
    ("object", {"prompt": {"text": "a"}}, "prompt"),
    ("unknown field", {"prompt": "a", "frobnicate": 1}, "frobnicate"),
    ("grammar", {"prompt": "a", "guided_json": {}}, "guided_json is not supported"),
    ("response format", {"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ("unknown sampling field", {"prompt": "a", "sampling": {"best_of": 2}}, "sampling.best_of"),
    ("more than one token", {"prompt": "a", "max_tokens": 5}, "max_tokens"),
    ("temperature", {"prompt": "a", "sampling": {"temperature": -0.1}}, "sampling.temperature"),
    ("temperature as text", {"prompt": "a", "sampling": {"temperature": "1"}}, "sampling.temperature"),
    ("top_p zero", {"prompt": "a", "sampling": {"top_p": 0}}, "sampling.top_p"),
    ("top_k", {"prompt": "a", "sampling": {"top_k": -2}}, "sampling.top_k"),
    ("min_p", {"prompt": "a", "sampling": {"min_p": 1.1}}, "sampling.min_p"),
    ("seed", {"prompt": "a", "sampling": {"seed": 2**63}}, "sampling.seed"),
    ("logprobs", {"prompt": "a", "sampling": {"logprobs": 21}}, "sampling.logprobs"),
    ("bias id", {"prompt": "a", "sampling": {"logit_bias": {str(VOCAB): 1}}}, "logit_bias"),
    ("bias key", {"prompt": "a", "sampling": {"logit_bias": {"x": 1}}}, "logit_bias"),
    ("bias value", {"prompt": "a", "sampling": {"logit_bias": {"1": 101}}}, "logit_bias"),
    ("repetition", {"prompt": "a", "sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty"),
    ("ttl", {"prompt": "a", "ttl_s": 0}, "ttl_s"),
    ("priority", {"prompt": "a", "priority": 1001}, "priority: Input should be less than or equal to 1000 (got 1001)"),
    (
        "negative priority",
        {"prompt": "a", "priority": -1001},
        "priority: Input should be greater than or equal to -1000",
    ),
    ("fraction of a priority", {"prompt": "a", "priority": 0.5}, "priority: Input should be a valid integer"),
    ("boolean priority", {"prompt": "a", "priority": True}, "priority"),
    ("null priority", {"prompt": "a", "priority": None}, "priority"),
    ("no time at all", {"prompt": "a", "deadline_s": 0}, "deadline_s: Input should be greater than 0 (got 0)"),
    ("deadline long past", {"prompt": "a", "deadline_s": -3.5}, "deadline_s: Input should be greater than 0"),
    (
        "deadline after a day",
        {"prompt": "a", "deadline_s": 86401},
        "deadline_s: Input should be less than or equal to 86400",
    ),
    ("deadline as text", {"prompt": "a", "deadline_s": "5"}, "deadline_s"),
    ("stream as text", {"prompt": "a", "stream": "yes"}, "stream"),
    ("id with a slash", {"prompt": "a", "request_id": "a/b"}, "request_id"),
    ("empty id", {"prompt": "a", "request_id": ""}, "request_id"),
    ("empty salt", {"prompt": "a", "cache_salt": ""}, "cache_salt"),
    ("role", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ("content", {"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
    ("refused by the template", {"messages": [{"role": "tool", "content": "a"}]}, "no tools here"),
    (
        "image",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "image_url content is not supported",
    ),
    ("audio", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
    ("part without text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text"),
]


@pytest.mark.parametrize(("body", "named"), [case[1:] for case in BAD_BODIES], ids=[case[0] for case in BAD_BODIES])
@run
async def test_a_bad_request_is_a_400_that_names_what_is_wrong(open_front: OpenFront, body: dict, named: str) -> None:
    async with open_front() as front:
        error = error_of(await front.http.post("/v1/prefill", json=body), 400)
        assert named in error["message"]
        assert front.engine.all_heard(Submit) == []
        assert front.context.in_flight.count == 0


RAW_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": [NaN]}',
    b'{"prompt": "a", "ttl_s": NaN}',
    b'{"prompt": "a", "ttl_s": 1e999}',
    b'{"prompt": ' + b"[" * 100_000,
    b'{"prompt": [' + b"9" * 10_000 + b"]}",
]


@pytest.mark.parametrize("content", RAW_BODIES, ids=[repr(content[:24]) for content in RAW_BODIES])
@run
async def test_a_body_that_is_not_the_json_we_want_is_a_400(open_front: OpenFront, content: bytes) -> None:
    async with open_front() as front:
        answer = await front.http.post("/v1/prefill", content=content, headers={"content-type": "application/json"})
        error_of(answer, 400)


@run
async def test_other_media_types_are_refused(open_front: OpenFront) -> None:
    async with open_front() as front:
        answer = await front.http.post("/v1/prefill", content=b"{}", headers={"content-type": "text/plain"})
        assert error_of(answer, 415)["code"] == "unsupported_media_type"


@run
async def test_five_megabytes_of_text_are_refused_without_being_tokenized(open_front: OpenFront) -> None:
    async with open_front() as front:
        error = error_of(await front.prefill("x" * 5_000_000), 400)
        assert error["code"] == "too_long"
        assert "5000000 characters" in error["message"]


@run
async def test_a_body_over_the_limit_is_a_413_with_and_without_a_length(open_front: OpenFront) -> None:
    async with open_front(max_body_bytes=2_000) as front:
        assert error_of(await front.prefill("x" * 3_000), 413)["code"] == "body_too_large"

        async def chunks():
            for _ in range(3):
                yield b"x" * 1_000

        headers = {"content-type": "application/json"}
        assert error_of(await front.http.post("/v1/prefill", content=chunks(), headers=headers), 413)


@run
async def test_a_body_that_does_not_arrive_is_a_408(open_front: OpenFront) -> None:
    async with open_front(body_timeout_s=0.05, real=True) as front:
        reader, writer = await asyncio.open_connection(front.http.base_url.host, front.http.base_url.port)
        writer.write(b"POST /v1/prefill HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


@run
async def test_what_the_caches_cannot_hold_is_refused_with_the_limit(open_front: OpenFront) -> None:
    async with open_front(up=False) as front:
        await front.engine.up(max_prompt_tokens=100)
        await front.until(lambda: front.client.group.status == "up")
        error = error_of(await front.prefill([1] * 101), 400)
        assert (error["code"], "100" in error["message"]) == ("too_long", True)
        assert (await front.prefill([1] * 100)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/prefill/", 404),
        ("POST", "/v1/completions", 404),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/v1/prefill", 405),
        ("PUT", "/v1/kv/x", 405),
        ("DELETE", "/health", 405),
        ("DELETE", "/v1/prefill/nobody", 404),
        ("GET", "/v1/kv/nobody", 404),
        ("DELETE", "/v1/kv/nobody", 404),
        ("POST", "/v1/kv/nobody/renew", 404),
        ("GET", "/v1/kv/expired", 410),
        ("DELETE", "/v1/kv/expired", 410),
        ("GET", "/v1/kv/early", 409),
        ("GET", "/v1/kv/" + "x" * 5_000, 404),
        ("GET", "/v1/kv/%00%ff", 404),
    ],
)
@run
async def test_routes_and_handles_that_are_missing(open_front: OpenFront, method: str, path: str, status: int) -> None:
    async with open_front() as front:
        error_of(await front.http.request(method, path), status)


@run
async def test_an_unknown_model_is_a_404_that_names_the_one_served(open_front: OpenFront) -> None:
    async with open_front() as front:
        for path, body in (
            ("/v1/prefill", {"prompt": "a"}),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": [1]}),
        ):
            error = error_of(await front.http.post(path, json={**body, "model": "gpt-2"}), 404)
            assert error["code"] == "model_not_found"
            assert "gpt-2" in error["message"]
            assert "tiny" in error["message"]


@pytest.mark.parametrize(
    ("code", "status", "answered"),
    [
        ("too_long", 400, "too_long"),
        ("duplicate", 409, "duplicate"),
        ("cancelled", 409, "cancelled"),
        ("queue_full", 429, "queue_full"),
        ("internal", 500, "internal"),
        ("of a later version", 500, "internal"),
    ],
)
@run
async def test_what_rank_0_refuses(open_front: OpenFront, code: str, status: int, answered: str) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        await front.engine.fail("x", code, "secret of rank 0" if status == 500 else "as rank 0 says")
        answer = await asked
        error = error_of(answer, status)
        assert error["code"] == answered
        assert "secret" not in error["message"]
        assert ("retry-after" in answer.headers) == (status in (429, 503))


@run
async def test_more_than_max_in_flight_is_a_429_with_retry_after(open_front: OpenFront) -> None:
    async with open_front(max_in_flight=2, retry_after_s=7) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([[1], [2]]))
        messages = await front.engine.wait_heard(Submit, 2)
        answer = await front.prefill([1])
        assert error_of(answer, 429)["code"] == "queue_full"
        assert answer.headers["retry-after"] == "7"
        assert "batch" in error_of(await front.prefill([[1]] * 3), 400)["message"]
        for message in messages:
            await front.engine.finish(message)
        assert (await asked).status_code == 200
        front.engine.hold = False
        assert (await front.prefill([1])).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "model", "sampling", "cache_salt", "priority", "deadline_s", "request_id", "ttl_s", "stream"]
)
MESSAGE = st.fixed_dictionaries({}, optional={"role": st.just("user") | JSON, "content": JSON, "name": JSON})
SAMPLING = st.dictionaries(
    st.sampled_from(["temperature", "top_p", "top_k", "seed", "logprobs", "logit_bias", "min_tokens", "stop"]), JSON
)
BODY = st.dictionaries(FIELDS, JSON, max_size=5) | st.fixed_dictionaries(
    {}, optional={"prompt": JSON, "messages": st.lists(MESSAGE, max_size=3), "sampling": SAMPLING, "stream": JSON}
)


@given(bodies=st.lists(st.tuples(st.sampled_from(["/v1/prefill", "/tokenize", "/detokenize"]), BODY), max_size=25))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@run
async def test_no_body_whatever_is_a_500(open_front: OpenFront, bodies: list) -> None:
    async with open_front() as front:
        for path, body in bodies:
            answer = await send(front, path, body)
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
        assert front.context.in_flight.count == 0
        assert (await front.prefill([1])).status_code == 200


async def send(front: Front, path: str, body: Any) -> Any:
    content = json.dumps(body).encode()
    return await front.http.post(path, content=content, headers={"content-type": "application/json"})
