"""A real server for the tests, with what the tests ask of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
from wavepp.server.local_server import LocalServer

READY_TIMEOUT_S = 180.0


class Server(LocalServer):
    """One thread a stage, no hub. Shows what the server wrote when a test inside fails."""

    def __init__(self, model: Path | str, pp: int, *flags: str) -> None:
        super().__init__(model, pp, "--threads-per-stage", "1", *flags, environment={"HF_HUB_OFFLINE": "1"})

    def __enter__(self) -> Self:
        super().__enter__()
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        super().__exit__(kind, error, trace)
        if kind is not None:
            print(self.log, file=sys.stderr)

    def stage(self, rank: int) -> psutil.Process:
        """The process of one stage of the epoch that serves now."""
        for child in self.processes():
            if f'"rank":{rank},' in child.environ().get("WAVEPP_STAGE", ""):
                return child
        raise LookupError(f"no process is rank {rank}")

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while self.http.get("/ready").status_code != 200:
            assert time.monotonic() < deadline, f"the server is not ready:\n{self.log}"
            assert self.running, f"the server has left:\n{self.log}"
            time.sleep(0.1)

    def prefill(self, prompt: Sequence[int] | str, **fields: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/prefill", json={"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def release(self, handle: str) -> None:
        answer = self.http.delete(f"/v1/kv/{handle}")
        assert answer.status_code == 200, answer.text

    def state(self) -> dict[str, Any]:
        answer = self.http.get("/v1/state")
        assert answer.status_code == 200, answer.text
        state = answer.json()
        assert state["fresh"], "a stage did not answer in time"
        return state

    def wait_until_idle(self, timeout_s: float = 30) -> dict[str, Any]:
        """The state, once nothing is queued, running or held by a handle or pull; fails when that does not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if not busy(state):
                return state
            assert time.monotonic() < deadline, f"the idle server still holds {busy(state)}"
            time.sleep(0.05)


def busy(state: dict[str, Any]) -> dict[str, int]:
    """Every gauge that is not zero in an idle group."""
    gauges = {name: state[name] for name in ("queued", "running", "waves_in_flight", "handles")}
    for rank, held in enumerate(state["ranks"]):
        for name in ("leases", "escrows", "handles", "pulls", "pages_promised", "slots_promised"):
            gauges[f"rank {rank} {name}"] = held[name]
        for kind in ("pages", "slots", "host_pages", "host_slots"):
            pinned = held[f"{kind}_total"] - held[f"{kind}_free"] - held[f"{kind}_reclaimable"]
            gauges[f"rank {rank} pinned {kind}"] = pinned
    return {name: value for name, value in gauges.items() if value}
