"""A real server for the tests: `wavepp serve` in a process of its own, on a free port, stopped by pid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

READY_TIMEOUT_S = 180.0


class Server:
    """Starts on entering, is gone with all of its processes on leaving. `log` is what it wrote to standard error."""

    def __init__(self, model: Path | str, pp: int, *flags: str, environment: dict[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "wavepp.server.cli", "serve", str(model)]
        self._command += ["--pp", str(pp), "--port", "0", "--threads-per-stage", "1", *flags]
        self._environment = {**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self.url = ""

    @property
    def log(self) -> str:
        with self._changed:
            return "".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self._environment, text=True
        )
        threading.Thread(target=self._listen, daemon=True).start()
        self.url = self.wait_for(r"(http://127\.0\.0\.1:\d+)")[1]
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self.stop()
        if kind is not None:
            print(self.log, file=sys.stderr)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Asks the server to leave and returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        finally:
            if self._process.poll() is None:
                for child in [*self.processes(), psutil.Process(self._process.pid)]:
                    child.kill()
                self._process.wait()

    def processes(self) -> list[psutil.Process]:
        """The front end and the stages."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def stage(self, rank: int) -> psutil.Process:
        """The process of one stage of the epoch that serves now."""
        for child in self.processes():
            if f'"rank":{rank},' in child.environ().get("WAVEPP_STAGE", ""):
                return child
        raise LookupError(f"no process is rank {rank}")

    def wait_for(self, pattern: str, timeout_s: float = READY_TIMEOUT_S) -> re.Match[str]:
        """The first match of the pattern in what the server has written, now or later."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = re.search(pattern, "".join(self._lines))
                if found:
                    return found
                if self._process.poll() is not None or not self._changed.wait(max(0, deadline - time.monotonic())):
                    raise AssertionError(f"the server never wrote {pattern!r}:\n{''.join(self._lines)}")

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while self.http.get("/ready").status_code != 200:
            assert time.monotonic() < deadline, f"the server is not ready:\n{self.log}"
            assert self._process.poll() is None, f"the server has left:\n{self.log}"
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
        return answer.json()

    def wait_until_idle(self, timeout_s: float = 30) -> dict[str, Any]:
        """The state, once nothing is queued, running or held by a handle or pull; fails when that does not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if not busy(state):
                return state
            assert time.monotonic() < deadline, f"the idle server still holds {busy(state)}"
            time.sleep(0.05)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def busy(state: dict[str, Any]) -> dict[str, int]:
    """Every gauge that is not zero in an idle group."""
    gauges = {name: state[name] for name in ("queued", "running", "waves_in_flight", "handles")}
    for rank, held in enumerate(state["ranks"]):
        for name in ("leases", "handles", "pulls"):
            gauges[f"rank {rank} {name}"] = held[name]
        for kind in ("pages", "slots"):
            pinned = held[f"{kind}_total"] - held[f"{kind}_free"] - held[f"{kind}_reclaimable"]
            gauges[f"rank {rank} pinned {kind}"] = pinned
    return {name: value for name, value in gauges.items() if value}
