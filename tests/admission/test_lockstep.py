"""Lockstep admission before scripted ranks: two walks, one request at a time, first come, first served."""

from __future__ import annotations

import pytest
from wavepp.admission.effects import Reuse
from wavepp.admission.messages import BLOCKED, Cancel, Install, Probe, Trim, Verdict, Vote
from wavepp.admission.request import Request

from .scripted import BLOCK, Script, VoteOf, committed, refused, short

K = 1024


def lockstep(ranks: int = 2, **options: object) -> Script:
    return Script(ranks, admission="lockstep", **options)  # pyright: ignore[reportArgumentType]


def resumes_at(script: Script, number: int, *positions: int) -> None:
    def vote(request: Request, ask: Install | Trim) -> Vote:
        asked = committed(ask).asked
        reached = max((position for position in positions if position <= asked), default=0)
        return committed(ask) if reached == asked else short(ask, reached, "recurrent")

    script.ranks[number].hint = lambda request: (max(positions), "recurrent")
    script.ranks[number].vote = vote


def no_room_for(name: str, *, times: int = 10**9, reason: str = "attention") -> VoteOf:
    left = [times]

    def vote(request: Request, ask: Install | Trim) -> Vote | None:
        if request.name != name or not left[0]:
            return None
        left[0] -= 1
        return refused(ask, reason)

    return vote


def test_one_request_takes_two_walks_and_three_rounds() -> None:
    script = lockstep()
    script.submit("a", range(9))
    script.rounds()
    assert [(len(d.announces), len(d.probes), len(d.installs), len(d.verdicts)) for d in script.sent] == [
        (1, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
    ]


def test_requests_are_admitted_one_after_the_other() -> None:
    script = lockstep()
    for number in range(3):
        script.submit(f"r{number}", range(30))
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]
    asked = [[message.request for message in (*down.probes, *down.installs)] for down in script.sent]
    assert asked == [[1], [1], [2], [2], [3], [3], []]


def test_the_candidate_is_the_least_of_the_hints_and_named() -> None:
    script = lockstep()
    script.ranks[0].hint = lambda request: (7 * BLOCK, "attention")
    script.ranks[1].hint = lambda request: (6 * BLOCK, "recurrent")
    script.submit("a", range(33))
    script.rounds()
    script.finish("a")
    assert [install.candidate for install in script.installs] == [24]
    assert script.completed["a"].reuse == Reuse(24, 24, 24, "rank 1: recurrent")


def test_ranks_that_fall_short_are_reconciled_from_80k_over_72k_to_64k() -> None:
    script = lockstep(block=K)
    resumes_at(script, 0, 64 * K, 72 * K, 90 * K)
    resumes_at(script, 1, 64 * K, 80 * K)
    script.submit("a", range(100 * K))
    script.rounds()
    assert [install.candidate for install in script.installs] == [80 * K, 72 * K, 64 * K]
    assert (script.admitted["a"].attempt, script.admitted["a"].endpoint) == (3, 64 * K)
    script.finish("a")
    assert script.completed["a"].reuse == Reuse(80 * K, 72 * K, 64 * K, "rank 1: recurrent")


def test_what_was_only_prepared_is_released_too() -> None:
    script = lockstep()
    for number in range(2):
        resumes_at(script, number, 16)
        script.ranks[number].hint = lambda request: 24
    script.submit("a", range(40))
    script.rounds()
    said = script.said("a")
    assert Verdict(1, 1, 0, False) in said and not any(isinstance(message, Trim) for message in said)
    assert script.admitted["a"].endpoint == 16


def test_nobody_passes_a_head_that_waits_for_room_and_it_is_tried_again_only_when_that_rank_has_grown() -> None:
    script = lockstep()
    script.submit("holder", range(24))
    script.rounds()
    script.ranks[0].vote = no_room_for("large", times=1)
    script.submit("large", range(100, 132))
    script.submit("small", range(200, 204))
    script.rounds()
    assert (script.leader.queued, list(script.admitted)) == (2, ["holder"])
    script.grow(1)
    assert script.rounds() == 0
    script.grow(0)
    script.rounds()
    assert list(script.admitted) == ["holder", "large", "small"]


