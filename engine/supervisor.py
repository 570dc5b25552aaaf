"""Starts the front end and the stages, watches over them, and forms the group anew when a stage fails."""

from __future__ import annotations

import logging
import queue
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import zmq

from .child import Asked, Child, Event, Exited, Said, describe_exit
from .console import Console
from .messages import GroupDown
from .settings import GroupSettings, StageSettings
from .status import Broken, Listening, Loaded, Loading, Ready
from .trace import find_parts, merge_traces

log = logging.getLogger("wavepp.supervisor")

_SETTLE_S = 0.3
"""A failing stage takes its neighbours with it: wait this long for the first cause among the echoes."""

_LOOK_UP_S = 0.05
"""How often the supervisor looks, while it ends others, whether they have left."""

_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}
"""glibc returns large buffers to the system at every free, and torch on the CPU asks for the same ones again."""


class FrontEndLaunch(msgspec.Struct, frozen=True):
    """How the front end is started: its command, its environment for the address that it shall bind, and how long it
    may take to drain, in seconds."""

    command: tuple[str, ...]
    environment: Callable[[str], Mapping[str, str]]
    drain_timeout_s: float


class Supervisor:
    """Owned by the main thread of `wavepp serve`."""

    def __init__(self, group: GroupSettings, front_end: FrontEndLaunch) -> None:
        self._group, self._front_end = group, front_end
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._folder = Path(tempfile.mkdtemp(prefix="wavepp-"))
        self._address = f"ipc://{self._folder}/front"
        self._console = Console(group.model_name, group.admission.admission, group.emulated)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._to_front = self._context.socket(zmq.PUSH)
        self._to_front.linger = 500
        self._stages: list[Child] = []
        self._front: Child | None = None
        self._epoch = 0
        self._ever_ready = False
        self._failures: list[float] = []
        self._words: list[str] = []
        self._asked = 0
        """How often we were asked to leave while something else was being waited for."""
        self._trace = Path(group.engine.trace) if group.engine.trace else None

    def run(self) -> int:
        """Serves until asked to leave (0), or until the front end or too many epochs have failed (1)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._events.put(Asked(number)))
        if self._trace is not None:
            _remove_parts(self._trace)
        try:
            self._start_front_end()
            self._start_epoch()
            return self._watch()
        finally:
            self._clean_up()

    def _watch(self) -> int:
        while True:
            event = self._events.get()
            match event:
                case Asked():
                    self._console.say("leaving: no new requests, waiting for those in flight (again to leave at once)")
                    self._leave()
                    return 0
                case Said():
                    self._hear(event)
                case Exited(child, code):
                    if child is self._front:
                        self._console.say(describe_exit("the front end", code))
                        return 1
                    if child in self._stages and not self._recover(event):
                        return 1
                    if self._front is not None and not self._front.alive:
                        return 1
                    if self._asked:
                        self._leave()
                        return 0

    def _hear(self, said: Said) -> None:
        match said.status:
            case Listening(http):
                self._console.listening(http)
            case _ if said.child not in self._stages:
                pass
            case Loading():
                self._console.loading(said.status)
            case Loaded():
                self._console.loaded(said.status)
            case Ready(group):
                self._ever_ready = True
                self._console.ready(group)
            case Broken(rank, reason):
                self._words.append(f"stage {rank}: {reason}")

    def _start_front_end(self) -> None:
        self._to_front.connect(self._address)
        self._front = Child(
            "front end",
            self._front_end.command,
            self._front_end.environment(self._address),
            self._events,
        )

    def _start_epoch(self) -> None:
        self._epoch += 1
        threads = self._group.engine.resolved_threads()
        base = f"ipc://{self._folder}/{self._epoch}"
        for rank in range(self._group.engine.pp):
            settings = StageSettings(
                group=self._group,
                rank=rank,
                epoch=self._epoch,
                leader=f"{base}-rounds",
                submit=f"{base}-submit",
                front_end=self._address,
            )
            child = Child(
                f"stage {rank}",
                [sys.executable, "-m", "wavepp.engine.stage_entry"],
                {"WAVEPP_STAGE": settings.model_dump_json(), "OMP_NUM_THREADS": str(threads), **_MALLOC},
                self._events,
            )
            self._stages.append(child)

    def _recover(self, first: Exited) -> bool:
        """A stage is gone: say so to the front end, end the others, form the next epoch. False when given up."""
        reason = self._cause(first)
        lost_epoch = self._epoch
        self._failures = [t for t in self._failures if time.monotonic() - t < self._group.engine.failure_window_s]
        self._failures.append(time.monotonic())
        final = not self._ever_ready or len(self._failures) > self._group.engine.max_failures
        self._say_down(reason, final)
        self._console.ended()
        self._console.say(f"epoch {lost_epoch} has ended: {reason}")
        self._end_stages(grace_s=1.0)
        if final:
            self._console.say(
                "the stages could not start; nothing is served"
                if not self._ever_ready
                else f"giving up after {len(self._failures)} failed epochs in {self._group.engine.failure_window_s:g} s"
            )
            self._leave()
            return False
        self._start_epoch()
        return True

    def _cause(self, first: Exited) -> str:
        """The likeliest first cause among what the stages said and how they ended: a death by signal comes before
        what a stage says of itself, and that before a plain exit."""
        deaths: list[str] = []
        exits: list[str] = []
        words = list(self._words)
        for event in [first, *self._gather(_SETTLE_S)]:
            match event:
                case Said(child, Broken(rank, reason)) if child in self._stages:
                    words.append(f"stage {rank}: {reason}")
                case Exited(child, code) if child in self._stages:
                    (deaths if code < 0 else exits).append(describe_exit(child.name, code))
                case _:
                    pass
        self._words = []
        return (deaths + words + exits)[0]

    def _gather(self, seconds: float) -> list[Event]:
        """What happens within the time. Being asked to leave is also remembered."""
        events: list[Event] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                events.append(self._events.get(timeout=left))
            except queue.Empty:
                break
        self._asked += sum(isinstance(event, Asked) for event in events)
        return events

    def _end_stages(self, grace_s: float) -> None:
        """Asks the stages to leave, and kills those that have not left in time or when we are asked again."""
        for stage in self._stages:
            stage.ask_to_leave()
        deadline, asked = time.monotonic() + grace_s, self._asked
        while any(stage.alive for stage in self._stages) and time.monotonic() < deadline and self._asked == asked:
            self._gather(_LOOK_UP_S)
        for stage in self._stages:
            stage.kill()
        self._stages = []

    def _leave(self) -> None:
        """The front end drains first, then the stages go; asked a second time, all go at once."""
        grace_s = self._group.engine.stop_timeout_s
        asked, told = self._asked, False
        if self._front is not None:
            self._front.ask_to_leave()
            deadline = time.monotonic() + self._front_end.drain_timeout_s + grace_s
            while self._front.alive and time.monotonic() < deadline and self._asked == asked:
                for event in self._gather(_LOOK_UP_S):
                    if isinstance(event, Exited) and event.child in self._stages and not told:
                        # Those in flight wait for a group that will not come back.
                        self._say_down(describe_exit(event.child.name, event.code), final=True)
                        told = True
        self._end_stages(grace_s if self._asked == asked else 0.0)

    def _say_down(self, reason: str, final: bool) -> None:
        self._to_front.send(msgspec.msgpack.encode(GroupDown(self._epoch, reason, final)))

    def _clean_up(self) -> None:
        self._end_stages(grace_s=0.0)
        if self._front is not None:
            self._front.kill()
        self._context.destroy(linger=100)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._trace is not None:
            count = merge_traces(find_parts(self._trace), self._trace)
            _remove_parts(self._trace)
            self._console.say(f"{count:,} trace events written to {self._trace} (open it in ui.perfetto.dev)")


def _remove_parts(trace: Path) -> None:
    for part in find_parts(trace):
        part.unlink(missing_ok=True)


def serve(group: GroupSettings, front_end: FrontEndLaunch) -> int:
    """Runs the whole server until it is asked to leave; returns the exit status."""
    return Supervisor(group, front_end).run()
