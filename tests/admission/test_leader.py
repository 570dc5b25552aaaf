"""Rank 0's answers to submissions, cancellations, handles and time, under either policy."""

from __future__ import annotations

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.effects import Ended, Progressed, Reuse
from wavepp.admission.errors import RoundError
from wavepp.admission.leader import Leader
from wavepp.admission.messages import Cancel, FirstToken, Gauges, RoundUp
from wavepp.admission.request import Sampling

from .scripted import BLOCK, BlockKeys, Rank, Script

TOKENS = range(30)


@pytest.fixture(params=["lease", "lockstep"])
def policy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def script(policy: str) -> Script:
    return Script(admission=policy)


def running(script: Script, name: str = "a") -> None:
    script.submit(name, TOKENS)
    script.rounds()
    assert name in script.admitted


def decisions(script: Script) -> tuple[list[Cancel], list[str]]:
    return (
        [cancel for down in script.sent for cancel in down.cancels],
        [handle for down in script.sent for handle in down.releases],
    )


def idle(script: Script) -> bool:
    leader = script.leader
    return leader.queued + leader.running + leader.handles + len(script.keys.memo) == 0


# Submissions.


def test_a_finished_request_tells_what_was_done_and_how_long_it_took(script: Script) -> None:
    script.now = 10.0
    script.submit("a", TOKENS, ttl_s=50.0)
    script.step()
    script.now = 12.0
    script.rounds()
    script.now = 15.0
    for computed in (8, 16, 16, 8, 30):
        script.publish("a", computed)
    script.token("a")
    done = script.completed["a"]
    assert (done.handle, done.prompt_tokens, done.cached_tokens, done.ttl_s) == ("handle-a", 30, 0, 50.0)
    assert (done.queue_s, done.admit_s, done.prefill_s) == (0.0, 2.0, 3.0)
    assert done.token == FirstToken(1, 7, -0.5)
    assert done.reuse == Reuse(0, 0, 0, "rank 0: attention")
    assert script.progress == [
        Progressed("a", "admitted", 0, 30),
        *[Progressed("a", "prefill", computed, 30) for computed in (8, 16, 30)],
    ]


def test_a_prompt_that_can_never_fit_names_the_limit_and_the_rank(policy: str) -> None:
    script = Script(windows=[("attention", "recurrent"), ("attention",)], pages=[20, 9], admission=policy)
    assert script.leader.max_prompt_tokens == 36
    assert script.submit("fits", range(36)) is None
    refusal = script.submit("long", range(37))
    assert refusal is not None and refusal.code == "too_long"
    assert "37 tokens" in refusal.message and "36 (rank 1: attention)" in refusal.message


def test_without_an_attention_window_no_prompt_is_too_long(policy: str) -> None:
    script = Script(windows=[("recurrent",)], slots=3, admission=policy)
    assert script.submit("long", range(5000)) is None
    script.rounds()
    assert "long" in script.admitted


def test_a_name_is_taken_until_the_request_or_its_handle_has_ended(script: Script) -> None:
    script.submit("a", TOKENS)
    for _ in range(2):
        refusal = script.submit("a", TOKENS)
        assert refusal is not None and refusal.code == "duplicate"
        script.rounds()
        if "a" not in script.completed:
            script.finish("a")
    script.release("a")
    assert script.leader.submit("a", bytes(16), Sampling(), "", "", 9.0, "handle-a2", script.now) is None


def test_a_full_queue_refuses_and_takes_again_when_it_has_room(policy: str) -> None:
    script = Script(max_queue=2, admission=policy)
    for name in ("a", "b"):
        assert script.submit(name, TOKENS) is None
    refusal = script.submit("c", TOKENS)
    assert refusal is not None and refusal.code == "queue_full"
    script.rounds()
    assert script.submit("c", TOKENS) is None


@pytest.mark.parametrize("tokens", [b"", b"abc"])
def test_what_is_no_prompt_is_refused(script: Script, tokens: bytes) -> None:
    assert script.leader.submit("a", tokens, Sampling(), "", "", 9.0, "handle-a", 0.0) is not None


def test_a_request_is_announced_once_with_its_tokens(script: Script) -> None:
    script.submit("a", TOKENS)
    script.rounds()
    announced = [request for down in script.sent for request in down.announces]
    assert [(request.name, request.num_tokens, request.handle) for request in announced] == [("a", 30, "handle-a")]


# Cancellations. Those of requests that are not admitted yet are the policies' (their own tests).


def test_cancelled_before_any_rank_has_heard_of_it_says_nothing_to_the_ranks(script: Script) -> None:
    script.submit("a", TOKENS)
    script.cancel("a")
    script.rounds()
    assert script.ended["a"] == Ended("a", "cancelled", "the request was cancelled")
    assert all(not (down.announces or down.probes or down.cancels) for down in script.sent)
    assert idle(script)


