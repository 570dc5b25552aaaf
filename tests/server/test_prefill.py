"""What a good prefill request becomes, and what its answer says."""

from __future__ import annotations

import asyncio
import logging
import time

import numpy as np
import pytest
from transformers import AutoTokenizer
from wavepp.admission.effects import Reuse
from wavepp.engine.messages import CancelRequest, KvRenew, Submit

from .fake_engine import TIMING
from .front import DEFAULT_TTL_S, MAX_TTL_S, Front, OpenFront, error_of, events_of, run

REUSE = Reuse(36, 24, 16, "rank 1: recurrent", 0.75)


async def submitted(front: Front, count: int = 1) -> list[Submit]:
    return await front.engine.wait_heard(Submit, count)


def ids_of(message: Submit) -> list[int]:
    return np.frombuffer(message.tokens, "<i4").tolist()


@run
async def test_the_answer_has_the_handle_the_first_token_and_the_usage(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill(list(range(40)), request_id="mine", sampling={"logprobs": 2}))
        (message,) = await submitted(front)
        await front.engine.finish(message, ((40, -0.5), (7, float("-inf"))), REUSE)
        answer = (await asked).json()
        assert answer == {
            "id": "mine",
            "model": "tiny",
            "handle": "kv-mine",
            "first_token": {
                "id": 40,
                "text": front.tokenizer.token_text(40),
                "logprob": -0.5,
                "top": [
                    {"id": 40, "text": front.tokenizer.token_text(40), "logprob": -0.5},
                    {"id": 7, "text": front.tokenizer.token_text(7), "logprob": None},
                ],
            },
            "usage": {
                "prompt_tokens": 40,
                "cached_tokens": 16,
                "cached_tokens_limited_by": "rank 1: recurrent",
                "reuse": {
                    "hinted_tokens": 36,
                    "leased_tokens": 24,
                    "cached_tokens": 16,
                    "limited_by": "rank 1: recurrent",
                    "held_s": 0.75,
                },
            },
            "timing": {"queue_s": TIMING.queue_s, "admit_s": TIMING.admit_s, "prefill_s": TIMING.prefill_s},
        }


@run
async def test_one_line_of_the_log_says_all_about_a_finished_request(
    open_front: OpenFront, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wavepp.server.prefill")
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([list(range(40)), [1]], request_id="mine"))
        first, second = await submitted(front, 2)
        await front.engine.finish(first, reuse=REUSE)
        await front.engine.fail(second.name, "internal")
        answer = await asked
        assert answer.status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.name == "wavepp.server.prefill"]
    assert lines == [
        "finished id=mine-0 epoch=1 prompt_tokens=40 hinted_tokens=36 leased_tokens=24 cached_tokens=16 "
        'limited_by="rank 1: recurrent" held_s=0.750000 queue_s=0.250000 admit_s=0.500000 prefill_s=1.500000'
    ]
    assert "kv-mine" not in caplog.text, "a handle is a capability"


@run
async def test_text_becomes_the_tokens_of_the_model_s_own_tokenizer(open_front: OpenFront, tokenizer_folder) -> None:
    text = "the quick hen — ünïcode <|end|> hello\n\n"
    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    async with open_front() as front:
        assert (await front.prefill(text)).status_code == 200
        (message,) = await submitted(front)
        assert ids_of(message) == reference(text)["input_ids"]


@run
async def test_messages_go_through_the_chat_template(open_front: OpenFront, tokenizer_folder) -> None:
    messages = [{"role": "system", "content": "hen"}, {"role": "user", "content": "hello {braces}"}]
    reference = AutoTokenizer.from_pretrained(tokenizer_folder)
    async with open_front() as front:
        parts = [messages[0], {"role": "user", "content": [{"type": "text", "text": "hello {braces}"}]}]
        assert (await front.http.post("/v1/prefill", json={"messages": messages})).status_code == 200
        assert (await front.http.post("/v1/prefill", json={"messages": parts})).status_code == 200
        plain, in_parts = await submitted(front, 2)
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids_of(plain) == ids_of(in_parts) == expected


