"""Traces: what the viewer would read."""

import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from wavepp.engine.trace import FileTracer, NullTracer, find_parts, merge_traces, open_tracer, part_path

NEVER = 3_600.0


def merged(trace: Path) -> list[dict[str, Any]]:
    count = merge_traces(find_parts(trace), trace)
    events = json.loads(trace.read_text())["traceEvents"]
    assert len(events) == count
    return events


def named(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (event,) = [event for event in events if event["name"] == name]
    return event


def track_names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def process_names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def test_spans_nest_within_their_thread(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    tracer = open_tracer(trace, rank=0)
    with tracer.span("outer", wave=3), tracer.span("inner") as inner:
        tracer.instant("moment", name="allowed", track="too")
        inner.set(tokens=64)
    tracer.close()
    events = merged(trace)
    outer, inner, moment = (named(events, name) for name in ("outer", "inner", "moment"))
    assert outer["ts"] <= inner["ts"] <= moment["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert outer["tid"] == inner["tid"] == moment["tid"]
    assert (outer["ph"], moment["ph"]) == ("X", "i")
    assert (outer["args"], inner["args"]) == ({"wave": 3}, {"tokens": 64})
    assert moment["args"] == {"name": "allowed", "track": "too"}


def test_an_exception_ends_the_span_and_goes_on(tmp_path: Path) -> None:
    tracer = open_tracer(tmp_path / "t.json", rank=0)
    with pytest.raises(KeyError), tracer.span("failing"):
        raise KeyError("gone")
    tracer.close()
    assert named(merged(tmp_path / "t.json"), "failing")["args"] == {"error": "KeyError"}


def test_every_thread_has_its_own_named_track(tmp_path: Path) -> None:
    tracer = open_tracer(tmp_path / "t.json", rank=0)

    def work(number: int) -> None:
        for _ in range(200):
            with tracer.span(f"work {number}", number=number):
                pass

    threads = [threading.Thread(target=work, args=(n,), name=f"T{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracer.name_track("mine")
    tracer.instant("here")
    tracer.record("elsewhere", tracer.now() - 5_000, tracer.now(), track="DEVICE", wave=1)
    tracer.close()
    events = merged(tmp_path / "t.json")
    names = track_names(events)
    work_events = [e for e in events if e["name"].startswith("work")]
    assert len(work_events) == 800
    assert all(names[e["pid"], e["tid"]] == f"T{e['args']['number']}" for e in work_events)
    assert names[1, named(events, "here")["tid"]] == "mine"
    assert names[1, named(events, "elsewhere")["tid"]] == "DEVICE"
    assert named(events, "elsewhere")["dur"] >= 5.0


def _trace_in_child(trace: Path, rank: int) -> None:
    tracer = open_tracer(trace, rank)
    with tracer.span(f"child {rank}"):
        tracer.counter("ring", waves=rank)
    tracer.close()


def test_processes_line_up_on_one_clock(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    parent = open_tracer(trace, rank=0)
    spawn = multiprocessing.get_context("spawn")
    with parent.span("around"):
        for rank in (1, 10):
            child = spawn.Process(target=_trace_in_child, args=(trace, rank))
            child.start()
            child.join()
            assert child.exitcode == 0
    parent.close()
    assert find_parts(trace) == [part_path(trace, rank) for rank in (0, 1, 10)]
    events = merged(trace)
    assert process_names(events) == {1: "rank 0", 2: "rank 1", 11: "rank 10"}
    assert len(track_names(events)) == len({tid for _, tid in track_names(events)}) == 3
    around, first, second = named(events, "around"), named(events, "child 1"), named(events, "child 10")
    assert around["ts"] <= first["ts"] <= first["ts"] + first["dur"] <= second["ts"]
    assert second["ts"] + second["dur"] <= around["ts"] + around["dur"]
    assert {e["args"]["waves"] for e in events if e["ph"] == "C"} == {1, 10}
    assert min(e["ts"] for e in events) == 0


def _die_in_the_middle(part: Path) -> None:
    tracer = FileTracer(part, "rank 0", 1, flush_interval_s=NEVER)
    tracer.instant("kept")
    tracer.flush()
    tracer.instant("lost")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_flushed_outlives_a_kill_and_the_next_process_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    child = multiprocessing.get_context("spawn").Process(target=_die_in_the_middle, args=(part_path(trace, 0),))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    with part_path(trace, 0).open("ab") as part:
        part.write(b'{"ph":"i","name":"torn","ts":17')
    again = open_tracer(trace, rank=0)
    again.instant("after")
    again.close()
    with part_path(trace, 0).open("ab") as part:
        part.write(b'{"ph":"i","name":"torn too \xe2\x82')
    names = [e["name"] for e in merged(trace)]
    assert "kept" in names
    assert "after" in names
    assert not {"lost", "torn", "torn too "} & set(names)


def test_the_tracks_of_a_restarted_process_are_the_same(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    for names in (("WAVE", "LOOP"), ("LOOP", "TRANSFER", "WAVE")):
        tracer = open_tracer(trace, rank=2)
        for name in names:
            tracer.record("event", tracer.now(), tracer.now(), track=name)
        tracer.close()
    pairs = {(e["tid"], e["args"]["name"]) for e in merged(trace) if e["name"] == "thread_name"}
    assert sorted(name for _, name in pairs) == ["LOOP", "TRANSFER", "WAVE"]
    assert len({tid for tid, _ in pairs}) == 3


def test_a_part_alone_is_the_array_that_viewers_close_themselves(tmp_path: Path) -> None:
    tracer = open_tracer(tmp_path / "t.json", rank=0)
    tracer.instant("x")
    tracer.close()
    text = part_path(tmp_path / "t.json", 0).read_text()
    assert [e["name"] for e in json.loads(text.rstrip().removesuffix(",") + "]")][-1] == "x"


def test_it_writes_by_itself_when_enough_has_gathered(tmp_path: Path) -> None:
    written = threading.Event()

    class Watched(FileTracer):
        def flush(self) -> None:
            super().flush()
            written.set()

    tracer = Watched(tmp_path / "part", "p", 1, flush_interval_s=NEVER, flush_events=10)
    for number in range(9):
        tracer.instant("x", number=number)
    assert written.wait(timeout=60)
    assert '"number"' in (tmp_path / "part").read_text()
    tracer.instant("x", number=9)
    tracer.close()
    assert (tmp_path / "part").read_text().count('"number"') == 10


def test_nothing_is_kept_after_closing(tmp_path: Path) -> None:
    tracer = open_tracer(tmp_path / "t.json", rank=0)
    tracer.instant("before")
    tracer.close()
    tracer.instant("after")
    tracer.close()
    assert [e["name"] for e in merged(tmp_path / "t.json")][-1] == "before"


def test_odd_arguments_spoil_no_other_event(tmp_path: Path) -> None:
    tracer = open_tracer(tmp_path / "t.json", rank=0)
    tracer.instant("odd", path=Path("/x"), nan=float("nan"), big=2**80, text='quote" \n line', kept=True)
    tracer.instant("surrogate \ud800", bad={1: "\ud800"})
    tracer.instant("after")
    tracer.close()
    events = merged(tmp_path / "t.json")
    assert named(events, "after")
    odd = [e for e in events if e["name"] == "odd"]
    assert len(odd) == 1
    assert sum(e["name"].startswith(("surrogate", "'surrogate")) for e in events) == 1


def test_a_full_disk_ends_the_trace_and_not_the_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = tmp_path / "part"
    part.symlink_to("/dev/full")
    with pytest.raises(OSError):
        FileTracer(part, "p", 1)
    part.unlink()
    tracer = FileTracer(part, "p", 1, flush_interval_s=NEVER)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, tracer._fd)
    os.close(full)
    tracer.instant("x")
    tracer.flush()
    tracer.instant("y")
    tracer.close()
    assert "tracing ends" in caplog.text


def test_no_parts_make_an_empty_trace(tmp_path: Path) -> None:
    assert merged(tmp_path / "t.json") == []


def test_the_null_tracer_takes_everything_and_writes_nothing(tmp_path: Path) -> None:
    tracer = open_tracer(None, rank=0)
    assert isinstance(tracer, NullTracer)
    with tracer.span("x", name="y") as span:
        span.set(z=1)
    tracer.record("x", 0, tracer.now(), track="t")
    tracer.instant("x", name="y")
    tracer.counter("x", v=1)
    tracer.name_track("t")
    tracer.flush()
    tracer.close()
    assert not tracer.enabled
    assert list(tmp_path.iterdir()) == []