def test_cancelled_in_the_queue_behind_others(script: Script) -> None:
    for number, name in enumerate("abc"):
        script.submit(name, range(100 * number, 100 * number + 30))
    script.step()
    script.cancel("b")
    script.rounds()
    assert list(script.admitted) == ["a", "c"]
    assert decisions(script)[0] == [Cancel(2, -1, "handle-b")]


def test_cancelled_while_running_ends_when_it_is_planned_no_more(script: Script) -> None:
    running(script)
    script.cancel("a")
    script.cancel("a")
    assert script.stops == [1] and "a" not in script.ended
    script.rounds()
    assert decisions(script)[0] == []
    script.publish("a", 8)
    script.stopped("a", 5)
    script.rounds()
    assert decisions(script)[0] == [Cancel(1, 5, "handle-a")]
    assert "a" in script.ended
    assert [step.phase for step in script.progress] == ["admitted"]
    assert idle(script)


def test_a_first_token_that_comes_while_it_is_being_stopped_ends_its_handle(script: Script) -> None:
    running(script)
    script.cancel("a")
    script.token("a")
    assert "a" in script.ended and "a" not in script.completed
    script.stopped("a", 3)
    script.rounds()
    assert decisions(script) == ([], ["handle-a"])
    assert idle(script)


def test_a_first_token_that_comes_after_it_was_stopped_is_ignored(script: Script) -> None:
    running(script)
    script.cancel("a")
    script.stopped("a", 0)
    script.token("a")
    script.publish("a", 30)
    script.rounds()
    assert decisions(script) == ([Cancel(1, 0, "handle-a")], [])
    assert "a" not in script.completed
    assert idle(script)


def test_a_first_token_may_come_before_the_round_that_tells_of_its_admission(script: Script) -> None:
    script.submit("a", TOKENS)
    while "a" not in script.admitted:
        script.step()
    script.token("a")
    assert "a" in script.completed
    script.rounds()
    assert script.sent[-1].verdicts[0].admitted


def test_to_be_stopped_without_being_cancelled_means_nothing(script: Script) -> None:
    running(script)
    script.stopped("a", 3)
    assert not script.ended and script.leader.running == 1


def test_a_first_token_that_could_not_be_chosen_fails_its_request_alone_and_leaves_nothing(script: Script) -> None:
    running(script)
    script.token("a", error="the logits are not finite")
    assert (script.ended["a"].code, script.ended["a"].message) == ("internal", "the logits are not finite")
    script.rounds()
    assert decisions(script) == ([], ["handle-a"])
    assert idle(script)


def test_cancelled_when_it_is_finished_releases_its_handle(script: Script) -> None:
    running(script)
    script.token("a")
    script.cancel("a")
    script.rounds()
    assert "a" in script.completed and "a" not in script.ended
    assert script.leader.handle_info("handle-a", script.now) == "expired_handle"
    assert decisions(script) == ([], ["handle-a"])
    assert idle(script)


def test_cancelling_a_name_that_nobody_has_is_ignored(script: Script) -> None:
    script.cancel("nobody")
    assert not script.ended


def test_a_first_token_of_a_request_that_is_not_running_is_an_error(script: Script) -> None:
    script.submit("a", TOKENS)
    with pytest.raises(RoundError, match="probing"):
        script.leader.on_first_token(FirstToken(1, 0, 0.0), 0.0)


# Handles.


def test_a_handle_is_known_from_the_first_token_to_its_end(script: Script) -> None:
    leader = script.leader
    assert leader.handle_info("handle-a", script.now) == "unknown_handle"
    script.submit("a", TOKENS)
    for call in (leader.handle_info, leader.release_handle):
        assert call("handle-a", script.now) == "not_finished"
    assert leader.renew_handle("handle-a", 1.0, script.now) == "not_finished"
    script.rounds()
    script.token("a")
    info = leader.handle_info("handle-a", script.now)
    assert not isinstance(info, str)
    assert (info.name, info.num_tokens, info.first_token, info.expires_at) == ("a", 30, 7, 120.0)
    assert script.release("a") == ""
    assert script.release("a") == "expired_handle"
    script.rounds()
    assert idle(script)


def test_a_handle_of_a_cancelled_request_was_never_known(script: Script) -> None:
    script.submit("a", TOKENS)
    script.cancel("a")
    assert script.leader.handle_info("handle-a", script.now) == "unknown_handle"


def test_an_expired_handle_is_released_on_every_rank(script: Script) -> None:
    script.submit("a", TOKENS, ttl_s=5.0)
    script.rounds()
    script.token("a")
    script.now = 5.0  # The call itself notices, before any tick.
    assert script.leader.renew_handle("handle-a", 5.0, script.now) == "expired_handle"
    script.rounds()
    assert decisions(script)[1] == ["handle-a"]
    assert idle(script)


