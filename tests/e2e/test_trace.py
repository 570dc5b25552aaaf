"""What the trace of a real run shows."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import SMALL_CACHE, SubjectOf
from .harness import Server

Event = dict


HOST = ("--host-pages", "40", "--host-slots", "20")
WAVES = 15
"""Of the first prompt, which is alone; those that follow it are admitted while others run."""


@pytest.fixture(scope="module")
def events(subject_of: SubjectOf, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The trace of two stages that compute one prompt, and then a crowd of which four may run at once."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    flags = (*SMALL_CACHE, "--num-pages", "200", "--num-slots", "60", *HOST, "--max-batch", "4", "--trace", str(trace))
    crowd = [[first] * (300 + 10 * first) for first in range(10, 30)]
    with Server(subject_of("kimi-KKKA").folder, 2, *flags) as server:
        server.release(server.prefill([7] * 950)["handle"])
        server.wait_until_idle()
        with ThreadPoolExecutor(len(crowd)) as pool:
            list(pool.map(lambda prompt: server.release(server.prefill(prompt)["handle"]), crowd))
        server.wait_until_idle()
        assert server.stop() == 0
    assert not list(Path(trace.parent).glob("*.rank*")), "the parts are joined and gone"
    return json.loads(trace.read_text())["traceEvents"]


def tracks(events: list[Event]) -> dict[tuple[int, int], str]:
    """Thread names by process and track."""
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}


def named(events: list[Event], name: str, pid: int) -> list[Event]:
    return [event for event in events if event["name"] == name and event["pid"] == pid and event["ph"] == "X"]


def overlap(one: Event, other: Event) -> bool:
    return one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"]


def test_every_thread_of_every_rank_has_its_track(events: list[Event]) -> None:
    names = tracks(events)
    seen = {(event["pid"], names[event["pid"], event["tid"]]) for event in events if event["ph"] == "X"}
    assert {(1, "WAVE"), (1, "LOOP"), (1, "SEND"), (2, "WAVE"), (2, "LOOP"), (2, "RECV")} <= seen


def test_what_a_thread_does_is_on_its_own_track(events: list[Event]) -> None:
    names = tracks(events)
    owners = {"round": "WAVE", "install": "WAVE", "materialise": "LOOP", "offload": "LOOP", "forward": "LOOP"}
    for name, owner in owners.items():
        for pid in (1, 2):
            found = named(events, name, pid)
            assert found, f"rank {pid - 1} never traced {name}"
            assert {names[event["pid"], event["tid"]] for event in found} == {owner}


@pytest.mark.parametrize("pid", [1, 2])
@pytest.mark.parametrize("name", ["round", "install"])
def test_requests_are_admitted_while_the_same_rank_computes(events: list[Event], pid: int, name: str) -> None:
    forwards = named(events, "forward", pid)
    assert any(overlap(one, forward) for one in named(events, name, pid) for forward in forwards)


def test_chunks_of_one_request_are_computed_on_both_stages_at_once(events: list[Event]) -> None:
    first, second = ([f for f in named(events, "forward", pid) if f["args"]["wave"] < WAVES] for pid in (1, 2))
    assert [f["args"]["wave"] for f in first] == [f["args"]["wave"] for f in second] == list(range(WAVES))
    together = [
        (early["args"]["wave"], late["args"]["wave"]) for late in second for early in first if overlap(early, late)
    ]
    assert together, "the stages took turns"
    assert all(on_first > on_second for on_first, on_second in together)


def test_a_stage_runs_its_waves_one_after_the_other(events: list[Event]) -> None:
    for pid in (1, 2):
        forwards = named(events, "forward", pid)
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(forwards))
