"""Who is admitted first, under either policy, when requests have priorities and deadlines."""

from __future__ import annotations

from collections.abc import Container, Sequence

import pytest
from wavepp.admission.messages import Install, Probe, Verdict

from .scripted import Rank, Script, committed, refused, short

BOTH = pytest.mark.parametrize("admission", ["lease", "lockstep"])
Wish = tuple[str, int, float | None]


def prompt_of(number: int, length: int = 30) -> range:
    return range(1000 * number, 1000 * number + length)


def occupied(admission: str, **options: float) -> Script:
    """One request at a time may run, and does."""
    script = Script(admission=admission, max_batch=1, **options)  # pyright: ignore[reportArgumentType]
    script.submit("occupier", range(500_000, 500_030))
    script.rounds()
    assert list(script.admitted) == ["occupier"]
    return script


def serve(script: Script, wishes: Sequence[Wish]) -> list[str]:
    """Submits all, and then lets one finish after the other; the order in which they were admitted."""
    for number, (name, priority, deadline) in enumerate(wishes):
        script.submit(name, prompt_of(number), priority=priority, deadline=deadline)
        script.rounds()
    for served in range(len(wishes)):
        script.finish(list(script.admitted)[served])
        script.rounds()
    return list(script.admitted)[1:]


def no_room_for(names: Container[str], rank: Rank) -> None:
    """The rank refuses these, for as long as they are among the names."""
    rank.vote = lambda request, ask: refused(ask, "attention") if request.name in names else None


@BOTH
def test_by_priority_then_deadline_then_arrival(admission: str) -> None:
    wishes = [
        ("plain", 0, None),
        ("late", 0, 9.0),
        ("low", 4, 1.0),
        ("soon", 0, 5.0),
        ("urgent", -1, None),
        ("lost", 0, 0.0),
        ("also plain", 0, None),
    ]
    assert serve(occupied(admission), wishes) == ["urgent", "soon", "late", "plain", "lost", "also plain", "low"]


@BOTH
def test_first_come_first_served_where_all_ask_for_the_same(admission: str) -> None:
    names = [f"r{number}" for number in range(6)]
    for priority in (0, 7):
        assert serve(occupied(admission), [(name, priority, None) for name in names]) == names


@BOTH
def test_wishes_reach_loop_with_the_time_of_arrival(admission: str) -> None:
    script = Script(admission=admission)
    script.now = 3.0
    script.submit("a", range(30), priority=-3, deadline=8.5)
    script.now = 4.0
    script.rounds()
    admitted = script.admitted["a"]
    assert (admitted.priority, admitted.deadline, admitted.submitted_at) == (-3, 8.5, 3.0)


@BOTH
@pytest.mark.parametrize(("took", "met"), [(4.9, True), (5.0, True), (5.1, False)])
def test_whether_a_deadline_was_met_is_told_and_a_lost_one_is_served(admission: str, took: float, met: bool) -> None:
    script = Script(admission=admission)
    script.submit("a", range(30), deadline=5.0)
    script.submit("b", prompt_of(1))
    script.rounds()
    script.pass_time(took)
    for name in ("a", "b"):
        script.finish(name)
        script.rounds()
    assert (script.completed["a"].deadline_met, script.completed["b"].deadline_met) == (met, None)


@BOTH
def test_a_deadline_that_passes_while_its_request_waits_gains_nothing_any_more(admission: str) -> None:
    script = occupied(admission)
    script.submit("plain", prompt_of(1))
    script.submit("hurried", prompt_of(2), deadline=5.0)
    script.rounds()
    script.pass_time(5.0)
    script.finish("occupier")
    script.rounds()
    assert list(script.admitted)[1:] == ["plain"]


