"""Requests that wait for another one which is computing their prefix."""

from __future__ import annotations

import pytest
from wavepp.admission.messages import Cancel, Probe
from wavepp.admission.request import Request

from .scripted import BLOCK, Script, committed, refused, short

SHARED = range(32)
"""Eight blocks."""


class Published:
    """Hints as they are when these requests have published so much of the shared prefix on every rank."""

    def __init__(self, script: Script) -> None:
        self.tokens = 0
        for rank in script.ranks:
            rank.hint = self.hint

    def hint(self, request: Request) -> int:
        return min(self.tokens, 32, (request.num_tokens - 1) // BLOCK * BLOCK)


def cold(names: int, own: int = 8, **config: float | str) -> tuple[Script, Published]:
    script = Script(**config)  # pyright: ignore[reportArgumentType]
    published = Published(script)
    for number in range(names):
        script.submit(f"r{number}", [*SHARED, *range(1000 * (number + 1), 1000 * (number + 1) + own)])
    return script, published


def test_of_sixteen_with_one_cold_prefix_exactly_one_computes_it_and_a_stranger_goes_at_once() -> None:
    script, published = cold(16)
    script.submit("stranger", range(500, 540))
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger"]
    published.tokens = 16
    script.publish("r0", 16)
    assert script.rounds() == 0, "half of it is not worth a round"
    published.tokens = 32
    script.publish("r0", 32)
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger", *[f"r{number}" for number in range(1, 16)]]
    assert [install.candidate for install in script.installs] == [0, 0] + 15 * [32]
    assert len(script.said("r7")) == 4, "probed once when it came, and once afresh"


def test_all_that_are_let_go_are_probed_and_installed_together() -> None:
    script, published = cold(16)
    script.rounds()
    published.tokens = 32
    script.publish("r0", 32)
    before = len(script.sent)
    script.rounds()
    said = script.sent[before:]
    assert [(len(down.probes), len(down.installs)) for down in said] == [(15, 0), (0, 15), (0, 0)]


def test_the_wait_is_told_when_the_request_has_finished() -> None:
    script, published = cold(2)
    script.rounds()
    script.pass_time(3.0)
    published.tokens = 32
    script.publish("r0", 40)
    script.rounds()
    script.finish("r1")
    reuse = script.completed["r1"].reuse
    assert (reuse.hinted, reuse.endpoint, reuse.held_s) == (32, 32, 3.0)
    assert script.completed["r1"].queue_s == 3.0


def test_two_identical_prompts_at_once() -> None:
    script, published = cold(0)
    for name in ("first", "second"):
        script.submit(name, SHARED)
    script.rounds()
    assert list(script.admitted) == ["first"]
    script.publish("first", 24)
    script.rounds()
    assert "second" not in script.admitted, "28 of its 32 tokens may be reused"
    published.tokens = 32
    script.finish("first")
    script.rounds()
    assert script.admitted["second"].endpoint == 28


@pytest.mark.parametrize("end", ["cancelled", "stopped", "failed"])
def test_those_that_are_held_go_when_the_one_they_wait_for_publishes_no_more(end: str) -> None:
    script, published = cold(3)
    script.rounds()
    published.tokens = 8
    script.publish("r0", 8)
    if end == "failed":
        script.token("r0", error="no token")
    else:
        script.cancel("r0")
    if end == "stopped":
        script.stopped("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1"]
    assert script.admitted["r1"].endpoint == 8
    published.tokens = 32
    script.finish("r1")
    script.rounds()
    assert script.admitted["r2"].endpoint == 32


def test_those_that_are_held_go_when_the_one_they_wait_for_is_cancelled_before_it_is_admitted() -> None:
    script, _ = cold(2)
    script.step()
    script.broadcast()  # r0 is being installed, and r1 held.
    script.cancel("r0")
    while script.step():
        pass
    assert list(script.admitted) == ["r1"]


def test_those_that_are_held_line_up_behind_the_one_they_wait_for_when_it_is_turned_away() -> None:
    script, published = cold(3)
    script.ranks[0].vote = lambda request, ask: refused(ask, "attention") if ask.attempt == 1 else None
    script.rounds()
    assert not script.admitted and script.leader.queued == 3
    script.grow(0)
    script.rounds()
    assert list(script.admitted) == ["r0"]
    published.tokens = 32
    script.finish("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]


def test_a_held_request_may_be_cancelled() -> None:
    script, published = cold(3)
    script.rounds()
    script.cancel("r1")
    published.tokens = 32
    script.publish("r0", 32)
    script.rounds()
    assert list(script.admitted) == ["r0", "r2"] and list(script.ended) == ["r1"]
    assert script.said("r1") == [Probe(2, 0), Cancel(2, -1, "handle-r1")]


def test_patience_ends_after_herd_wait_s_and_does_not_begin_anew() -> None:
    script, _ = cold(3, herd_wait_s=5.0)
    script.rounds()
    script.pass_time(2.0)
    script.cancel("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1"], "r2 waits for r1 now"
    assert script.leader.next_deadline() is not None
    script.pass_time(2.9)
    script.rounds()
    assert "r2" not in script.admitted
    script.pass_time(0.1)
    script.rounds()
    assert "r2" in script.admitted
    script.finish("r2")
    assert script.completed["r2"].reuse.held_s == pytest.approx(5.0)


def test_the_leader_wakes_when_patience_ends() -> None:
    script, _ = cold(2, herd_wait_s=0.5, round_interval_s=1.0)
    script.rounds()
    assert script.leader.next_deadline() == 0.5


def test_without_herd_wait_s_nobody_waits() -> None:
    script, _ = cold(4, herd_wait_s=0.0)
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2", "r3"]


def test_less_than_herd_min_tokens_is_not_worth_waiting_for() -> None:
    script, _ = cold(2, herd_min_tokens=33)
    script.rounds()
    assert list(script.admitted) == ["r0", "r1"]
    script, _ = cold(2, herd_min_tokens=32)
    script.rounds()
    assert list(script.admitted) == ["r0"]


def test_a_chain_of_waits_ends_from_its_front() -> None:
    # b shares 4 blocks with a; c shares those, and 4 more with b.
    script = Script()
    published = Published(script)
    script.submit("a", [*range(16), *range(100, 140)])
    script.submit("b", range(40))
    script.submit("c", [*range(32), *range(300, 340)])
    script.rounds()
    assert list(script.admitted) == ["a"]
    published.tokens = 16
    script.publish("a", 16)
    script.rounds()
    assert list(script.admitted) == ["a", "b"], "c waits for what b computes"
    assert script.admitted["b"].endpoint == 16
    published.tokens = 32
    script.publish("b", 32)
    script.rounds()
    assert script.admitted["c"].endpoint == 32


def test_the_middle_of_a_chain_may_be_cancelled() -> None:
    script = Script()
    published = Published(script)
    script.submit("a", [*range(16), *range(100, 140)])
    script.submit("b", range(40))
    script.submit("c", [*range(32), *range(300, 340)])
    script.rounds()
    script.cancel("b")
    published.tokens = 16
    script.publish("a", 16)
    script.rounds()
    assert script.admitted["c"].endpoint == 16


def test_what_is_reused_already_is_not_waited_for() -> None:
    script = Script()
    Published(script).tokens = 32
    for number in range(3):
        script.submit(f"r{number}", [*SHARED, *range(1000 * (number + 1), 1000 * (number + 1) + 8)])
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]


def test_where_state_is_recurrent_only_planned_snapshots_are_waited_for() -> None:
    windows = [("attention",), ("recurrent",)]
    script = Script(windows=windows, snapshot_interval=16)
    script.submit("a", range(60))
    script.submit("few", [*range(12), *range(100, 140)])
    script.submit("more", [*range(24), *range(200, 240)])
    script.rounds()
    assert script.installs[0].snapshots == (12, 16, 24, 32, 48, 56), "the others leave it after 12 and 24 tokens"
    assert list(script.admitted) == ["a"]
    for rank in script.ranks:
        rank.hint = lambda request: 12
    script.publish("a", 12)
    script.rounds()
    assert list(script.admitted) == ["a", "few"]
    no_forks = Script(windows=windows, snapshot_interval=16, fork_memory_blocks=0)
    no_forks.submit("a", range(60))
    no_forks.submit("few", [*range(12), *range(100, 140)])
    no_forks.submit("more", [*range(24), *range(200, 240)])
    no_forks.rounds()
    assert list(no_forks.admitted) == ["a", "few"], "nothing of use to it would be captured"
    for rank in no_forks.ranks:
        rank.hint = lambda request: 16
    no_forks.publish("a", 16)
    no_forks.rounds()
    assert no_forks.admitted["more"].endpoint == 16


def test_a_new_plan_of_the_one_that_is_waited_for_is_looked_at_again() -> None:
    script = Script(windows=[("attention", "recurrent")] * 2, snapshot_interval=16)
    for rank in script.ranks:
        rank.hint = lambda request: 16 if request.name == "a" else 0
    script.ranks[0].vote = lambda request, ask: short(ask, 0) if committed(ask).asked == 16 else None
    script.submit("a", range(60))
    script.submit("b", [*range(40), *range(200, 240)])
    script.step()
    script.step()
    assert not script.admitted, "a was lowered, and b let go"
    script.rounds()
    assert list(script.admitted) == ["a"], "and held again"
    script.publish("a", 60)
    script.rounds()
    assert list(script.admitted) == ["a", "b"]


def test_a_first_token_before_the_last_publication_frees_those_that_wait() -> None:
    script, published = cold(2)
    script.rounds()
    published.tokens = 32
    script.token("r0")
    script.rounds()
    assert script.admitted["r1"].endpoint == 32


def test_a_held_request_does_not_count_against_the_batch() -> None:
    script, _ = cold(6, max_batch=2)
    script.submit("stranger", range(500, 540))
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger"]


def test_those_that_are_let_go_while_the_batch_is_full_go_before_those_that_came_later() -> None:
    script, published = cold(2, max_batch=2)
    for number in range(2):
        script.submit(f"stranger{number}", range(500 * (number + 1), 500 * (number + 1) + 40))
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger0"]
    published.tokens = 32
    script.publish("r0", 32)
    script.pass_time(4.0)
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger0"]
    script.finish("stranger0")
    script.rounds()
    assert list(script.admitted) == ["r0", "stranger0", "r1"]
    script.finish("r1")
    assert script.completed["r1"].reuse.held_s == 0.0, "it was held until r0 had published, which took no time"


def test_one_that_was_let_go_may_be_cancelled_before_its_turn() -> None:
    script, published = cold(3, max_batch=1)
    script.rounds()
    published.tokens = 32
    script.publish("r0", 32)
    script.cancel("r1")
    script.finish("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r2"]
