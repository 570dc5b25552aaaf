"""One rank's answers to rounds, and what it has LOOP do, in the order that rounds come and in no other."""

import msgspec
import pytest
from wavepp.admission.claim import Claim, Grant, Retract
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import BLOCKED, Install, Probe, RoundDown, Trim, Verdict
from wavepp.admission.request import Request
from wavepp.cache.layout import Window

from .one_rank import EPOCH, OTHER, TOKENS, OneRank, prompt, short_rank

NOTHING = (0, 0, 0)


# Rounds.


def test_a_round_of_another_epoch_is_refused() -> None:
    with pytest.raises(RoundError, match="rank 1: a round of epoch 2 in epoch 3"):
        OneRank().apply(RoundDown(2, 1))


def test_a_round_after_a_gap_is_refused() -> None:
    rank = OneRank()
    rank.say()
    with pytest.raises(RoundError, match="round 3 after round 1"):
        rank.apply(RoundDown(EPOCH, 3))


def test_a_repeated_round_changes_nothing_and_repeats_only_the_votes() -> None:
    rank = OneRank()
    request = Request(1, "r", TOKENS, "h")
    down = RoundDown(
        EPOCH, 1, announces=(request,), probes=(Probe(1, 0),), installs=(Install(1, 1, 0, (28,)),), reset=True
    )
    first = rank.apply(down)
    again = rank.apply(down)
    assert (len(first.hints), len(again.hints)) == (1, 0)
    assert again == msgspec.structs.replace(first, hints=())
    assert list(rank.orders) == [Claim(request, 1, 0)], "claimed once"


def test_an_older_round_is_answered_as_of_now() -> None:
    rank = short_rank()
    install = Install(1, 1, 20, (24, 28))
    old = RoundDown(EPOCH, 2, installs=(install,), trims=(Trim(1, 1, 8, (28,)), Trim(9, 1, 8, ())))
    lower = rank.say(installs=(install,)).votes
    committed = rank.trim(8)
    again = rank.apply(old)
    assert (again.round, again.votes) == (3, (*lower, committed))
    rank.reject()
    assert rank.apply(old).votes == (), "that attempt is over"


# Hints.


def test_a_hint_says_how_far_and_what_limits_it() -> None:
    rank = OneRank()
    rank.preload(TOKENS, 24, (16,))
    rank.announce()
    up = rank.say(probes=(Probe(1, 5),))
    assert (up.epoch, up.rank, up.round) == (EPOCH, 1, 2)
    assert [(h.request, h.attempt, h.endpoint, h.limited_by) for h in up.hints] == [(1, 5, 16, "recurrent")]
    assert rank.held() == NOTHING


def test_a_hint_leaves_one_token_to_compute() -> None:
    rank = OneRank(windows=frozenset({Window.ATTENTION}))
    tokens = prompt(range(28))
    rank.preload(tokens, 28)
    rank.announce(tokens=tokens)
    assert rank.probe() == 24


def test_a_rank_without_windows_hints_and_commits_everything() -> None:
    rank = OneRank(windows=frozenset())
    rank.announce()
    assert rank.probe() == 28
    assert rank.install(candidate=28, snapshots=()).committed


def test_what_is_probed_or_installed_must_have_been_announced() -> None:
    with pytest.raises(RoundError, match=r"rank 1: Probe.*request 9 is not waiting"):
        OneRank().say(probes=(Probe(9, 1),))
    with pytest.raises(RoundError, match=r"rank 1: Install.*request 9 is not waiting"):
        OneRank().say(installs=(Install(9, 1, 0, ()),))


@pytest.mark.parametrize("admitted", [False, True])
def test_a_request_is_announced_once(admitted: bool) -> None:
    rank = OneRank()
    if admitted:
        rank.begin()
    else:
        rank.announce()
    with pytest.raises(RoundError, match="request 1 was announced twice"):
        rank.announce()


def test_a_handle_is_that_of_one_request() -> None:
    rank = OneRank()
    rank.announce()
    with pytest.raises(RoundError, match="request 2 was announced with the handle of 1"):
        rank.say(announces=(Request(2, "b", TOKENS, "h1"),))


# Installs and trims.


def test_a_rank_that_keeps_the_candidate_commits_at_once_and_claims_before_it_votes() -> None:
    rank = OneRank()
    rank.preload(TOKENS, 24, (8, 24))
    rank.announce()
    vote = rank.install(candidate=24)
    assert (vote.asked, vote.endpoint, vote.committed, vote.reason) == (24, 24, True, "")
    assert list(rank.orders) == [Claim(Request(1, "r1", TOKENS, "h1"), 1, 24)]
    assert rank.held() == (1, 1, 0)


def test_the_same_install_again_changes_nothing_and_gets_the_same_vote() -> None:
    rank = OneRank()
    rank.announce()
    first = rank.say(installs=(Install(1, 1, 0, (28,)),))
    again = rank.say(installs=(Install(1, 1, 0, (28,)),))
    assert (first.votes, first.gauges) == (again.votes, again.gauges)
    assert len(rank.orders) == 1


def test_a_rank_that_falls_short_prepares_there_and_names_what_limits_it() -> None:
    rank = short_rank()
    vote = rank.install(candidate=20, snapshots=(24, 28))
    assert (vote.asked, vote.endpoint, vote.committed) == (20, 8, False)
    assert (vote.reason, vote.limited_by) == ("", "recurrent")
    assert rank.held() == (1, 1, 0)
    assert not rank.orders, "nothing is LOOP's before it is committed"