@pytest.mark.parametrize("end", ["finish", "cancel", "release", "expire", "seal"])
def test_a_head_that_waits_is_tried_again_when_something_has_ended(end: str) -> None:
    script = lockstep()
    script.submit("holder", range(24), ttl_s=5.0)
    script.rounds()
    if end in ("release", "expire", "seal"):
        script.finish("holder")
        script.rounds()
    script.ranks[0].vote = no_room_for("large", times=1)
    script.submit("large", range(100, 132))
    script.rounds()
    assert "large" not in script.admitted
    match end:
        case "finish":
            script.token("holder")
        case "cancel":
            script.cancel("holder")
            script.stopped("holder")
        case "release":
            script.release("holder")
        case "expire":
            script.pass_time(5.0)
        case "seal":
            script.publish("holder", 24)
    script.rounds()
    assert "large" in script.admitted


def test_a_head_that_was_only_blocked_is_tried_again_at_once() -> None:
    script = lockstep()
    script.ranks[0].vote = no_room_for("a", times=1, reason=BLOCKED)
    script.submit("a", range(30))
    script.rounds()
    assert "a" in script.admitted


def test_a_cancelled_head_lets_the_next_one_go() -> None:
    script = lockstep()
    script.ranks[0].vote = no_room_for("large")
    script.submit("large", range(100, 132))
    script.submit("small", range(200, 204))
    script.rounds()
    script.cancel("large")
    script.rounds()
    assert list(script.admitted) == ["small"]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3], ids=["unannounced", "probing", "deciding", "installing"])
def test_cancelled_while_its_admission_is_under_way(rounds: int) -> None:
    script = lockstep()
    script.submit("a", range(30))
    heard = {0: [], 1: [1], 2: [2], 3: [2, 1]}[rounds]
    for ranks in heard:
        script.broadcast()
        for rank in script.ranks[:ranks]:
            script.hear(rank.answer())
    script.cancel("a")
    script.submit("b", range(100, 130))
    while script.broadcast() is not None:
        for rank in script.ranks:
            while rank.rounds:
                script.hear(rank.answer())
    assert list(script.admitted) == ["b"] and list(script.ended) == ["a"]
    if rounds == 0:
        assert not any(down.cancels for down in script.sent)
        return
    released = [Install(1, 1, 0, ()), Verdict(1, 1, 0, False)] if rounds == 3 else []
    assert script.said("a") == [Probe(1, 1), *released, Cancel(1, -1, "handle-a")]


def test_max_batch_bounds_what_is_admitted_and_not_finished() -> None:
    script = lockstep(max_batch=2)
    for number in range(4):
        script.submit(f"r{number}", range(100 * number, 100 * number + 9))
    script.rounds()
    assert (script.leader.running, script.leader.queued) == (2, 2)
    script.finish("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]


def test_nothing_is_repeated_while_ranks_are_in_their_waves() -> None:
    script = lockstep()
    script.submit("a", range(30))
    script.broadcast()
    script.pass_time(5.0)
    assert script.broadcast() is None
    assert script.leader.next_deadline() == 30.0


def test_snapshots_are_planned_within_half_of_the_fewest_slots() -> None:
    script = lockstep(windows=[("recurrent",), ("attention", "recurrent")], slots=6, snapshot_interval=4)
    script.submit("a", range(64))
    script.rounds()
    assert script.installs[0].snapshots == (32, 60)
    plain = lockstep(snapshot_interval=4)
    plain.submit("a", range(64))
    plain.rounds()
    assert plain.installs[0].snapshots == ()


def test_the_smallest_recurrent_window_leaves_room_for_what_it_resumes_from() -> None:
    script = lockstep(windows=[("recurrent",)], slots=2, snapshot_interval=4)
    script.submit("cold", range(30))
    script.rounds()
    script.ranks[0].hint = lambda request: 28
    script.submit("warm", range(30))
    script.rounds()
    assert [(install.candidate, install.snapshots) for install in script.installs] == [(0, (28,)), (28, ())]
