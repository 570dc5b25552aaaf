"""What the trace of a real run shows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import SMALL_CACHE, SubjectOf
from .harness import Server

Event = dict


@pytest.fixture(scope="module")
def events(subject_of: SubjectOf, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The trace of one prompt of 15 waves through two stages."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    with Server(subject_of("kimi-KKKA").folder, 2, *SMALL_CACHE, "--trace", str(trace)) as server:
        server.release(server.prefill([7] * 950)["handle"])
        server.wait_until_idle()
        assert server.stop() == 0
    assert not list(Path(trace.parent).glob("*.rank*")), "the parts are joined and gone"
    return json.loads(trace.read_text())["traceEvents"]


def test_every_thread_of_every_rank_has_its_track(events: list[Event]) -> None:
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    seen = {(event["pid"], names[event["pid"], event["tid"]]) for event in events if event["ph"] == "X"}
    assert {(1, "WAVE"), (1, "LOOP"), (1, "SEND"), (2, "LOOP"), (2, "RECV")} <= seen


def test_chunks_of_one_request_are_computed_on_both_stages_at_once(events: list[Event]) -> None:
    forwards = [event for event in events if event["name"] == "forward"]
    first, second = ([f for f in forwards if f["pid"] == pid] for pid in (1, 2))
    assert [f["args"]["wave"] for f in first] == [f["args"]["wave"] for f in second] == list(range(15))
    together = [
        (early["args"]["wave"], late["args"]["wave"])
        for late in second
        for early in first
        if early["ts"] < late["ts"] + late["dur"] and late["ts"] < early["ts"] + early["dur"]
    ]
    assert together, "the stages took turns"
    assert all(on_first > on_second for on_first, on_second in together)


def test_a_stage_runs_its_waves_one_after_the_other(events: list[Event]) -> None:
    for pid in (1, 2):
        forwards = [event for event in events if event["name"] == "forward" and event["pid"] == pid]
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(forwards))
