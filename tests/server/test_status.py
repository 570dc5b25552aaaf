"""Keys, metrics, state and the API's own description."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from wavepp.admission.effects import Reuse
from wavepp.engine.messages import GetState, Submit

from .front import VOCAB, Front, OpenFront, error_of, run

PROTECTED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/state"),
    ("POST", "/v1/prefill"),
    ("DELETE", "/v1/prefill/x"),
    ("GET", "/v1/kv/x"),
    ("GET", "/v1/nowhere"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/reset_prefix_cache"),
    *(("GET", path) for path in ("/version", "/docs", "/openapi.json", "/redoc", "/nowhere")),
]


@run
async def test_the_key_is_asked_for_on_all_but_the_open_paths(open_front: OpenFront) -> None:
    async with open_front(api_key="sécret") as front:
        for method, path in PROTECTED:
            for sent in (None, "Bearer", "Bearer wrong", "Basic s\xe9cret", "s\xe9cret", "Bearer \xff\xfe"):
                headers = [] if sent is None else [(b"Authorization", sent.encode("latin-1"))]
                answer = await front.http.request(method, path, headers=headers, content=b"x")
                assert error_of(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/ready", "/metrics"):
            assert (await front.http.get(path)).status_code == 200
        key = [(b"Authorization", "Bearer sécret".encode())]
        assert (await front.http.get("/v1/models", headers=key)).status_code == 200


async def scrape(front: Front) -> dict[str, float]:
    """Each sample as `name{label=value,…}`."""
    answer = await front.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


@run
async def test_metrics_show_what_passed_and_what_the_group_says_now(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.cached = 16
        assert (await front.prefill([1] * 40)).status_code == 200
        assert (await front.prefill([1] * 24)).status_code == 200
        error_of(await front.prefill([]), 400)
        front.engine.on_submit = lambda message: None
        samples = await scrape(front)
        expected = {
            "wavepp_prompt_tokens_total": 64,
            "wavepp_prefix_cache_queries_total": 64,
            "wavepp_prefix_cache_hits_total": 32,
            "wavepp_request_success_total{finished_reason=length}": 2,
            "wavepp_request_success_total{finished_reason=abort}": 0,
            "wavepp_time_to_first_token_seconds_count": 2,
            "wavepp_request_queue_time_seconds_sum": 0.5,
            "wavepp_request_admit_time_seconds_sum": 1.0,
            "wavepp_request_prefill_time_seconds_sum": 3.0,
            "wavepp_group_up": 1,
            "wavepp_epoch": 1,
            "wavepp_num_requests_running": 2,
            "wavepp_num_requests_waiting": 3,
            "wavepp_waves_in_flight": 4,
            "wavepp_tokens_computed_total": 7000,
            "wavepp_stage_busy_seconds_total{rank=1}": 13.25,
            "wavepp_kv_cache_usage_perc{rank=0}": 0.5,
            "wavepp_kv_cache_usage_perc{rank=1}": 0.0,
            "wavepp_pages{rank=0,state=free}": 20,
            "wavepp_pages{rank=0,state=reclaimable}": 30,
            "wavepp_pages{rank=0,state=referenced}": 50,
            "wavepp_slots{rank=0,state=referenced}": 5,
            "wavepp_leases{rank=0}": 9,
            "wavepp_handles{rank=0}": 10,
            "wavepp_pulls{rank=0}": 11,
            "wavepp_escrows{rank=0}": 7,
            "wavepp_pages_promised{rank=0}": 12,
            "wavepp_slots_promised{rank=0}": 3,
            "wavepp_host_pages{rank=0,state=free}": 40,
            "wavepp_host_pages{rank=0,state=reclaimable}": 15,
            "wavepp_host_pages{rank=0,state=referenced}": 5,
            "wavepp_host_slots{rank=0,state=free}": 1,
            "wavepp_host_slots{rank=0,state=reclaimable}": 3,
            "wavepp_host_slots{rank=0,state=referenced}": 2,
            "wavepp_host_pages{rank=1,state=free}": 0,
            "wavepp_cache_offloaded_total{rank=0}": 70,
            "wavepp_cache_onboarded_total{rank=0}": 25,
            "wavepp_cache_dropped_total{rank=0}": 13,
            "wavepp_cache_dropped_total{rank=1}": 0,
            "wavepp_http_requests_total{handler=/v1/prefill,method=POST,status=200}": 2,
            "wavepp_http_requests_total{handler=/v1/prefill,method=POST,status=400}": 1,
        }
        assert {name: samples.get(name) for name in expected} == expected


@run
async def test_metrics_count_deadlines_met_and_missed(open_front: OpenFront) -> None:
    async with open_front() as front:
        outcomes = ("wavepp_deadlines_total{outcome=met}", "wavepp_deadlines_total{outcome=missed}")
        samples = await scrape(front)
        assert [samples[outcome] for outcome in outcomes] == [0, 0]
        front.engine.hold = True
        for number, met in enumerate((True, False, True, None)):
            asked = asyncio.create_task(front.prefill([1], deadline_s=None if met is None else 9))
            message = (await front.engine.wait_heard(Submit, number + 1))[-1]
            await front.engine.finish(message, deadline_met=met)
            assert (await asked).status_code == 200
        samples = await scrape(front)
        assert [samples[outcome] for outcome in outcomes] == [2, 1]


@run
async def test_metrics_count_what_was_hinted_leased_and_reused_and_what_limited_it(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.hold = True
        reuses = (
            Reuse(36, 24, 16, "rank 1: recurrent", 0.75),
            Reuse(32, 32, 32, "rank 1: recurrent"),
            Reuse(8, 8, 4, "rank 0: attention", 0.25),
            Reuse(4, 4, 4),
        )
        for number, reuse in enumerate(reuses):
            asked = asyncio.create_task(front.prefill([1] * 40))
            message = (await front.engine.wait_heard(Submit, number + 1))[-1]
            await front.engine.finish(message, reuse=reuse)
            assert (await asked).status_code == 200
        samples = await scrape(front)
        expected = {
            "wavepp_prefix_hinted_tokens_total": 80,
            "wavepp_prefix_leased_tokens_total": 68,
            "wavepp_prefix_reused_tokens_total": 56,
            "wavepp_prefix_cache_hits_total": 56,
            "wavepp_prefix_limited_total{rank=1,window=recurrent}": 2,
            "wavepp_prefix_limited_total{rank=0,window=attention}": 1,
            "wavepp_request_held_time_seconds_count": 4,
            "wavepp_request_held_time_seconds_sum": 1.0,
        }
        assert {name: samples.get(name) for name in expected} == expected
        assert sum(name.startswith("wavepp_prefix_limited_total") for name in samples) == 2


@run
async def test_metrics_are_served_while_the_group_is_down_or_silent(open_front: OpenFront) -> None:
    async with open_front(scrape_timeout_s=0.05) as front:
        await scrape(front)
        front.engine.silent = True
        assert (await scrape(front))["wavepp_waves_in_flight"] == 4
        await front.engine.down(epoch=1)
        await front.until(lambda: front.client.group.status == "down")
        samples = await scrape(front)
        assert samples["wavepp_group_up"] == 0
        assert samples["wavepp_num_requests_running"] == 0
        assert "wavepp_waves_in_flight" not in samples


@run
async def test_scrapes_at_the_same_time_ask_once_and_counters_count_cancels(open_front: OpenFront) -> None:
    async with open_front() as front:
        front.engine.silent = front.engine.hold = True
        scrapes = [asyncio.create_task(scrape(front)) for _ in range(5)]
        await front.engine.wait_heard(GetState)
        await asyncio.gather(*scrapes)
        assert len(front.engine.all_heard(GetState)) == 1
        front.engine.silent = False
        asked = asyncio.create_task(front.prefill([1], request_id="x"))
        await front.engine.wait_heard(Submit)
        await front.http.delete("/v1/prefill/x")
        error_of(await asked, 409)
        assert (await scrape(front))["wavepp_request_success_total{finished_reason=abort}"] == 1


@run
async def test_unknown_paths_and_methods_add_no_labels(open_front: OpenFront) -> None:
    async with open_front() as front:
        for i in range(5):
            await front.http.request(f"M{i}", f"/nowhere/{i}")
            await front.http.get(f"/v1/kv/{i}")
        samples = await scrape(front)
        assert samples["wavepp_http_requests_total{handler=none,method=other,status=404}"] == 5
        assert samples["wavepp_http_requests_total{handler=/v1/kv/{handle},method=GET,status=404}"] == 5


@run
async def test_openmetrics_is_spoken_to_those_who_ask(open_front: OpenFront) -> None:
    async with open_front() as front:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        answer = await front.http.get("/metrics", headers=accept)
        names = {family.name for family in parse_openmetrics(answer.text)}
        assert "wavepp_prompt_tokens" in names


@run
async def test_state_shows_the_group_the_stages_and_this_process(open_front: OpenFront) -> None:
    async with open_front() as front:
        state: dict[str, Any] = (await front.http.get("/v1/state")).json()
        assert (state["status"], state["epoch"], state["model"]) == ("up", 1, "tiny")
        assert (state["queued"], state["running"], state["waves_in_flight"]) == (3, 2, 4)
        assert (state["block_size"], state["vocab_size"]) == (16, VOCAB)
        assert [stage["address"] for stage in state["stages"]] == ["tcp://10.0.0.0:7000", "tcp://10.0.0.1:7000"]
        assert state["ranks"][0]["pages_reclaimable"] == 30
        assert (state["ranks"][0]["escrows"], state["ranks"][0]["host_pages_total"]) == (7, 60)


@run
async def test_models_and_version(open_front: OpenFront) -> None:
    async with open_front() as front:
        (card,) = (await front.http.get("/v1/models")).json()["data"]
        assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 256)
        assert (await front.http.get("/version")).json() == {"version": "1.2.3"}


@run
async def test_the_api_s_description_resolves_and_names_every_body(open_front: OpenFront) -> None:
    async with open_front() as front:
        document = (await front.http.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        for reference in _references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas
        body = document["paths"]["/v1/prefill"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = schemas[body["$ref"].rpartition("/")[2]]["properties"]
        assert set(fields) >= {"prompt", "messages", "sampling"}
        assert (fields["priority"]["minimum"], fields["priority"]["maximum"]) == (-1000, 1000)
        assert "arrival" in fields["deadline_s"]["description"]
        assert "deadline_met" in schemas["TimingAnswer"]["properties"]
        assert "stages" in schemas["Manifest"]["properties"]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in _references(item)]
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for item in node.values() for found in _references(item)]
    return []


@run
async def test_an_error_of_ours_is_a_500_that_tells_nothing(
    open_front: OpenFront, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_front() as front:

        def broken(*_: object) -> None:
            raise RuntimeError("a secret")

        monkeypatch.setattr(front.client, "submit", broken)
        answer: httpx.Response = await front.prefill([1])
        assert "secret" not in error_of(answer, 500)["message"]
        assert "a secret" in caplog.text
        assert front.context.in_flight.count == 0