@run
async def test_every_field_reaches_rank_0(open_front: OpenFront) -> None:
    sampling = {
        "temperature": 1,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "seed": 11,
        "logprobs": 3,
        "logit_bias": {"5": -1.5},
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
    }
    async with open_front() as front:
        fields = {"cache_salt": "tenant", "ttl_s": 30, "priority": -7, "model": "tiny", "request_id": "a.b:c-d_e"}
        assert (await front.prefill([1, 2, 3], sampling=sampling, **fields)).status_code == 200
        (message,) = await submitted(front)
        assert (message.name, message.salt, message.ttl_s, ids_of(message)) == ("a.b:c-d_e", "tenant", 30.0, [1, 2, 3])
        assert (message.priority, message.deadline_s) == (-7, None)
        expected = sampling | {"top_k": 0, "logit_bias": {5: -1.5}}
        assert {name: getattr(message.sampling, name) for name in sampling} == expected


@run
async def test_the_deadline_that_rank_0_hears_of_is_what_is_left_of_the_client_s(open_front: OpenFront) -> None:
    async with open_front() as front:
        before = time.monotonic()
        assert (await front.prefill([[1], [2]], deadline_s=50, priority=3)).status_code == 200
        lasted = time.monotonic() - before
        first, second = await submitted(front, 2)
        for message in (first, second):
            assert message.deadline_s is not None and 50 - lasted <= message.deadline_s < 50
        assert (first.priority, second.priority) == (3, 3), "a batch's prompts share them"


@run
async def test_a_deadline_that_passes_before_the_prompt_is_tokenized_is_served_too(open_front: OpenFront) -> None:
    async with open_front() as front:
        assert (await front.prefill("hello", deadline_s=1e-9)).status_code == 200
        (message,) = await submitted(front)
        assert message.deadline_s is not None and message.deadline_s < 0


@pytest.mark.parametrize("met", [True, False])
@run
async def test_an_answer_says_whether_its_deadline_was_met_where_there_was_one(
    open_front: OpenFront, met: bool
) -> None:
    async with open_front() as front:
        front.engine.hold = True
        for stream in (False, True):
            front.engine.heard.clear()
            asked = asyncio.create_task(front.prefill([[1], [2]], deadline_s=5, stream=stream))
            for message in await submitted(front, 2):
                await front.engine.finish(message, deadline_met=met)
            answer = await asked
            items = [data for _, data in events_of(answer.text)] if stream else answer.json()["results"]
            assert [item["timing"]["deadline_met"] for item in items] == [met, met]
        front.engine.hold = False
        assert "deadline_met" not in (await front.prefill([1], priority=2)).json()["timing"]


@run
async def test_sampling_is_greedy_by_default_and_seeded_afresh_when_it_is_not(open_front: OpenFront) -> None:
    async with open_front() as front:
        for sampling in ({}, {"temperature": 1.0}, {"temperature": 1.0}, {"temperature": 1e-9, "seed": 5}):
            assert (await front.prefill([1], sampling=sampling)).status_code == 200
        greedy, first, second, tiny = (message.sampling for message in await submitted(front, 4))
        assert (greedy.temperature, greedy.seed) == (0.0, 0)
        assert first.seed != second.seed
        assert (tiny.temperature, tiny.seed) == (0.0, 5)


@run
async def test_the_default_life_of_a_handle_is_asked_for(open_front: OpenFront) -> None:
    async with open_front() as front:
        await front.prefill([1])
        assert [message.ttl_s for message in await submitted(front)] == [DEFAULT_TTL_S]
        assert error_of(await front.prefill([1], ttl_s=MAX_TTL_S + 1), 400)["message"].startswith("ttl_s")


