"""Rank 0's answers to submissions, cancellations, handles and time."""

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.effects import Ended, Progressed
from wavepp.admission.errors import RoundError
from wavepp.admission.leader import Leader
from wavepp.admission.messages import Cancel, FirstToken, RoundUp
from wavepp.admission.request import Sampling
from wavepp.simulator.group import Group, prompt
from wavepp.simulator.rank import Rank, RankSpec

TOKENS = prompt(range(30))
PLAIN = RankSpec(True, True, 20, 8)


def group_of(*specs: RankSpec, **config: float) -> Group:
    specs = specs or (PLAIN, PLAIN)
    return Group(specs, 4, AdmissionConfig(snapshot_interval=16, **config))  # pyright: ignore[reportArgumentType]


def decisions(group: Group) -> tuple[list[Cancel], list[str]]:
    return (
        [cancel for down in group.sent for cancel in down.cancels],
        [handle for down in group.sent for handle in down.releases],
    )


def idle(group: Group) -> bool:
    gauges = [rank.cache.gauges() for rank in group.ranks]
    held = sum(g.leases + g.handles + g.pages_pinned + g.slots_pinned for g in gauges)
    known = sum(rank.participant.known + rank.participant.sealed for rank in group.ranks)
    return held + known + group.leader.queued + group.leader.running + group.leader.handles == 0


def step(group: Group, applies: bool = True) -> None:
    """One round to every rank and, if it `applies`, all answers back."""
    group.broadcast()
    for number, rank in enumerate(group.ranks):
        while applies and rank.rounds:
            rank.apply()
        while rank.answers:
            group.hear(number)


# Submissions.


def test_a_finished_request_tells_what_was_done_and_how_long_it_took() -> None:
    group = group_of()
    group.now = 10.0
    group.submit("a", TOKENS, ttl_s=50.0)
    step(group)
    group.now = 12.0
    step(group)
    group.now = 15.0
    group.settle(8)
    done = group.completed["a"]
    assert (done.handle, done.prompt_tokens, done.cached_tokens, done.ttl_s) == ("handle-a", 30, 0, 50.0)
    assert (done.queue_s, done.admit_s, done.prefill_s) == (0.0, 2.0, 3.0)
    assert done.token == FirstToken(1, 7, -0.5)
    assert group.progress == [
        Progressed("a", "admitted", 0, 30),
        *[Progressed("a", "prefill", computed, 30) for computed in (8, 16, 24, 30)],
    ]


def test_a_prompt_that_can_never_fit_names_the_limit_and_the_rank() -> None:
    group = group_of(PLAIN, RankSpec(True, False, 9, 0))
    assert group.leader.max_prompt_tokens == 36
    assert group.submit("fits", prompt(range(36))) is None
    refusal = group.submit("long", prompt(range(37)))
    assert refusal is not None and refusal.code == "too_long"
    assert "37 tokens" in refusal.message and "36 (rank 1: attention)" in refusal.message


def test_without_an_attention_window_no_prompt_is_too_long() -> None:
    group = group_of(RankSpec(False, True, 0, 3))
    assert group.submit("long", prompt(range(5000))) is None
    group.settle(64)
    assert "long" in group.completed


def test_a_name_is_taken_until_the_request_or_its_handle_has_ended() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    for _ in range(2):
        refusal = group.submit("a", TOKENS)
        assert refusal is not None and refusal.code == "duplicate"
        group.settle()
    group.release("handle-a")
    group.settle()
    assert group.leader.submit("a", TOKENS, Sampling(), "", "", 9.0, "handle-a2", group.now) is None


def test_a_full_queue_refuses_and_takes_again_when_it_has_room() -> None:
    group = group_of(max_queue=2)
    for name in ("a", "b"):
        assert group.submit(name, TOKENS) is None
    refusal = group.submit("c", TOKENS)
    assert refusal is not None and refusal.code == "queue_full"
    group.settle()
    assert group.submit("c", TOKENS) is None


@pytest.mark.parametrize("tokens", [b"", b"abc"])
def test_what_is_no_prompt_is_refused(tokens: bytes) -> None:
    assert group_of().submit("a", tokens) is not None


def test_a_request_is_announced_once_with_its_tokens() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    group.settle()
    announced = [request for down in group.sent for request in down.announces]
    assert [(request.name, request.tokens, request.handle) for request in announced] == [("a", TOKENS, "handle-a")]


# Cancellations, in every state.


def test_cancelled_before_any_rank_has_heard_of_it_says_nothing_to_the_ranks() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    group.cancel("a")
    group.settle()
    assert group.ended["a"] == Ended("a", "cancelled", "the request was cancelled")
    assert all(not (down.announces or down.probes or down.cancels) for down in group.sent)
    assert idle(group)


