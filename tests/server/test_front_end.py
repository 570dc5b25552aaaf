"""The front end as a process: how it starts, drains, and leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest
from wavepp.engine.messages import CancelRequest, Submit
from wavepp.engine.status import Listening
from wavepp.server.config import FRONT_END_ENV, FrontEndSettings, ServerConfig

from .fake_engine import TIMEOUT_S, FakeEngine
from .front import CONTEXT, VOCAB, error_of, run


@dataclass(frozen=True)
class Started:
    process: asyncio.subprocess.Process
    engine: FakeEngine
    http: httpx.AsyncClient

    async def leaves(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.process.wait()


def spawn(document: str):
    return asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wavepp.server.front_end"),
        env={**os.environ, FRONT_END_ENV: document},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def started(folder: Path, tmp_path: Path, **config) -> AsyncIterator[Started]:
    settings = FrontEndSettings(
        server=ServerConfig(port=0, **config),
        address=f"ipc://{tmp_path}/front",
        model=folder,
        model_name="tiny",
        max_model_len=CONTEXT,
        vocab_size=VOCAB,
        default_ttl_s=7.0,
        max_ttl_s=50.0,
    )
    process = await spawn(settings.model_dump_json())
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            listening = msgspec.json.decode(await process.stdout.readline(), type=Listening)
        assert listening.address == settings.address
        engine = FakeEngine(listening.address)
        await engine.up()
        async with httpx.AsyncClient(base_url=listening.http, timeout=TIMEOUT_S) as http:
            while (await http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)
            yield Started(process, engine, http)
        await engine.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@run
async def test_it_serves_and_on_sigterm_finishes_what_is_in_flight(tokenizer_folder: Path, tmp_path: Path) -> None:
    async with started(tokenizer_folder, tmp_path) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.http.post("/v1/prefill", json={"prompt": "hello"}))
        (message,) = await front.engine.wait_heard(Submit)
        front.process.send_signal(signal.SIGTERM)
        while (answer := await front.http.get("/ready")).status_code == 200:
            await asyncio.sleep(0.01)
        assert answer.json()["status"] == "draining"
        assert error_of(await front.http.post("/v1/prefill", json={"prompt": "a"}), 503)["code"] == "draining"
        await front.engine.finish(message)
        assert (await asked).json()["handle"] == f"kv-{message.name}"
        assert await front.leaves() == 0


@run
async def test_the_lives_of_handles_are_those_of_its_settings(tokenizer_folder: Path, tmp_path: Path) -> None:
    async with started(tokenizer_folder, tmp_path) as front:
        assert (await front.http.post("/v1/prefill", json={"prompt": [1]})).status_code == 200
        assert (await front.http.post("/v1/prefill", json={"prompt": [1], "ttl_s": 50})).status_code == 200
        assert [message.ttl_s for message in front.engine.all_heard(Submit)] == [7.0, 50.0]
        answer = await front.http.post("/v1/prefill", json={"prompt": [1], "ttl_s": 50.5})
        assert "at most 50 s" in error_of(answer, 400)["message"]


@pytest.mark.parametrize("second", [False, True])
@run
async def test_what_does_not_finish_in_time_is_cancelled(tokenizer_folder: Path, tmp_path: Path, second: bool) -> None:
    async with started(tokenizer_folder, tmp_path, drain_timeout_s=600 if second else 0.05) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.http.post("/v1/prefill", json={"prompt": [1], "request_id": "x"}))
        await front.engine.wait_heard(Submit)
        front.process.send_signal(signal.SIGTERM)
        if second:
            while (await front.http.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            front.process.send_signal(signal.SIGINT)
        assert error_of(await asked, 503)["code"] == "draining"
        assert (await front.engine.wait_heard(CancelRequest))[0].name == "x"
        assert await front.leaves() == 0


@run
async def test_it_leaves_at_once_when_its_parent_is_gone(tokenizer_folder: Path, tmp_path: Path) -> None:
    async with started(tokenizer_folder, tmp_path, drain_timeout_s=600) as front:
        front.engine.hold = True
        asked = asyncio.create_task(front.http.post("/v1/prefill", json={"prompt": [1]}))
        await front.engine.wait_heard(Submit)
        assert front.process.stdin is not None
        front.process.stdin.close()
        error_of(await asked, 503)
        assert await front.leaves() == 0


@run
async def test_a_wrong_document_and_a_taken_port_are_said(tokenizer_folder: Path, tmp_path: Path) -> None:
    process = await spawn("{}")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert FRONT_END_ENV.encode() in errors
    async with started(tokenizer_folder, tmp_path) as front:
        port = front.http.base_url.port
        settings = FrontEndSettings(
            server=ServerConfig(port=port or 0),
            address=f"ipc://{tmp_path}/other",
            model=tokenizer_folder,
            model_name="tiny",
            max_model_len=CONTEXT,
            vocab_size=VOCAB,
            default_ttl_s=7.0,
            max_ttl_s=50.0,
        )
        process = await spawn(settings.model_dump_json())
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert str(port).encode() in errors
