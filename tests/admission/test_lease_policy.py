"""Leased admission, rule by rule, before scripted ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wavepp.admission.effects import Reuse
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import BLOCKED, Cancel, Hint, Install, Probe, RoundUp, Trim, Verdict, Vote
from wavepp.admission.request import Request

from .scripted import BLOCK, Script, VoteOf, committed, refused, short

K = 1024
BOTH = ("attention", "recurrent")


def snapshots_at(*positions: int) -> tuple[Callable[[Request], int], VoteOf]:
    """The hint and the votes of a rank that can resume at exactly these positions."""

    def vote(request: Request, ask: Install | Trim) -> Vote:
        asked = committed(ask).asked
        reached = max((position for position in positions if position <= asked), default=0)
        return committed(ask) if reached == asked else short(ask, reached, "recurrent")

    return (lambda request: max(positions)), vote


def refuse(*names: str, reason: str = "attention", times: int = 10**9) -> VoteOf:
    """Has no room for the requests of these names, so many times."""
    left = dict.fromkeys(names, times)

    def vote(request: Request, ask: Install | Trim) -> Vote | None:
        if left.get(request.name, 0) <= 0:
            return None
        left[request.name] -= 1
        return refused(ask, reason)

    return vote


def steps(script: Script, name: str) -> list[tuple[int, int | bool]]:
    """(attempt, tokens asked for), and (attempt, admitted) of verdicts."""
    found: list[tuple[int, int | bool]] = []
    for message in script.said(name):
        match message:
            case Install():
                found.append((message.attempt, message.candidate))
            case Trim():
                found.append((message.attempt, message.endpoint))
            case Verdict():
                found.append((message.attempt, message.admitted))
            case _:
                pass
    return found


# Hints and the candidate.


def test_the_candidate_is_the_shorter_of_seven_attention_blocks_and_six_recurrent() -> None:
    script = Script(windows=[("attention",), ("recurrent",)])
    script.ranks[0].hint = lambda request: (7 * BLOCK, "attention")
    script.ranks[1].hint = lambda request: (6 * BLOCK, "recurrent")
    script.submit("a", range(33))
    script.rounds()
    assert [install.candidate for install in script.installs] == [6 * BLOCK]
    script.finish("a")
    assert script.completed["a"].reuse == Reuse(24, 24, 24, "rank 1: recurrent")
    assert script.completed["a"].cached_tokens == 24


def test_a_request_is_announced_and_probed_in_one_round_and_then_admitted_without_a_further_one() -> None:
    script = Script()
    script.submit("a", range(30))
    assert script.rounds() == 3
    assert [(len(d.announces), len(d.probes), len(d.installs), len(d.verdicts)) for d in script.sent] == [
        (1, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
    ]
    fast = Script()
    fast.submit("a", range(30))
    fast.step()
    fast.step()
    assert "a" in fast.admitted, "all had committed: admitted when the votes were in"
    assert script.said("a") == [Probe(1, 0), Install(1, 1, 0, ()), Verdict(1, 1, 0, True)]


def test_what_reuses_all_that_it_may_is_limited_by_nothing() -> None:
    script = Script()
    for rank in script.ranks:
        rank.hint = lambda request: 28
    script.submit("a", range(32))
    script.rounds()
    script.finish("a")
    assert script.completed["a"].reuse == Reuse(28, 28, 28)


def test_any_number_of_requests_is_probed_at_once_and_installed_in_one_round() -> None:
    script = Script()
    for number in range(8):
        script.submit(f"r{number}", range(100 * number, 100 * number + 30))
    assert script.rounds() == 3
    assert [len(down.probes) for down in script.sent] == [8, 0, 0]
    assert [len(down.installs) for down in script.sent] == [0, 8, 0]
    assert list(script.admitted) == [f"r{number}" for number in range(8)]


def test_installs_go_out_while_others_are_outstanding() -> None:
    script = Script()
    script.submit("a", range(30))
    script.step()
    script.broadcast()  # The install of a.
    script.submit("b", range(100, 130))
    script.broadcast()
    for rank in script.ranks:
        script.hear(rank.answer())
        script.hear(rank.answer())
    script.broadcast()
    assert [install.request for install in script.installs] == [1, 2]
    assert list(script.admitted) == ["a"]


def test_a_hint_is_refreshed_once_when_something_was_published_that_could_lengthen_it() -> None:
    script = Script(max_batch=1)
    script.submit("a", range(40))
    script.submit("same", [*range(20), *range(100, 120)])
    script.submit("other", range(200, 240))
    script.rounds()
    for rank in script.ranks:
        rank.hint = lambda request: 20 if request.name == "same" else 0
    script.finish("a")
    script.rounds()
    assert script.said("same") == [Probe(2, 0), Probe(2, 1), Install(2, 2, 20, ()), Verdict(2, 2, 20, True)]
    script.finish("same")
    script.rounds()
    assert script.said("other") == [Probe(3, 0), Install(3, 1, 0, ()), Verdict(3, 1, 0, True)], "shares nothing"


def test_without_a_memory_of_prompts_every_hint_older_than_a_publication_is_refreshed() -> None:
    script = Script(max_batch=1, fork_memory_blocks=0)
    script.submit("a", range(40))
    script.submit("other", range(200, 240))
    script.rounds()
    script.finish("a")
    script.rounds()
    assert [type(said) for said in script.said("other")] == [Probe, Probe, Install, Verdict]


# Reconciliation.


def test_ranks_that_fall_short_are_reconciled_from_80k_over_72k_to_64k_by_releasing_what_one_had_committed() -> None:
    script = Script(windows=[BOTH, BOTH], block=K)
    script.ranks[0].hint, script.ranks[0].vote = snapshots_at(64 * K, 72 * K, 90 * K)
    script.ranks[1].hint, script.ranks[1].vote = snapshots_at(64 * K, 80 * K)
    script.submit("a", range(100 * K))
    script.rounds()
    assert steps(script, "a") == [(1, 80 * K), (1, False), (2, 72 * K), (2, False), (3, 64 * K), (3, True)]
    assert script.admitted["a"].endpoint == 64 * K
    script.finish("a")
    assert script.completed["a"].reuse == Reuse(80 * K, 72 * K, 64 * K, "rank 1: recurrent")


def test_a_lowered_attempt_is_released_and_installed_anew_in_one_round() -> None:
    script = Script()
    script.ranks[0].hint, _ = snapshots_at(24)
    script.ranks[1].hint, script.ranks[1].vote = (lambda request: 24), snapshots_at(16)[1]
    script.submit("a", range(40))
    script.step()
    script.step()
    script.broadcast()
    assert script.sent[-1].verdicts == (Verdict(1, 1, 0, False),)
    assert script.sent[-1].installs == (Install(1, 2, 16, ()),)


def test_where_nobody_has_committed_all_trim_to_the_shortest() -> None:
    script = Script(windows=[BOTH, BOTH, BOTH], block=K)
    hint = lambda request: 80 * K  # noqa: E731
    for rank, positions in zip(script.ranks, [(64, 72, 90), (64, 76), (48, 64, 72)], strict=True):
        rank.hint, (_, rank.vote) = hint, snapshots_at(*(position * K for position in positions))
    script.submit("a", range(100 * K))
    script.rounds()
    assert [type(message) for message in script.said("a")] == [Probe, Install, Trim, Verdict, Install, Verdict]
    assert steps(script, "a") == [(1, 80 * K), (1, 72 * K), (1, False), (2, 64 * K), (2, True)]
    assert script.admitted["a"].attempt == 2


def test_a_trim_that_all_can_follow_needs_no_new_attempt() -> None:
    script = Script(windows=[BOTH, BOTH], block=K)
    for rank in script.ranks:
        rank.hint, rank.vote = (lambda request: 80 * K), snapshots_at(64 * K)[1]
    script.submit("a", range(100 * K))
    script.rounds()
    assert [type(message) for message in script.said("a")] == [Probe, Install, Trim, Verdict]
    assert (script.admitted["a"].attempt, script.admitted["a"].endpoint) == (1, 64 * K)


def test_no_room_for_a_trim_turns_the_request_away() -> None:
    script = Script(windows=[BOTH, BOTH], block=K)
    for rank in script.ranks:
        rank.hint = lambda request: 80 * K
        rank.vote = lambda request, ask: short(ask, 64 * K) if isinstance(ask, Install) else refused(ask, "attention")
    script.submit("a", range(100 * K))
    script.rounds()
    assert script.said("a")[-1] == Verdict(1, 1, 0, False)
    assert script.leader.queued == 1 and not script.admitted


def test_each_step_of_reconciliation_plans_the_snapshots_anew() -> None:
    script = Script(windows=[BOTH, BOTH])
    for rank in script.ranks:
        rank.hint, rank.vote = (lambda request: 64), snapshots_at(0)[1]
    script.submit("a", range(150))
    script.rounds()
    install, trim = script.said("a")[1:3]
    assert isinstance(install, Install) and isinstance(trim, Trim)
    assert (install.snapshots, trim.snapshots) == ((128, 148), (64, 128, 148))


# Answers that come late, twice, or are wrong.


def test_answers_to_old_attempts_and_old_questions_are_ignored() -> None:
    script = Script(windows=[BOTH, BOTH])
    script.ranks[0].hint, script.ranks[0].vote = snapshots_at(16, 24)
    script.ranks[1].hint, script.ranks[1].vote = (lambda request: 24), snapshots_at(16)[1]
    script.submit("a", range(40))
    script.step()
    script.step()
    script.broadcast()
    first = Install(1, 1, 24, ())
    late = (committed(first), short(first, 8), Vote(1, 2, 24, 24, True))
    for rank in (0, 1, 0):
        script.hear(RoundUp(1, rank, 2, hints=(Hint(1, 0, 0), Hint(1, 2, 0), Hint(99, 0, 0)), votes=late))
    assert not script.admitted
    for rank in script.ranks:
        script.hear(rank.answer())
    assert script.admitted["a"].endpoint == 16


def test_an_old_vote_for_the_same_endpoint_is_no_vote_for_the_new_attempt() -> None:
    script = Script()
    script.ranks[1].vote = refuse("a", times=1)
    script.submit("a", range(30))
    script.rounds()
    script.grow(1)
    script.step()  # Probed afresh.
    script.broadcast()
    assert script.sent[-1].installs == (Install(1, 3, 0, ()),)
    for rank in script.ranks:
        script.hear(RoundUp(1, rank.number, rank.round, votes=(committed(Install(1, 1, 0, ())),)))
    assert not script.admitted
    for rank in script.ranks:
        script.hear(rank.answer())
    assert "a" in script.admitted


def test_an_old_hint_is_no_hint_for_the_new_probe() -> None:
    script = Script(1)
    script.ranks[0].vote = refuse("a", times=1)
    script.submit("a", range(30))
    script.rounds()
    script.grow(0)
    script.ranks[0].hint = lambda request: 8
    script.broadcast()
    assert script.sent[-1].probes == (Probe(1, 2),)
    script.hear(RoundUp(1, 0, script.ranks[0].round, hints=(Hint(1, 0, 28),), released=1))
    script.hear(script.ranks[0].answer())
    script.rounds()
    assert script.admitted["a"].endpoint == 8


def test_an_answer_that_comes_twice_is_harmless() -> None:
    script = Script()
    script.submit("a", range(30))
    while script.broadcast() is not None:
        for rank in script.ranks:
            up = rank.answer()
            script.hear(up)
            script.hear(up)
    assert script.said("a") == [Probe(1, 0), Install(1, 1, 0, ()), Verdict(1, 1, 0, True)]


@pytest.mark.parametrize(
    "vote",
    [
        Vote(1, 1, 8, 12, False),
        Vote(1, 1, 8, 8, False),
        Vote(1, 1, 8, 4, True),
        Vote(1, 1, 8, 8, True, "attention"),
        Vote(1, 1, 8, -4, False),
    ],
)
def test_a_vote_that_answers_nothing_that_was_asked_is_an_error(vote: Vote) -> None:
    script = Script()
    for rank in script.ranks:
        rank.hint = lambda request: 8
    script.submit("a", range(30))
    script.step()
    script.broadcast()
    with pytest.raises(RoundError, match="rank 1 votes"):
        script.hear(RoundUp(1, 1, 2, votes=(vote,)))


# Room.


def test_a_request_without_room_is_released_on_all_ranks_and_stops_those_behind_it() -> None:
    script = Script()
    script.ranks[0].vote = refuse("large")
    script.submit("first", range(30))
    script.submit("large", range(100, 130))
    script.submit("small", range(200, 204))
    script.rounds()
    assert list(script.admitted) == ["first"]
    assert script.said("large")[1:] == [Install(2, 1, 0, ()), Verdict(2, 1, 0, False)]
    assert script.said("small")[1:] == [Install(3, 1, 0, ()), Verdict(3, 1, 0, False)]
    script.submit("smaller", range(300, 301))
    script.rounds()
    assert [type(said) for said in script.said("smaller")] == [Probe], "it may be hinted, and no more"


def test_it_is_tried_again_with_fresh_hints_only_when_all_ranks_that_lacked_room_have_grown() -> None:
    script = Script(3)
    for number in (0, 2):
        script.ranks[number].vote = refuse("large", times=1)
    script.submit("first", range(30))
    script.submit("large", range(100, 130))
    script.submit("small", range(200, 204))
    script.rounds()
    for number in (0, 1):
        script.grow(number)
        assert script.rounds() == 0
    for rank in script.ranks:
        rank.hint = lambda request: 8
    script.grow(2)
    script.rounds()
    assert script.said("large")[3:] == [Probe(2, 2), Install(2, 3, 8, ()), Verdict(2, 3, 8, True)]
    assert list(script.admitted) == ["first", "large", "small"]


def test_growth_between_the_vote_and_its_arrival_is_not_missed() -> None:
    script = Script(1)
    rank = script.ranks[0]
    rank.vote = refuse("a", times=1)
    script.submit("other", range(30))
    script.rounds()
    script.submit("a", range(100, 130))
    script.step()
    script.broadcast()
    vote = rank.answer()
    rank.released = 1
    script.hear(vote)
    script.hear(rank.report())
    script.rounds()
    assert "a" in script.admitted


@pytest.mark.parametrize("end", ["finish", "error", "cancel", "release", "expire", "seal"])
def test_it_is_tried_again_when_a_request_or_a_handle_has_ended(end: str) -> None:
    script = Script()
    script.submit("first", range(30), ttl_s=10.0)
    script.rounds()
    if end in ("release", "expire", "seal"):
        script.finish("first")
        script.rounds()
    script.ranks[1].vote = refuse("waits", times=1)
    script.submit("waits", range(100, 130))
    script.submit("behind", range(200, 230))
    script.rounds()
    assert script.leader.queued == 2
    match end:
        case "finish":
            script.token("first")
        case "error":
            script.token("first", error="no token")
        case "cancel":
            script.cancel("first")
            assert script.leader.queued == 2
            script.stopped("first", 3)
        case "release":
            script.release("first")
        case "expire":
            script.pass_time(10.0)
        case "seal":
            script.publish("first", 30)
    script.rounds()
    assert list(script.admitted) == ["first", "waits", "behind"]


def test_what_ended_while_a_request_was_being_refused_counts() -> None:
    script = Script()
    script.submit("first", range(30))
    script.rounds()
    script.ranks[0].vote = refuse("a", times=1)
    script.submit("a", range(100, 130))
    script.step()
    script.broadcast()
    script.finish("first")
    for rank in script.ranks:
        script.hear(rank.answer())
    script.rounds()
    assert "a" in script.admitted


def test_a_request_that_only_waited_for_the_fate_of_another_is_tried_again_at_once() -> None:
    script = Script()
    script.ranks[1].vote = refuse("a", reason=BLOCKED, times=1)
    script.submit("a", range(30))
    script.rounds()
    assert [type(said) for said in script.said("a")] == [Probe, Install, Probe, Verdict, Install, Verdict]
    assert "a" in script.admitted


def test_cancelling_one_that_lacks_room_unblocks_those_behind_it_before_they_are_installed_again() -> None:
    script = Script()
    script.ranks[0].vote = refuse("large")
    script.submit("large", range(100, 130))
    script.submit("small", range(200, 204))
    script.step()
    script.broadcast()
    script.cancel("large")  # Its refusal is on the way.
    script.ranks[0].vote = refuse("small", reason=BLOCKED, times=1)
    for rank in script.ranks:
        script.hear(rank.answer())
    script.rounds()
    assert "small" in script.admitted
    assert script.said("large")[1:] == [Install(1, 1, 0, ()), Verdict(1, 1, 0, False), Cancel(1, -1, "handle-large")]


def test_one_that_waits_for_room_may_be_cancelled_and_lets_the_next_go() -> None:
    script = Script()
    script.ranks[0].vote = refuse("large")
    script.submit("large", range(100, 130))
    script.submit("small", range(200, 204))
    script.rounds()
    script.cancel("large")
    script.rounds()
    assert list(script.admitted) == ["small"]
    assert script.said("large")[-1] == Cancel(1, -1, "handle-large")


def test_votes_that_are_complete_wait_for_those_of_an_earlier_request() -> None:
    script = Script()
    script.ranks[0].vote = lambda request, ask: (
        short(ask, 8) if request.name == "slow" and isinstance(ask, Install) and ask.candidate == 16 else None
    )
    for rank in script.ranks:
        rank.hint = lambda request: 16
    script.submit("slow", range(40))
    script.submit("quick", range(100, 140))
    script.step()
    script.step()
    assert not script.admitted, "slow is being lowered"
    script.step()
    assert list(script.admitted) == ["slow", "quick"]
    assert [type(said) for said in script.said("quick")] == [Probe, Install]
    script.rounds()
    assert script.said("quick")[-1] == Verdict(2, 1, 16, True)


# Bounds.


def test_max_batch_bounds_what_is_admitted_and_not_finished() -> None:
    script = Script(max_batch=2)
    for number in range(4):
        script.submit(f"r{number}", range(100 * number, 100 * number + 9))
    script.rounds()
    assert (script.leader.running, script.leader.queued) == (2, 2)
    script.finish("r1")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]


def test_suffixes_of_all_that_run_leave_a_headroom_of_two_p_m_tokens() -> None:
    # 1000 tokens, less 2 * 2 * 50.
    script = Script(2, pages=[250, 400], wave_tokens=50)
    for rank in script.ranks:
        rank.hint = lambda request: 100
    for number in range(3):
        script.submit(f"r{number}", range(1000 * number, 1000 * number + 500))
    script.rounds()
    assert list(script.admitted) == ["r0", "r1"], "400 + 400 tokens, and 400 more would leave too little"
    script.finish("r0")
    script.rounds()
    assert list(script.admitted) == ["r0", "r1", "r2"]


def test_one_oversized_request_is_admitted_alone() -> None:
    script = Script(2, pages=[250, 250], wave_tokens=50)
    script.submit("small", range(100))
    script.submit("large", range(1000, 2000))
    script.submit("next", range(3000, 3100))
    script.rounds()
    assert list(script.admitted) == ["small"]
    script.finish("small")
    script.rounds()
    assert list(script.admitted) == ["small", "large"]
    script.finish("large")
    script.rounds()
    assert list(script.admitted) == ["small", "large", "next"]


# Cancellation.


@pytest.mark.parametrize("rounds", [0, 1, 2], ids=["unannounced", "probing", "installing"])
def test_cancelled_while_its_admission_is_under_way(rounds: int) -> None:
    script = Script()
    script.submit("a", range(30))
    for number in range(rounds):
        script.broadcast()
        for rank in script.ranks[: 2 if number == 0 and rounds == 2 else 1]:
            script.hear(rank.answer())
    script.cancel("a")
    script.submit("b", range(100, 130))
    while script.broadcast() is not None:
        for rank in script.ranks:
            while rank.rounds:
                script.hear(rank.answer())
    assert list(script.admitted) == ["b"] and list(script.ended) == ["a"]
    cancels = [cancel for down in script.sent for cancel in down.cancels]
    assert cancels == ([Cancel(1, -1, "handle-a")] if rounds else [])
    assert not script.keys.memo.get(1)


def test_one_whose_install_no_rank_has_heard_is_cancelled_without_a_verdict() -> None:
    script = Script()
    script.submit("a", range(30))
    script.step()
    script.cancel("a")
    script.rounds()
    assert script.said("a") == [Probe(1, 0), Cancel(1, -1, "handle-a")]


def test_an_attempt_that_is_given_up_before_any_rank_has_heard_of_it_is_not_released() -> None:
    script = Script()
    script.ranks[0].vote = refuse("a", times=1)
    script.submit("a", range(30))
    script.step()
    script.submit("b", range(100, 130))
    script.broadcast()
    for rank in script.ranks:
        up = rank.answer()
        # The votes on a come after the hints on b: b is installed, and a refused, before the next round.
        script.hear(RoundUp(1, up.rank, up.round, hints=up.hints))
    for rank in script.ranks:
        script.hear(RoundUp(1, rank.number, 2, votes=(refused(Install(1, 1, 0, ()), "attention"),)))
    script.rounds()
    assert Verdict(2, 1, 0, False) not in script.said("b")
    script.grow(0, 1)
    script.rounds()
    assert list(script.admitted) == ["a", "b"]


# Cadence.


def test_what_is_unanswered_is_repeated_soon_and_then_ever_less_often() -> None:
    script = Script(busy_round_interval_s=0.1, round_interval_s=1.0)
    script.submit("a", range(30))
    script.submit("b", range(100, 130))
    script.step()
    script.broadcast()
    script.hear(script.ranks[0].answer())
    for wait in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert script.leader.next_deadline() == pytest.approx(script.now + wait)
        script.pass_time(wait * 0.99)
        assert script.broadcast() is None
        script.pass_time(wait * 0.011)
        down = script.broadcast()
        assert down is not None and [install.request for install in down.installs] == [1, 2]
    while script.ranks[1].rounds:
        script.hear(script.ranks[1].answer())
    assert list(script.admitted) == ["a", "b"], "the same question again is the same attempt"


def test_a_trim_is_repeated_as_a_trim() -> None:
    script = Script(windows=[BOTH, BOTH])
    for rank in script.ranks:
        rank.hint, rank.vote = (lambda request: 24), snapshots_at(16)[1]
    script.submit("a", range(40))
    script.step()
    script.step()
    script.broadcast()
    script.pass_time(0.05)
    down = script.broadcast()
    assert down is not None
    assert (down.installs, down.trims) == ((), script.sent[-2].trims)


def test_a_round_goes_out_whenever_there_is_something_to_say() -> None:
    script = Script()
    script.submit("a", range(30))
    assert script.leader.next_deadline() == 0.0
    assert script.broadcast() is not None
    script.submit("b", range(30))
    assert script.broadcast() is not None, "no matter what is outstanding"


def test_one_that_was_turned_away_with_hints_older_than_what_has_ended_is_tried_again_at_once() -> None:
    script = Script(max_batch=1, herd_wait_s=0.0)
    script.submit("first", range(40))
    script.submit("second", range(500, 540))
    script.rounds()
    for rank in script.ranks:
        rank.hint = lambda request: 28
        # Room for what is left when all that first has published is reused, and for no more.
        rank.vote = lambda request, ask: refused(ask, "attention") if committed(ask).asked < 28 else None
    script.finish("first")
    script.rounds()
    assert script.admitted["second"].endpoint == 28
    assert [type(said) for said in script.said("second")] == [Probe, Install, Probe, Verdict, Install, Verdict]


def test_who_was_turned_away_is_tried_again_with_nobody_behind_it_beside_it() -> None:
    script = Script(2)
    refusals = ["attention"]
    script.ranks[1].vote = lambda request, ask: (
        refused(ask, refusals.pop()) if request.name == "first" and refusals else None
    )
    script.submit("first", range(40))
    script.submit("second", range(100, 120))
    script.rounds()
    script.grow(1)
    script.rounds()
    names = {script.id("first"): "first", script.id("second"): "second"}
    installed = [[names[install.request] for install in down.installs] for down in script.sent if down.installs]
    assert installed == [["first", "second"], ["first"], ["second"]]
    assert list(script.admitted) == ["first", "second"]