@pytest.mark.parametrize("answered", [(False,), (True,), (True, False)], ids=["probing", "deciding", "installing"])
def test_cancelled_while_its_admission_is_under_way(answered: tuple[bool, ...]) -> None:
    group = group_of()
    group.submit("a", TOKENS)
    for applies in answered:
        step(group, applies)
    group.cancel("a")
    group.submit("b", TOKENS)
    group.settle()
    assert "a" in group.ended and "a" not in group.admitted
    assert decisions(group)[0] == [Cancel(1, -1)]
    group.release("handle-b")
    group.settle()
    assert idle(group)


def test_cancelled_in_the_queue_behind_others() -> None:
    group = group_of()
    for name in ("a", "b", "c"):
        group.submit(name, TOKENS)
    step(group)
    group.cancel("b")
    group.settle()
    assert list(group.completed) == ["a", "c"]
    assert decisions(group)[0] == [Cancel(2, -1)]


def running(group: Group) -> None:
    group.submit("a", TOKENS)
    while group.leader.running == 0:
        step(group)
    group.take_command()


def test_cancelled_while_running_ends_after_the_last_wave_that_names_it() -> None:
    group = group_of()
    running(group)
    for _ in range(2):
        group.plan(8)
    group.cancel("a")
    group.cancel("a")
    assert "a" not in group.ended
    group.take_command()
    assert not group.commands
    assert "a" in group.ended
    group.settle()
    assert decisions(group)[0] == [Cancel(1, 1)]
    assert idle(group)


def test_cancelled_before_any_wave_was_planned() -> None:
    group = group_of()
    running(group)
    group.cancel("a")
    group.settle()
    assert decisions(group)[0] == [Cancel(1, -1)]
    assert idle(group)


def test_a_first_token_that_comes_while_it_is_being_stopped_ends_its_handle() -> None:
    group = group_of()
    running(group)
    group.plan(32)
    group.cancel("a")
    for number in range(2):
        group.forward(number)
    assert "a" in group.ended and "a" not in group.completed
    group.settle()
    assert decisions(group) == ([], ["handle-a"])
    assert idle(group)


def test_a_first_token_that_could_not_be_chosen_fails_its_request_alone_and_leaves_nothing() -> None:
    group = group_of()
    running(group)
    group.plan(32)
    group.forward(0)
    group.ranks[1].forward()
    group.in_flight.popleft()
    group.leader.on_first_token(FirstToken(1, -1, 0.0, error="the logits are not finite"), group.now)
    group.carry_out()
    assert (group.ended["a"].code, group.ended["a"].message) == ("internal", "the logits are not finite")
    group.settle()
    assert idle(group)


def test_a_first_token_that_comes_after_it_was_stopped_is_ignored() -> None:
    group = group_of()
    running(group)
    group.plan(32)
    group.cancel("a")
    group.take_command()
    group.settle()
    assert decisions(group) == ([Cancel(1, 0)], [])
    assert "a" not in group.completed
    assert idle(group)


def test_cancelled_when_it_is_finished_releases_its_handle() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    group.settle()
    group.cancel("a")
    group.settle()
    assert "a" in group.completed and "a" not in group.ended
    assert group.leader.handle_info("handle-a", group.now) == "expired_handle"
    assert idle(group)


def test_cancelling_a_name_that_nobody_has_is_ignored() -> None:
    group = group_of()
    group.cancel("nobody")
    assert not group.ended


# Handles.


def test_a_handle_is_known_from_the_first_token_to_its_end() -> None:
    group = group_of()
    assert group.leader.handle_info("handle-a", group.now) == "unknown_handle"
    group.submit("a", TOKENS)
    for call in (group.leader.handle_info, group.leader.release_handle):
        assert call("handle-a", group.now) == "not_finished"
    assert group.leader.renew_handle("handle-a", 1.0, group.now) == "not_finished"
    group.settle()
    info = group.leader.handle_info("handle-a", group.now)
    assert not isinstance(info, str)
    assert (info.name, info.num_tokens, info.first_token, info.expires_at) == ("a", 30, 7, 120.0)
    assert group.release("handle-a") == ""
    assert group.release("handle-a") == "expired_handle"
    group.settle()
    assert idle(group)


def test_a_handle_of_a_cancelled_request_was_never_known() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    group.cancel("a")
    assert group.leader.handle_info("handle-a", group.now) == "unknown_handle"


def test_an_expired_handle_is_released_on_every_rank() -> None:
    group = group_of()
    group.submit("a", TOKENS, ttl_s=5.0)
    group.settle()
    group.now = 5.0  # The call itself notices, before any tick.
    assert group.leader.renew_handle("handle-a", 5.0, group.now) == "expired_handle"
    group.settle()
    assert decisions(group)[1] == ["handle-a"]
    assert idle(group)