@pytest.mark.parametrize("prompts", [["hello", "hen"], [[1, 2], [3]]])
@run
async def test_a_batch_has_one_result_each_in_order(open_front: OpenFront, prompts: list) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill(prompts, request_id="b"))
        first, second = await submitted(front, 2)
        assert (first.name, second.name) == ("b-0", "b-1")
        await front.engine.finish(second)
        await front.engine.finish(first)
        answer = (await asked).json()
        assert answer["id"] == "b"
        assert [(item["index"], item["id"], item["handle"]) for item in answer["results"]] == [
            (0, "b-0", "kv-b-0"),
            (1, "b-1", "kv-b-1"),
        ]
        assert answer["usage"]["prompt_tokens"] == sum(len(m.tokens) // 4 for m in (first, second))
        assert answer["usage"]["reuse"] is None, "there is no one reason for a sum"
        assert all(item["usage"]["reuse"]["limited_by"] is None for item in answer["results"])


@run
async def test_the_handles_of_a_batch_begin_their_lives_when_they_are_given_out(open_front: OpenFront) -> None:
    async with open_front() as front:
        await front.prefill([[1], [2]], request_id="b", ttl_s=9)
        renewals = await front.engine.wait_heard(KvRenew, 2)
        assert [(message.handle, message.ttl_s) for message in renewals] == [("kv-b-0", 9), ("kv-b-1", 9)]


@run
async def test_a_batch_that_would_wait_for_its_own_handles_is_refused(open_front: OpenFront) -> None:
    async with open_front(up=False) as front:
        await front.engine.up(max_prompt_tokens=96)
        await front.until(lambda: front.client.group.status == "up")
        assert (await front.prefill([[1] * 17, [2]])).status_code == 200
        error = error_of(await front.prefill([[1] * 17, [2] * 17]), 400)
        assert "128 tokens of cache at once, the stages hold 96" in error["message"]
        assert "stream" in error["message"]
        assert (await front.prefill([[1] * 17, [2] * 17], stream=True)).status_code == 200


@run
async def test_a_batch_reports_the_prompts_that_failed_beside_those_that_did_not(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([[1], [2]], request_id="b"))
        first, _ = await submitted(front, 2)
        await front.engine.fail("b-1", "queue_full")
        await front.engine.finish(first)
        results = (await asked).json()["results"]
        assert results[0]["handle"] == "kv-b-0"
        assert results[1]["error"]["code"] == "queue_full"
        asked = asyncio.create_task(front.prefill([[1], [2]], request_id="c"))
        await submitted(front, 4)
        await front.engine.fail("c-1", "queue_full")
        await front.engine.fail("c-0", "queue_full")
        error_of(await asked, 429)


@run
async def test_one_bad_prompt_refuses_the_whole_batch_before_any_is_submitted(open_front: OpenFront) -> None:
    async with open_front() as front:
        error = error_of(await front.prefill([[1], [2, 999]]), 400)
        assert error["message"].startswith("prompt[1][1]")
        assert error_of(await front.prefill(["hen", ""]), 400)["message"].startswith("prompt[1]")
        await front.prefill([1])
        assert len(await submitted(front)) == 1


@run
async def test_a_stream_tells_progress_then_the_result(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1] * 48, request_id="s", stream=True))
        (message,) = await submitted(front)
        await front.engine.progress("s", 16, 48, "admitted")
        await front.engine.progress("s", 32, 48)
        await front.engine.finish(message)
        answer = await asked
        assert answer.headers["content-type"].startswith("text/event-stream")
        first, second, last = events_of(answer.text)
        assert first == ("progress", {"id": "s", "index": 0, "phase": "admitted", "computed": 16, "total": 48})
        assert second[1]["computed"] == 32
        assert (last[0], last[1]["handle"], last[1]["usage"]["prompt_tokens"]) == ("finished", "kv-s", 48)
        await front.until(lambda: front.context.in_flight.count == 0)


@run
async def test_a_streamed_batch_interleaves_its_prompts(open_front: OpenFront) -> None:
    async with open_front() as front:
        answer = await front.prefill([[1], [2], [3]], stream=True)
        events = events_of(answer.text)
        assert sorted(data["index"] for name, data in events if name == "finished") == [0, 1, 2]


@run
async def test_a_stream_that_fails_early_keeps_its_status_and_later_says_so_in_an_event(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.prefill([1], request_id="s", stream=True))
        await submitted(front)
        await front.engine.fail("s", "queue_full")
        error_of(await asked, 429)
        asked = asyncio.create_task(front.prefill([1], request_id="t", stream=True))
        await submitted(front, 2)
        await front.engine.progress("t", 0, 1, "admitted")
        await front.until(lambda: front.client.num_admitted == 1)
        await front.engine.down()
        name, data = events_of((await asked).text)[-1]
        assert (name, data["id"], data["error"]["code"]) == ("error", "t", "group_down")


@run
async def test_a_request_that_takes_too_long_is_cancelled(open_front: OpenFront) -> None:
    async with open_front(request_timeout_s=0.05) as front:
        front.engine.hold = True
        assert error_of(await front.prefill([1], request_id="slow"), 504)["code"] == "timed_out"
        assert (await front.engine.wait_heard(CancelRequest))[0].name == "slow"
        await front.until(lambda: front.client.num_pending == 0)
        name, data = events_of((await front.prefill([1], stream=True)).text)[-1]
        assert (name, data["error"]["code"]) == ("error", "timed_out")
        await front.until(lambda: front.context.in_flight.count == 0)
