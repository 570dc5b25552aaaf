"""The front end follows the stage group through its epochs, and never waits for one that is gone."""

from __future__ import annotations

import asyncio

import pytest
from wavepp.engine.messages import CancelRequest, GetState, Submit

from .fake_engine import FakeEngine
from .front import Front, OpenFront, error_of, run


async def down(front: Front, **fields) -> None:
    await front.engine.down(**fields)
    await front.until(lambda: front.client.group.status == "down")


@run
async def test_nothing_is_taken_before_the_group_has_formed(open_front: OpenFront) -> None:
    async with open_front(up=False) as front:
        answer = await front.prefill([1])
        assert error_of(answer, 503)["code"] == "group_forming"
        assert "retry-after" in answer.headers
        for method, path in (("GET", "/v1/kv/x"), ("DELETE", "/v1/prefill/x"), ("POST", "/reset_prefix_cache")):
            error_of(await front.http.request(method, path), 503)
        assert front.context.in_flight.count == 0


@run
async def test_everything_in_flight_fails_with_the_reason_when_the_group_goes_down(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = front.engine.silent = True
        asked = [asyncio.create_task(front.prefill([1])) for _ in range(3)]
        calls = [asyncio.create_task(front.http.get("/v1/kv/x")), asyncio.create_task(front.http.get("/v1/state"))]
        await front.engine.wait_heard(Submit, 3)
        await front.engine.wait_heard(GetState)
        await front.engine.down(reason="stage 1 was killed by signal 9")
        for task in (*asked, calls[0]):
            assert "stage 1 was killed by signal 9" in error_of(await task, 503)["message"]
        assert (await calls[1]).json()["status"] == "down"
        assert front.client.num_pending == 0
        assert error_of(await front.prefill([1]), 503)["code"] == "group_down"


@run
async def test_the_next_epoch_serves_and_its_rank_0_is_spoken_to(open_front: OpenFront) -> None:
    async with open_front() as front:
        await down(front)
        await front.engine.up(epoch=2)
        await front.until(lambda: front.client.group.epoch == 2)
        assert (await front.prefill([1])).status_code == 200
        assert (await front.http.get("/ready")).json() == {"status": "ready", "epoch": 2, "reason": ""}


@run
async def test_a_new_epoch_without_a_word_about_the_old_one_fails_what_was_in_flight(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1]))
        await front.engine.wait_heard(Submit)
        await front.engine.up(epoch=2)
        assert "epoch 1" in error_of(await asked, 503)["message"]
        assert front.client.group.status == "up"


@run
async def test_late_words_of_an_ended_epoch_change_nothing(open_front: OpenFront) -> None:
    async with open_front() as front:
        await down(front, epoch=1)
        old = FakeEngine(front.client.address)
        await old.up(epoch=1)
        await old.progress("nobody", 0, 1)
        await old.say_raw(b"\xc1 not msgpack")
        await old.fail("nobody", "internal")
        await front.engine.up(epoch=3)
        await front.until(lambda: front.client.group.epoch == 3)
        await old.down(epoch=1)
        await old.down(epoch=0, reason="forming")
        await old.progress("nobody", 0, 1)
        for _ in range(3):
            assert (await front.prefill([1])).status_code == 200
        assert front.client.group.status == "up"
        await old.close()


@run
async def test_a_final_end_counts_whatever_epoch_it_names(open_front: OpenFront) -> None:
    async with open_front() as front:
        await down(front, epoch=0, final=True, reason="gave up")
        assert error_of(await front.prefill([1]), 503)["message"] == "gave up"


@run
async def test_a_call_that_is_not_answered_in_time_is_a_504(open_front: OpenFront) -> None:
    async with open_front(call_timeout_s=0.05) as front:
        front.engine.silent = True
        assert error_of(await front.http.get("/v1/kv/x"), 504)["code"] == "timed_out"


@run
async def test_draining_refuses_new_work_and_lets_the_rest_finish(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1]))
        (message,) = await front.engine.wait_heard(Submit)
        front.context.in_flight.drain()
        assert error_of(await front.prefill([1]), 503)["code"] == "draining"
        ready = await front.http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert (await front.http.get("/health")).status_code == 200
        idle = asyncio.create_task(front.context.in_flight.idle())
        assert not idle.done()
        await front.engine.finish(message)
        assert (await asked).status_code == 200
        await idle
        assert (await front.http.get(f"/v1/kv/kv-{message.name}")).status_code == 200


@run
async def test_closing_the_client_cancels_what_is_left(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        await front.client.close()
        assert error_of(await asked, 503)["code"] == "draining"
        assert (await front.engine.wait_heard(CancelRequest))[0].name == "x"


@pytest.mark.parametrize("status", ["forming", "down"])
@run
async def test_health_and_ready_are_503_with_the_reason_while_the_group_is_not_up(
    open_front: OpenFront, status: str
) -> None:
    async with open_front(up=False) as front:
        if status == "down":
            await front.engine.up()
            await down(front, reason="out of memory")
        for path in ("/health", "/ready"):
            answer = await front.http.get(path)
            assert answer.status_code == 503
            assert ("out of memory" if status == "down" else "forming") in answer.json()["reason"]


@run
async def test_health_turns_bad_when_admitted_work_stops_and_good_when_it_goes_on(open_front: OpenFront) -> None:
    async with open_front(stall_timeout_s=0.05) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        (message,) = await front.engine.wait_heard(Submit)
        await front.engine.progress("x", 0, 1, "admitted")
        await front.until(lambda: front.client.num_admitted == 1)
        answer = await front.http.get("/health")
        while answer.status_code == 200:
            answer = await front.http.get("/health")
        assert answer.status_code == 503
        assert "no progress" in answer.json()["reason"]
        await front.engine.finish(message)
        assert (await asked).status_code == 200
        assert (await front.http.get("/health")).status_code == 200


@run
async def test_a_long_wave_is_no_illness_while_admitted_work_may_take_its_time(open_front: OpenFront) -> None:
    async with open_front(stall_timeout_s=60) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1]))
        (message,) = await front.engine.wait_heard(Submit)
        await front.engine.progress(message.name, 0, 1, "admitted")
        front.engine.silent = True
        await front.until(lambda: front.client.num_admitted == 1)
        assert await front.client.complaint(1e-9) == ""
        await front.engine.finish(message)
        await asked


@run
async def test_health_asks_rank_0_when_it_has_been_silent_with_work_waiting(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1]))
        (message,) = await front.engine.wait_heard(Submit)
        assert await front.client.complaint(1e-9) != ""
        assert await front.client.complaint(20.0) == ""
        front.engine.silent = True
        assert "did not answer" in await front.client.complaint(1e-6)
        await front.engine.finish(message)
        await asked
