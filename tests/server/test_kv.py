"""Handles over HTTP."""

from __future__ import annotations

import msgspec
from wavepp.engine.messages import KvRenew, Manifest, ResetCache

from .fake_engine import LIFE_S, STAGES
from .front import DEFAULT_TTL_S, MAX_TTL_S, OpenFront, error_of, run


@run
async def test_a_manifest_is_what_rank_0_says(open_front: OpenFront) -> None:
    async with open_front() as front:
        handle = (await front.prefill([1])).json()["handle"]
        answer = await front.http.get(f"/v1/kv/{handle}")
        manifest = msgspec.json.decode(answer.content, type=Manifest)
        assert manifest.handle == handle
        assert [stage.address for stage in manifest.stages] == [stage.address for stage in STAGES]


@run
async def test_renew_asks_for_the_life_named_or_the_default_and_tells_the_real_one(open_front: OpenFront) -> None:
    async with open_front() as front:
        handle = (await front.prefill([1])).json()["handle"]
        path = f"/v1/kv/{handle}/renew"
        assert (await front.http.post(path, json={"ttl_s": 5})).json() == {
            "handle": handle,
            "status": "renewed",
            "ttl_s": LIFE_S,
        }
        assert (await front.http.post(path)).status_code == 200
        assert (await front.http.post(path, json={})).status_code == 200
        assert [message.ttl_s for message in front.engine.all_heard(KvRenew)] == [5.0, DEFAULT_TTL_S, DEFAULT_TTL_S]
        for bad in ({"ttl_s": MAX_TTL_S + 1}, {"ttl_s": 0}, {"ttl_s": "5"}, {"ttl": 5}):
            assert "ttl" in error_of(await front.http.post(path, json=bad), 400)["message"]


@run
async def test_release_ends_the_handle(open_front: OpenFront) -> None:
    async with open_front() as front:
        handle = (await front.prefill([1])).json()["handle"]
        assert (await front.http.delete(f"/v1/kv/{handle}")).json()["status"] == "released"
        error_of(await front.http.delete(f"/v1/kv/{handle}"), 404)


@run
async def test_reset_prefix_cache_reaches_rank_0(open_front: OpenFront) -> None:
    async with open_front() as front:
        assert (await front.http.post("/reset_prefix_cache")).json() == {"reset": True}
        assert len(front.engine.all_heard(ResetCache)) == 1
