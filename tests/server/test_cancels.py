"""Whoever stops waiting takes the work along; names and handles never mix two requests."""

from __future__ import annotations

import asyncio
import json

import pytest
from wavepp.engine.messages import CancelRequest, KvRelease, Submit

from .front import Front, OpenFront, error_of, events_of, run


async def post(front: Front, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, which the test can cut."""
    reader, writer = await asyncio.open_connection(front.http.base_url.host, front.http.base_url.port)
    content = json.dumps(body).encode()
    head = f"POST /v1/prefill HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    writer.write(head.encode() + b"\r\n\r\n" + content)
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@run
async def test_hanging_up_cancels_every_prompt_of_the_request(open_front: OpenFront, stream: bool) -> None:
    async with open_front(real=True) as front:
        front.engine.hold = True
        _, writer = await post(front, {"prompt": [[1], [2]], "request_id": "gone", "stream": stream})
        await front.engine.wait_heard(Submit, 2)
        writer.close()
        cancels = await front.engine.wait_heard(CancelRequest, 2)
        assert [cancel.name for cancel in cancels] == ["gone-0", "gone-1"]
        await front.until(lambda: front.client.num_pending == 0 and front.context.in_flight.count == 0)
        assert front.context.batches == {}


@run
async def test_hanging_up_in_the_middle_of_a_stream_cancels(open_front: OpenFront) -> None:
    async with open_front(real=True) as front:
        front.engine.hold = True
        reader, writer = await post(front, {"prompt": [1], "request_id": "gone", "stream": True})
        await front.engine.wait_heard(Submit)
        await front.engine.progress("gone", 0, 1)
        await reader.readuntil(b"event: progress")
        writer.close()
        assert (await front.engine.wait_heard(CancelRequest))[0].name == "gone"
        await front.until(lambda: front.context.in_flight.count == 0)


@run
async def test_hanging_up_after_one_prompt_has_finished_releases_its_handle(open_front: OpenFront) -> None:
    async with open_front(real=True) as front:
        front.engine.hold = True
        _, writer = await post(front, {"prompt": [[1], [2]], "request_id": "half"})
        first, _ = await front.engine.wait_heard(Submit, 2)
        await front.engine.finish(first)
        await front.until(lambda: front.client.num_pending == 1)
        writer.close()
        assert (await front.engine.wait_heard(KvRelease))[0].handle == "kv-half-0"
        assert [cancel.name for cancel in await front.engine.wait_heard(CancelRequest)] == ["half-1"]


@run
async def test_delete_cancels_a_waiting_request_and_answers_it_with_409(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        answer = await front.http.delete("/v1/prefill/x")
        assert answer.json() == {"id": "x", "status": "cancelled"}
        assert error_of(await asked, 409)["code"] == "cancelled"
        error_of(await front.http.delete("/v1/prefill/x"), 404)


@run
async def test_delete_of_a_batch_cancels_all_of_it(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([[1], [2]], request_id="b", stream=True))
        await front.engine.wait_heard(Submit, 2)
        assert (await front.http.delete("/v1/prefill/b")).json() == {"id": "b", "status": "cancelled"}
        events = events_of((await asked).text)
        assert [(name, data["error"]["code"]) for name, data in events] == [("error", "cancelled")] * 2


@run
async def test_delete_of_a_finished_request_releases_its_handle(open_front: OpenFront) -> None:
    async with open_front() as front:
        await front.prefill([1], request_id="x")
        assert (await front.http.delete("/v1/prefill/x")).json() == {"id": "x", "status": "released"}
        assert [message.handle for message in front.engine.all_heard(KvRelease)] == ["kv-x"]
        error_of(await front.http.delete("/v1/prefill/x"), 404)


@run
async def test_delete_says_cancelling_when_the_group_takes_its_time(open_front: OpenFront) -> None:
    async with open_front(call_timeout_s=0.05) as front:
        front.engine.hold = front.engine.silent = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        assert (await front.http.delete("/v1/prefill/x")).json()["status"] == "cancelling"
        await front.engine.fail("x", "cancelled")
        error_of(await asked, 409)


@run
async def test_a_result_that_crosses_its_cancel_is_not_given_out(open_front: OpenFront) -> None:
    """Rank 0 drops the handle when the cancel reaches it, though it had already said that it was done."""
    async with open_front() as front:
        front.engine.hold = front.engine.silent = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        (message,) = await front.engine.wait_heard(Submit)
        deleted = asyncio.create_task(front.http.delete("/v1/prefill/x"))
        await front.engine.wait_heard(CancelRequest)
        await front.engine.finish(message)
        assert (await deleted).json()["status"] == "cancelled"
        assert error_of(await asked, 409)["code"] == "cancelled"


@run
async def test_an_id_in_flight_is_a_409_and_stays_taken_until_rank_0_has_let_go_of_it(open_front: OpenFront) -> None:
    async with open_front(request_timeout_s=0.05) as front:
        front.engine.hold = front.engine.silent = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        assert error_of(await front.prefill([2], request_id="x"), 409)["code"] == "duplicate"
        error_of(await asked, 504)
        await front.engine.wait_heard(CancelRequest)
        assert error_of(await front.prefill([2], request_id="x"), 409)["code"] == "duplicate"
        await front.engine.fail("x", "cancelled")
        await front.until(lambda: front.client.num_pending == 0)
        front.engine.hold = front.engine.silent = False
        assert (await front.prefill([2], request_id="x")).json()["first_token"]["id"] == 3


@run
async def test_the_ids_of_a_batch_and_of_its_prompts_are_taken_too(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([[1], [2]], request_id="b"))
        for message in await front.engine.wait_heard(Submit, 2):
            error_of(await front.prefill([1], request_id="b"), 409)
            error_of(await front.prefill([1], request_id=message.name), 409)
            error_of(await front.prefill([[1]], request_id="b"), 409)
        await front.http.delete("/v1/prefill/b")
        error_of(await asked, 409)


@run
async def test_an_id_is_taken_while_its_handle_lives(open_front: OpenFront) -> None:
    async with open_front() as front:
        handle = (await front.prefill([1], request_id="x")).json()["handle"]
        assert error_of(await front.prefill([1], request_id="x"), 409)["code"] == "duplicate"
        assert len(front.engine.all_heard(Submit)) == 1
        assert (await front.http.delete(f"/v1/kv/{handle}")).status_code == 200
        assert (await front.prefill([1], request_id="x")).status_code == 200
