"""A child is heard and its end is seen, whatever becomes of those who listen to us."""

import os
import queue
import sys

import pytest
from wavepp.engine.child import Child, Event, Exited, Said, describe_exit
from wavepp.engine.status import Broken, say


def started(code: str) -> tuple[Child, queue.SimpleQueue[Event]]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    return Child("child", [sys.executable, "-c", code], {}, events), events


def test_status_lines_are_events_and_other_output_is_passed_on(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    child, events = started(
        "print('hello'); from wavepp.engine.status import *; say(Broken(3, 'no reason')); raise SystemExit(4)"
    )
    said, exited = events.get(timeout=30), events.get(timeout=30)
    assert isinstance(said, Said) and said.status == Broken(3, "no reason")
    assert exited == Exited(child, 4)
    assert b"hello" in capfdbinary.readouterr().err
    child.kill()


def test_its_end_is_seen_though_nobody_reads_our_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        child, events = started("print('hello', flush=True); raise SystemExit(3)")
        assert events.get(timeout=30) == Exited(child, 3)
        child.kill()
        monkeypatch.undo()
        # What it buffered goes nowhere; closing must not try again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())


def test_it_ends_when_its_lifeline_does() -> None:
    code = "from wavepp.engine.lifeline import *; leave_with_parent(); import time; time.sleep(60)"
    child, events = started(code)
    stdin = child._process.stdin
    assert stdin is not None
    stdin.close()
    assert events.get(timeout=30) == Exited(child, 1)


def test_how_a_child_ended_is_said_in_words() -> None:
    assert describe_exit("stage 1", -9) == "stage 1 was killed by SIGKILL"
    assert describe_exit("stage 1", 1) == "stage 1 left with status 1"


def test_a_status_line_is_no_error_when_the_supervisor_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        say(Broken(0, "nobody hears this"))
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())
