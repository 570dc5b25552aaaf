"""A server of one's own, for demos, benchmarks and tests: `wavepp serve` in a child process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


class ServerFailedError(RuntimeError):
    """The server left, or did not say what was waited for; the message holds what it has written."""


class LocalServer:
    """Serves once it has been entered, and is gone with all of its processes once left.

    `on_line` gets each line that the server writes to standard error, from a thread of its own.
    """

    def __init__(
        self,
        model: Path | str,
        pp: int,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.command = [sys.executable, "-m", "wavepp.server.cli", "serve", str(model)]
        self.command += ["--pp", str(pp), "--port", "0", *flags]
        self._environment = {**os.environ, **(environment or {})}
        self._on_line = on_line
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self.url = ""

    @property
    def log(self) -> str:
        """What the server has written to standard error so far."""
        with self._changed:
            return "".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self._environment, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.url = self.wait_for(r"serving .* at (http://\S+)")[1]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Asks the server to leave and returns its exit status; what does not leave in time is killed."""
        if self.running:
            self._process.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            for child in [*self.processes(), psutil.Process(self.pid)]:
                child.kill()
            return self._process.wait()
        finally:
            self._listener.join(timeout_s)

    def processes(self) -> list[psutil.Process]:
        """The front end and the stages."""
        return psutil.Process(self.pid).children(recursive=True)

    def wait_for(self, pattern: str, timeout_s: float = 180.0) -> re.Match[str]:
        """The first match of the pattern in what the server has written or will. Raises ServerFailedError."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                text = "".join(self._lines)
                found = re.search(pattern, text)
                if found:
                    return found
                left = deadline - time.monotonic()
                if not self.running or left <= 0:
                    raise ServerFailedError(f"the server never wrote {pattern!r}:\n{text}")
                self._changed.wait(min(left, 0.5))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                if self._on_line is not None:
                    self._on_line(line)
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