@BOTH
def test_under_a_stream_of_urgent_requests_nobody_starves(admission: str) -> None:
    script = occupied(admission, ageing_s=10.0)
    script.submit("patient", prompt_of(1), priority=3)
    running, second = "occupier", 0
    script.submit("urgent", prompt_of(2))
    while "patient" not in script.admitted:
        # As many come as are served: there is always one that is more urgent, every other one with a deadline.
        deadline = script.now + 2.0 if second % 2 else None
        script.submit(f"urgent {second}", prompt_of(10 + second), deadline=deadline)
        script.rounds()
        script.pass_time(1.0)
        script.finish(running)
        script.rounds()
        running = list(script.admitted)[-1]
        second += 1
        assert second < 60, "it starves"
    assert 30 <= second <= 32, "when it has waited three times ten seconds it is as urgent as those that come"


@BOTH
def test_one_that_is_more_urgent_goes_before_a_head_that_lacks_room_and_nobody_else_does(admission: str) -> None:
    script = Script(admission=admission)
    lacking = {"large"}
    no_room_for(lacking, script.ranks[1])
    script.submit("large", prompt_of(1))
    script.submit("behind", prompt_of(2))
    script.submit("later", prompt_of(3), deadline=100.0, priority=1)
    script.rounds()
    assert not script.admitted
    tried = len([said for said in script.said("large") if isinstance(said, Install)])
    script.submit("urgent", prompt_of(4), priority=-1)
    script.submit("hurried", prompt_of(5), deadline=100.0)
    script.rounds()
    assert list(script.admitted) == ["urgent", "hurried"]
    assert len([said for said in script.said("large") if isinstance(said, Install)]) == tried, "no room has come"
    lacking.clear()
    script.finish("urgent")
    script.rounds()
    assert list(script.admitted) == ["urgent", "hurried", "large", "behind", "later"]


@BOTH
def test_an_urgent_one_that_lacks_room_is_the_head_and_stops_the_others(admission: str) -> None:
    script = Script(admission=admission)
    lacking = {"large", "urgent"}
    no_room_for(lacking, script.ranks[0])
    script.submit("large", prompt_of(1))
    script.rounds()
    script.submit("urgent", prompt_of(2), priority=-1)
    script.rounds()
    lacking.remove("large")
    script.submit("small", prompt_of(3))
    script.rounds()
    assert not script.admitted, "it is not their turn"
    script.cancel("urgent")
    script.rounds()
    script.grow(0)
    script.rounds()
    assert list(script.admitted) == ["large", "small"]


@BOTH
def test_whoever_has_aged_past_a_blocked_head_is_tried_when_that_is_so(admission: str) -> None:
    script = Script(admission=admission, ageing_s=10.0, round_interval_s=1000.0, rank_silence_s=3000.0)
    script.submit("small", prompt_of(1), priority=1)
    no_room_for({"urgent"}, script.ranks[0])
    script.ranks[1].vote = lambda request, ask: refused(ask, "attention") if script.now < 1.0 else None
    script.rounds()
    script.now = 5.0
    script.submit("urgent", prompt_of(2))
    script.rounds()
    script.grow(1)
    script.rounds()
    assert not script.admitted, "urgent is the head, and lacks room"
    # At 10 s they are equally urgent, and small came first.
    assert script.leader.next_deadline() == 10.0
    script.pass_time(5.0)
    script.rounds()
    assert list(script.admitted) == ["small"]


def test_what_ranks_have_begun_to_prepare_is_not_given_up_for_a_more_urgent_request() -> None:
    script = Script()
    script.submit("begun", prompt_of(1), priority=5)
    script.step()
    script.broadcast()
    script.submit("urgent", prompt_of(2), priority=-5)
    script.broadcast()
    for rank in script.ranks:
        script.hear(rank.answer())
        script.hear(rank.answer())
    script.rounds()
    assert script.said("begun") == [Probe(1, 0), Install(1, 1, 0, ()), Verdict(1, 1, 0, True)]
    assert list(script.admitted) == ["begun", "urgent"]


