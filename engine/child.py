"""A process of ours: started with a lifeline, heard through its status lines, ended by pid."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from .status import Status, parse


@dataclass(frozen=True, slots=True)
class Said:
    """A status line of a child."""

    child: Child
    status: Status


@dataclass(frozen=True, slots=True)
class Exited:
    """A child is gone; `code` as subprocess gives it, negative for a signal."""

    child: Child
    code: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A signal asks us to leave."""

    signal: int


Event = Said | Exited | Asked


class Child:
    """Owned by the supervisor's main thread; a thread of its own listens to it and reports to `events`.

    The child's standard input is a pipe that closes when we die, whatever kills us. It has a session of its own, so
    that Ctrl-C reaches only the supervisor, which then ends things in order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        events: queue.SimpleQueue[Event],
    ) -> None:
        self.name = name
        self._events = events
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, name=f"listen {name}", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask_to_leave(self) -> None:
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Whether the child has left within the time."""
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self.alive:
            self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        for line in output:
            status = parse(line)
            if status is not None:
                self._events.put(Said(self, status))
                continue
            # Whoever read our standard error may be gone; the child must be heard all the same.
            with contextlib.suppress(OSError, ValueError):
                _pass_on(line, sys.stderr.buffer)
        self._events.put(Exited(self, self._process.wait()))


def describe_exit(name: str, code: int) -> str:
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}"
    return f"{name} left with status {code}"


def _pass_on(line: bytes, stream: IO[bytes]) -> None:
    stream.write(line)
    stream.flush()