def test_a_trim_commits_the_prepared_attempt_lower() -> None:
    rank = short_rank()
    lower = rank.install(candidate=20, snapshots=(24, 28))
    vote = rank.trim(8, snapshots=(24, 28))
    assert (vote.asked, vote.endpoint, vote.committed) == (8, 8, True)
    assert [type(order) for order in rank.orders] == [Claim]
    assert rank.trim(8, snapshots=(24, 28)) == vote, "again"
    assert rank.install(candidate=20, snapshots=(24, 28)) == lower, "what was asked before it is answered as then"
    assert len(rank.orders) == 1


def test_a_trim_that_cannot_be_kept_goes_lower_and_is_trimmed_again() -> None:
    rank = short_rank()
    rank.install(candidate=24)
    rank.reject()
    rank.install(attempt=2, candidate=28, snapshots=())
    vote = rank.trim(16, attempt=2, snapshots=(20, 24, 28))
    assert (vote.asked, vote.endpoint, vote.committed, vote.limited_by) == (16, 8, False, "recurrent")
    assert rank.trim(8, attempt=2, snapshots=(20, 24, 28)).committed


def test_a_trim_without_room_holds_nothing() -> None:
    rank = OneRank(windows=frozenset({Window.ATTENTION}), pages=10)
    rank.preload(TOKENS, 24)
    rank.announce(1)
    rank.announce(2, TOKENS[: 4 * 26])
    assert rank.install(1, candidate=28, snapshots=()).endpoint == 24
    assert rank.install(2, candidate=24, snapshots=()).committed
    vote = rank.trim(0, snapshots=())
    assert (vote.asked, vote.endpoint, vote.committed, vote.reason) == (0, 0, False, "attention")
    assert rank.held() == (1, 1, 0), "the other one alone"
    assert rank.participant.report() is None, "what it gave back itself is no news"
    rank.announce(3, OTHER[: 4 * 2])
    assert rank.install(3, snapshots=()).reason == BLOCKED


def test_a_trim_of_what_is_committed_or_refused_or_beyond_the_vote_is_refused() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    with pytest.raises(RoundError, match=r"rank 1: Trim.*has voted .*committed=True"):
        short = short_rank()
        short.install(candidate=24)
        short.trim(8)
    with pytest.raises(RoundError, match="has voted"):
        short = short_rank()
        short.install(candidate=20)
        short.trim(12)
    with pytest.raises(RoundError, match="while None is open"):
        short_rank().trim(8)
    with pytest.raises(RoundError, match="attempt=1"):
        rank.trim(0, attempt=2)


def test_another_attempt_while_one_is_open_is_refused() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    with pytest.raises(RoundError, match=r"attempt=2.*while Vote\(request=1, attempt=1"):
        rank.install(attempt=2)


def test_another_candidate_of_the_same_attempt_is_refused() -> None:
    rank = short_rank()
    rank.install(candidate=24)
    with pytest.raises(RoundError, match=r"candidate=8.*while Vote\(request=1, attempt=1"):
        rank.install(candidate=8)


def test_an_install_that_the_cache_cannot_make_sense_of_is_refused() -> None:
    rank = OneRank()
    rank.announce()
    with pytest.raises(RoundError, match=r"rank 1: Install.*cannot be carried out: endpoint 3"):
        rank.install(candidate=3)


# Verdicts.


def test_the_verdict_gives_the_claim_to_loop() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    rank.admit()
    assert [type(order) for order in rank.orders] == [Claim, Grant]
    assert rank.known() == (0, 1, 0, 0), "its keys are not needed any more"
    assert rank.held() == (1, 1, 0)


def test_a_rejected_attempt_holds_nothing_and_loop_forgets_it() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    rank.reject()
    assert rank.held() == NOTHING
    assert [type(order) for order in rank.orders] == [Claim, Retract]
    with pytest.raises(RoundError, match="attempt 1 is over"):
        rank.install()


def test_a_rejected_attempt_that_was_not_committed_is_no_business_of_loops() -> None:
    rank = short_rank()
    rank.install(candidate=20)
    rank.reject()
    assert (rank.held(), list(rank.orders)) == (NOTHING, [])


def test_the_next_attempt_may_come_with_the_verdict_on_the_last() -> None:
    rank = OneRank()
    rank.preload(TOKENS, 24, (8, 24))
    rank.announce()
    rank.install(candidate=24)
    up = rank.say(verdicts=(Verdict(1, 1, 0, False),), installs=(Install(1, 2, 8, (28,)),))
    assert up.votes[0].committed
    kinds = [(type(order), getattr(order, "attempt", None)) for order in rank.orders]
    assert kinds == [(Claim, 1), (Retract, 1), (Claim, 2)]
    rank.admit(attempt=2, endpoint=8)
    rank.deliver()
    assert rank.claims.granted() == (rank.claims.find(1),)


def test_a_verdict_that_is_not_on_what_was_voted_is_refused() -> None:
    rank = OneRank()
    rank.announce()
    with pytest.raises(RoundError, match=r"rank 1: Verdict.*while None is open"):
        rank.reject()
    rank.install()
    with pytest.raises(RoundError, match=r"attempt=2.*while Vote.*attempt=1"):
        rank.reject(attempt=2)
    with pytest.raises(RoundError, match=r"endpoint=4.*has voted"):
        rank.admit(endpoint=4)
    short = short_rank()
    short.install(candidate=20)
    with pytest.raises(RoundError, match=r"has voted.*committed=False"):
        short.admit(endpoint=8)
