"""Where the time goes: Chrome trace events, one part file a process, joined for Perfetto."""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from zlib import crc32

import msgspec

_log = logging.getLogger(__name__)

_NS_PER_US = 1_000
_TRACKS_PER_PROCESS = 100_000


class NullSpan:
    """A span that is recorded nowhere."""

    def set(self, /, **args: Any) -> None:
        """Adds what became known on the way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Ends the span."""


class Tracer(Protocol):
    """What the threads of a process tell of themselves. Any thread may call anything; a thread's events go to the
    track of the thread's name, so that two threads of one name share a track and must not nest across each other."""

    enabled: bool

    def now(self) -> int:
        """The trace's clock, in nanoseconds."""
        ...

    def name_track(self, name: str) -> None:
        """Gives the calling thread's track another name than the thread's."""
        ...

    def span(self, name: str, /, **args: Any) -> NullSpan:
        """A context manager around what the calling thread does; spans of a thread nest. An exception that passes
        through is noted in the span as `error`."""
        ...

    def record(self, name: str, start_ns: int, end_ns: int, /, track: str | None = None, **args: Any) -> None:
        """A stretch that was timed elsewhere, by `now`; on the calling thread's track or on one named `track`."""
        ...

    def instant(self, name: str, /, **args: Any) -> None:
        """A moment on the calling thread's track."""
        ...

    def counter(self, name: str, /, **values: float) -> None:
        """One or more numbers over time, drawn together on a track of the process."""
        ...

    def flush(self) -> None:
        """Writes, in the calling thread, what has gathered."""
        ...

    def close(self) -> None:
        """Writes what has gathered and ends; later events are dropped. Harmless when repeated."""
        ...


class NullTracer:
    """The tracer of a process that is not traced: takes everything, keeps nothing, costs a call."""

    enabled = False
    _span = NullSpan()

    def now(self) -> int:
        return 0

    def name_track(self, name: str) -> None:
        pass

    def span(self, name: str, /, **args: Any) -> NullSpan:
        return self._span

    def record(self, name: str, start_ns: int, end_ns: int, /, track: str | None = None, **args: Any) -> None:
        pass

    def instant(self, name: str, /, **args: Any) -> None:
        pass

    def counter(self, name: str, /, **values: float) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _FileSpan(NullSpan):
    def __init__(self, tracer: "FileTracer", name: str, args: dict[str, Any]) -> None:
        self._tracer = tracer
        self._name = name
        self._args = args
        self._start_ns = 0

    def set(self, /, **args: Any) -> None:
        self._args.update(args)

    def __enter__(self) -> Self:
        self._start_ns = self._tracer.now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._args.setdefault("error", kind.__name__)
        self._tracer.finish(self._name, self._start_ns, self._args)


class FileTracer:
    """Writes one process's events to its part file.

    The part is a JSON array without its closing bracket, one event a line, which viewers accept: it holds whatever
    had been flushed if the process is killed, and a process started again in its place goes on where that one ended.
    A thread of its own writes, at most `flush_interval_s` after an event or as soon as `flush_events` have gathered,
    and sleeps while there are none. When the disk fails, tracing ends with a warning and the process goes on.

    Times are nanoseconds since the Unix epoch on a clock that never goes back: the host's monotonic clock, which all
    of its processes share, moved by the wall clock's lead over it at the time of creation. They read as microseconds
    in the file, as the format has it."""

    enabled = True

    def __init__(
        self, part: Path, process: str, pid: int, flush_interval_s: float = 1.0, flush_events: int = 8_192
    ) -> None:
        """`process` names the process in the viewer, and `pid` tells it from the others of the same trace: any
        positive number, not necessarily the system's. Raises `OSError` when the part cannot be opened."""
        self._pid = pid
        self._lead_ns = _wall_clock_lead()
        self._flush_interval_s = flush_interval_s
        self._flush_events = flush_events
        self._events: deque[dict[str, Any]] = deque()
        self._tracks: dict[str, int] = {}
        self._local = threading.local()
        self._track_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._pending = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._fd = _open_part(part)
        self._metadata("process_name", pid, name=process)
        self._metadata("process_sort_index", pid, sort_index=pid)
        self._writer = threading.Thread(target=self._write_loop, name="TRACE", daemon=True)
        self._writer.start()

    def now(self) -> int:
        return time.monotonic_ns() + self._lead_ns

    def name_track(self, name: str) -> None:
        self._local.tid = self._track(name)

    def span(self, name: str, /, **args: Any) -> NullSpan:
        return _FileSpan(self, name, args)

    def record(self, name: str, start_ns: int, end_ns: int, /, track: str | None = None, **args: Any) -> None:
        tid = self._tid() if track is None else self._track(track)
        self._put(ph="X", name=name, ts=start_ns, dur=max(end_ns - start_ns, 0), tid=tid, args=args)

    def finish(self, name: str, start_ns: int, args: dict[str, Any]) -> None:
        """Ends here a span of the calling thread that began at `start_ns`; `args` now belongs to the tracer."""
        self._put(ph="X", name=name, ts=start_ns, dur=self.now() - start_ns, tid=self._tid(), args=args)

    def instant(self, name: str, /, **args: Any) -> None:
        self._put(ph="i", s="t", name=name, ts=self.now(), tid=self._tid(), args=args)

    def counter(self, name: str, /, **values: float) -> None:
        self._put(ph="C", name=name, ts=self.now(), tid=self._pid, args=values)

    def flush(self) -> None:
        with self._write_lock:
            lines: list[bytes] = []
            while self._events:
                lines.append(_encode(self._events.popleft()))
            if lines and self._fd >= 0:
                self._write(b"".join(lines))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._hurry.set()
        self._pending.set()
        self._writer.join()
        self.flush()
        with self._write_lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _tid(self) -> int:
        tid: int | None = getattr(self._local, "tid", None)
        if tid is None:
            tid = self._local.tid = self._track(threading.current_thread().name)
        return tid

    def _track(self, name: str) -> int:
        tid = self._tracks.get(name)
        if tid is None:
            with self._track_lock:
                tid = self._tracks.get(name)
                if tid is None:
                    tid = self._new_tid(name)
                    self._metadata("thread_name", tid, name=name)
                    self._tracks[name] = tid
        return tid

    def _new_tid(self, name: str) -> int:
        # By name, so that a process started again continues its tracks; and apart from those of other processes,
        # since some viewers tell threads apart by this number alone.
        offset = crc32(name.encode(errors="replace"))
        taken = set(self._tracks.values())
        while True:
            tid = self._pid * _TRACKS_PER_PROCESS + offset % _TRACKS_PER_PROCESS
            if tid not in taken:
                return tid
            offset += 1

    def _metadata(self, what: str, tid: int, **args: Any) -> None:
        self._put(ph="M", name=what, ts=self.now(), tid=tid, args=args)

    def _put(self, **event: Any) -> None:
        if self._closing or self._fd < 0:
            return
        event["pid"] = self._pid
        self._events.append(event)
        if not self._pending.is_set():
            self._pending.set()
        if len(self._events) >= self._flush_events:
            self._hurry.set()

    def _write_loop(self) -> None:
        while not self._closing:
            self._pending.wait()
            self._hurry.wait(self._flush_interval_s)
            # Cleared before the events are taken: one that comes in between is taken now or sets it again.
            self._hurry.clear()
            self._pending.clear()
            self.flush()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            _log.warning("tracing ends: the trace file cannot be written: %s", error)
            os.close(self._fd)
            self._fd = -1