def test_a_life_is_bounded_when_it_is_asked_for_and_when_it_is_renewed() -> None:
    group = group_of(default_ttl_s=10.0, max_ttl_s=20.0)
    group.submit("a", TOKENS, ttl_s=1000.0)
    group.settle()
    group.pass_time(15.0)
    assert group.leader.renew_handle("handle-a", 1000.0, group.now) == ""
    group.pass_time(19.0)
    assert group.leader.handles == 1
    group.pass_time(1.0)
    assert group.leader.handles == 0


# Rounds and time.


def test_nothing_is_said_twice_and_an_idle_group_hears_a_heartbeat() -> None:
    group = group_of(round_interval_s=2.0)
    step(group)
    assert group.leader.next_deadline() == 2.0
    group.pass_time(1.9)
    assert not group.broadcast()
    group.pass_time(0.1)
    assert group.broadcast()


def test_no_heartbeat_is_sent_to_ranks_that_still_owe_an_answer() -> None:
    group = group_of(round_interval_s=1.0, rank_silence_s=30.0)
    group.broadcast()
    group.pass_time(5.0)
    assert not group.broadcast()
    assert group.leader.next_deadline() == 30.0


def test_a_rank_that_owes_an_answer_for_too_long_is_silent() -> None:
    group = group_of(rank_silence_s=30.0)
    group.broadcast()
    group.ranks[0].apply()
    group.hear(0)
    group.pass_time(29.9)
    assert group.leader.silent_ranks(group.now) == ()
    group.pass_time(0.1)
    assert group.leader.silent_ranks(group.now) == (1,)
    group.leader.heard(1, group.now)
    assert group.leader.silent_ranks(group.now) == ()


def test_a_rank_within_a_wave_may_take_as_long_as_a_wave_may() -> None:
    group = group_of(rank_silence_s=30.0, wave_timeout_s=100.0)
    group.broadcast()
    group.ranks[0].apply()
    group.hear(0)
    group.leader.heard(1, group.now, in_wave=True)
    group.pass_time(99.0)
    assert group.leader.silent_ranks(group.now) == ()
    assert group.leader.next_deadline() == 100.0
    group.leader.heard(1, group.now)
    group.pass_time(29.0)
    assert group.leader.silent_ranks(group.now) == ()
    group.pass_time(1.0)
    assert group.leader.silent_ranks(group.now) == (1,)


def test_ranks_that_owe_nothing_are_never_silent() -> None:
    group = group_of(rank_silence_s=30.0)
    step(group)
    assert group.leader.silent_ranks(1000.0) == ()


def test_a_report_is_complete_when_every_rank_has_answered_that_round() -> None:
    group = group_of()
    step(group)
    number = group.leader.request_report()
    assert group.leader.next_deadline() == group.now
    assert group.broadcast()
    group.ranks[0].apply()
    group.hear(0)
    assert not group.leader.all_answered(number)
    group.ranks[1].apply()
    group.hear(1)
    assert group.leader.all_answered(number)
    assert [gauges.pages_total for gauges in group.leader.gauges] == [20, 20]


def test_a_reset_reaches_every_rank() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    group.settle()
    group.release("handle-a")
    number = group.leader.reset(group.now)
    group.settle()
    assert group.leader.all_answered(number)
    assert [gauges.pages_free for gauges in group.leader.gauges] == [20, 20]


@pytest.mark.parametrize(
    ("up", "why"),
    [
        (RoundUp(2, 0, 1), "epoch 2"),
        (RoundUp(1, 7, 1), "rank 7"),
        (RoundUp(1, 0, 2), "round 2"),
        (RoundUp(1, 0, 0), "round 0"),
    ],
)
def test_an_answer_that_cannot_be_is_an_error_with_a_name(up: RoundUp, why: str) -> None:
    group = group_of()
    step(group)
    with pytest.raises(RoundError, match=why):
        group.leader.on_round_up(up, group.now)


def test_a_first_token_of_a_request_that_is_not_running_is_an_error() -> None:
    group = group_of()
    group.submit("a", TOKENS)
    with pytest.raises(RoundError, match=r"queued|probing"):
        group.leader.on_first_token(FirstToken(1, 0, 0.0), 0.0)


def test_a_snapshot_interval_off_the_block_and_ranks_out_of_order_are_refused() -> None:
    hellos = [Rank(number, PLAIN, 4).hello() for number in range(2)]
    with pytest.raises(ValueError, match="snapshot_interval 18"):
        Leader(AdmissionConfig(snapshot_interval=18), 1, hellos, 4)
    with pytest.raises(ValueError, match="in order"):
        Leader(AdmissionConfig(snapshot_interval=16), 1, hellos[::-1], 4)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"policy": "hope"}, "policy"),
        ({"max_batch": 0}, "max_batch"),
        ({"default_ttl_s": 50.0, "max_ttl_s": 10.0}, "max_ttl_s"),
        ({"round_interval_s": 40.0}, "rank_silence_s"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_a_wrong_config_is_refused_by_name(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        AdmissionConfig.model_validate(wrong)