def test_a_life_is_bounded_when_it_is_asked_for_and_when_it_is_renewed(policy: str) -> None:
    script = Script(default_ttl_s=10.0, max_ttl_s=20.0, admission=policy)
    script.submit("a", TOKENS, ttl_s=1000.0)
    script.rounds()
    script.token("a")
    script.pass_time(15.0)
    assert script.leader.renew_handle("handle-a", 1000.0, script.now) == ""
    script.pass_time(19.0)
    assert script.leader.handles == 1
    script.pass_time(1.0)
    assert script.leader.handles == 0


# Rounds and time.


def test_nothing_is_said_twice_and_an_idle_group_hears_a_heartbeat(policy: str) -> None:
    script = Script(round_interval_s=2.0, admission=policy)
    script.step()
    assert script.leader.next_deadline() == 2.0
    script.pass_time(1.9)
    assert script.broadcast() is None
    script.pass_time(0.1)
    assert script.broadcast() is not None


def test_no_heartbeat_is_sent_to_ranks_that_still_owe_an_answer(policy: str) -> None:
    script = Script(round_interval_s=1.0, rank_silence_s=30.0, admission=policy)
    script.broadcast()
    script.pass_time(5.0)
    assert script.broadcast() is None
    assert script.leader.next_deadline() == 30.0


def test_a_rank_that_owes_an_answer_for_too_long_is_silent(policy: str) -> None:
    script = Script(rank_silence_s=30.0, admission=policy)
    script.broadcast()
    script.hear(script.ranks[0].answer())
    script.pass_time(29.9)
    assert script.leader.silent_ranks(script.now) == ()
    script.pass_time(0.1)
    assert script.leader.silent_ranks(script.now) == (1,)
    script.leader.heard(1, script.now)
    assert script.leader.silent_ranks(script.now) == ()


@pytest.mark.parametrize(("admission", "at"), [("lockstep", 100.0), ("lease", 30.0)])
def test_only_under_lockstep_a_wave_excuses_silence(admission: str, at: float) -> None:
    script = Script(rank_silence_s=30.0, wave_timeout_s=100.0, admission=admission)
    script.broadcast()
    script.hear(script.ranks[0].answer())
    script.leader.heard(1, script.now, in_wave=True)
    assert script.leader.next_deadline() == at
    assert script.leader.silent_ranks(at) == (1,)


def test_under_lease_a_wave_that_does_not_end_is_found_out() -> None:
    script = Script(wave_timeout_s=100.0)
    script.step()
    script.leader.heard(1, 0.0, in_wave=True)
    assert (script.leader.silent_ranks(99.0), script.leader.silent_ranks(100.0)) == ((), (1,))


def test_ranks_that_owe_nothing_are_never_silent(script: Script) -> None:
    script.step()
    assert script.leader.silent_ranks(1000.0) == ()


def test_a_report_is_complete_when_every_rank_has_answered_that_round(script: Script) -> None:
    script.step()
    number = script.leader.request_report()
    assert script.leader.next_deadline() == script.now
    script.broadcast()
    script.hear(RoundUp(1, 0, number, gauges=Gauges(pages_total=20)))
    assert not script.leader.all_answered(number)
    script.hear(RoundUp(1, 1, number, gauges=Gauges(pages_total=30)))
    assert script.leader.all_answered(number)
    assert [gauges.pages_total for gauges in script.leader.gauges] == [20, 30]


def test_a_reset_reaches_every_rank(script: Script) -> None:
    number = script.leader.reset(script.now)
    script.rounds()
    assert script.leader.all_answered(number)
    assert [down.reset for down in script.sent] == [True]


@pytest.mark.parametrize(
    ("up", "why"), [(RoundUp(2, 0, 1), "epoch 2"), (RoundUp(1, 7, 1), "rank 7"), (RoundUp(1, 0, 2), "round 2")]
)
def test_an_answer_that_cannot_be_is_an_error_with_a_name(script: Script, up: RoundUp, why: str) -> None:
    script.step()
    with pytest.raises(RoundError, match=why):
        script.leader.on_round_up(up, script.now)


def test_a_snapshot_interval_off_the_block_and_ranks_out_of_order_are_refused() -> None:
    hellos = [Rank(number, ("attention",), 20, 0).hello() for number in range(2)]
    keys = BlockKeys(BLOCK)
    with pytest.raises(ValueError, match="snapshot_interval 18"):
        Leader(AdmissionConfig(snapshot_interval=18), 1, hellos, BLOCK, 64, keys)
    with pytest.raises(ValueError, match="in order"):
        Leader(AdmissionConfig(snapshot_interval=16), 1, hellos[::-1], BLOCK, 64, keys)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"admission": "hope"}, "admission"),
        ({"max_batch": 0}, "max_batch"),
        ({"headroom": -0.1}, "headroom"),
        ({"herd_min_tokens": 0}, "herd_min_tokens"),
        ({"default_ttl_s": 50.0, "max_ttl_s": 10.0}, "max_ttl_s"),
        ({"round_interval_s": 40.0}, "rank_silence_s"),
        ({"busy_round_interval_s": 2.0}, "busy_round_interval_s"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_a_wrong_config_is_refused_by_name(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AdmissionConfig.model_validate(wrong)