def part_path(trace: Path, rank: int) -> Path:
    """The part file of a rank, beside the trace: `FILE.rankN`."""
    return trace.with_name(f"{trace.name}.rank{rank}")


def find_parts(trace: Path) -> list[Path]:
    """The part files that lie beside the trace, by rank. Whoever starts a new trace removes them first, or else it
    continues the old one."""
    ranks = [path.name.removeprefix(f"{trace.name}.rank") for path in trace.parent.glob(f"{trace.name}.rank*")]
    return [part_path(trace, rank) for rank in sorted(int(rank) for rank in ranks if rank.isdecimal())]


def open_tracer(trace: str | Path | None, rank: int) -> Tracer:
    """The tracer of a stage: to its part of `trace`, or to nowhere when there is none."""
    if trace is None:
        return NullTracer()
    return FileTracer(part_path(Path(trace), rank), process=f"rank {rank}", pid=rank + 1)


def merge_traces(parts: Iterable[Path], out: Path) -> int:
    """Joins part files to one JSON object in the Chrome trace format, and returns how many events it holds.

    Times count from the earliest event, whose own Unix time in nanoseconds is kept in `otherData.origin_unix_ns`.
    Lines that a killed process left torn are dropped. `out` appears whole or not at all. Raises `OSError`."""
    parts = list(parts)
    origin = min((event["ts"] for part in parts for event in _read_part(part)), default=Decimal(0))
    count = 0
    unfinished = out.with_name(f".{out.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "otherData": {"origin_unix_ns": ')
        file.write(f'{int(origin * _NS_PER_US)}}}, "traceEvents": [')
        for part in parts:
            for event in _read_part(part):
                # Counted from the origin, a float holds nanoseconds exactly for a hundred days.
                event["ts"] = float(event["ts"] - origin)
                file.write(",\n" if count else "\n")
                file.write(json.dumps(event, default=float))
                count += 1
        file.write("\n]}\n")
    unfinished.replace(out)
    return count


def _wall_clock_lead() -> int:
    """Nanoseconds that the wall clock is ahead of the monotonic one, from the tightest of a few readings."""
    readings: list[tuple[int, int]] = []
    for _ in range(8):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def _open_part(part: Path) -> int:
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size == 0:
        os.write(fd, b"[\n")
    elif os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd


def _encode(event: dict[str, Any]) -> bytes:
    for key in ("ts", "dur"):
        if key in event:
            whole, rest = divmod(event[key], _NS_PER_US)
            event[key] = msgspec.Raw(f"{whole}.{rest:03d}".encode())
    try:
        return msgspec.json.encode(event, enc_hook=str) + b",\n"
    except Exception:
        # What a caller hangs onto an event must never end the tracing of all others.
        event["name"] = ascii(event["name"])
        event["args"] = {"unreadable": True}
        return msgspec.json.encode(event) + b",\n"


def _read_part(part: Path) -> Iterator[dict[str, Any]]:
    with part.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line.rstrip().removesuffix(","), parse_float=Decimal)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("ts"), Decimal):
                yield event