def test_in_lockstep_a_try_that_is_lowered_goes_on_though_a_more_urgent_request_has_come() -> None:
    script = Script(admission="lockstep")
    for rank in script.ranks:
        rank.hint = lambda request: 16
    script.ranks[1].vote = lambda request, ask: short(ask, 8) if committed(ask).asked > 8 else None
    script.submit("begun", prompt_of(1), priority=5)
    script.step()
    script.submit("urgent", prompt_of(2), priority=-5)
    script.ranks[1].hint = lambda request: 8
    script.rounds()
    assert list(script.admitted) == ["begun", "urgent"]


@BOTH
def test_a_try_that_failed_for_want_of_room_is_not_repeated_before_a_more_urgent_request(admission: str) -> None:
    script = Script(admission=admission)
    refusals = ["attention"]
    script.ranks[1].vote = lambda request, ask: refused(ask, refusals.pop()) if refusals else None
    script.submit("first", prompt_of(1), priority=5)
    script.step()
    script.broadcast()
    script.submit("urgent", prompt_of(2), priority=-5)
    script.broadcast()
    for rank in script.ranks:
        while rank.rounds:
            script.hear(rank.answer())
    script.grow(1)
    script.rounds()
    assert list(script.admitted) == ["urgent", "first"]


def test_the_limiter_lets_the_most_urgent_go_first_and_an_oversized_one_alone() -> None:
    # 1000 tokens, less 2 * 2 * 50.
    script = Script(2, pages=[250, 250], wave_tokens=50)
    script.submit("runs", prompt_of(1, 500))
    script.rounds()
    script.submit("oversized", prompt_of(2, 990))
    script.submit("small", prompt_of(3, 100))
    script.submit("urgent", prompt_of(4, 100), priority=-1)
    script.rounds()
    assert list(script.admitted) == ["runs", "urgent"], "small would fit, but it is not its turn"
    for name in ("runs", "urgent"):
        script.finish(name)
        script.rounds()
    assert list(script.admitted) == ["runs", "urgent", "oversized"]
    script.submit("very urgent", prompt_of(5, 100), priority=-9)
    script.rounds()
    assert "very urgent" not in script.admitted, "an oversized request runs alone"
    script.finish("oversized")
    script.rounds()
    assert list(script.admitted)[3:] == ["very urgent", "small"]


def test_who_is_held_for_another_s_prefix_takes_its_turn_by_urgency_when_that_is_there() -> None:
    script = Script(max_batch=2)
    shared = range(32)
    script.submit("provider", [*shared, *prompt_of(1, 8)], priority=-2)
    script.submit("plain", [*shared, *prompt_of(2, 8)])
    script.submit("urgent", [*shared, *prompt_of(3, 8)], priority=-1)
    script.rounds()
    assert list(script.admitted) == ["provider"]
    for rank in script.ranks:
        rank.hint = lambda request: 32
    script.publish("provider", 32)
    script.rounds()
    assert list(script.admitted) == ["provider", "urgent"]
    script.finish("provider")
    script.rounds()
    assert list(script.admitted) == ["provider", "urgent", "plain"]


def test_nobody_waits_for_the_prefix_of_a_request_that_is_less_urgent() -> None:
    script = Script()
    shared = range(32)
    script.submit("provider", [*shared, *prompt_of(1, 8)], priority=2)
    script.rounds()
    script.submit("urgent", [*shared, *prompt_of(2, 8)], priority=1)
    script.submit("equal", [*shared, *prompt_of(3, 8)], priority=1)
    script.submit("lower", [*shared, *prompt_of(4, 8)], priority=2)
    script.rounds()
    assert list(script.admitted) == ["provider", "urgent"], "equal waits for urgent, and lower for either"


@BOTH
def test_whether_a_request_is_being_committed_is_told(admission: str) -> None:
    script = Script(admission=admission)
    assert not script.leader.installing
    script.submit("a", range(30))
    script.step()
    assert script.leader.installing
    script.rounds()
    assert "a" in script.admitted and not script.leader.installing
    script.ranks[0].vote = lambda request, ask: refused(ask, "attention")
    script.submit("b", prompt_of(1))
    script.rounds()
    assert not script.leader.installing, "it waits for room, nobody knows how long"
