"""How requests end on a rank, in whatever state they are."""

import pytest
from wavepp.admission.claim import Claim, Drop, Grant, Retract
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import Cancel, Install, Probe, Verdict
from wavepp.admission.request import Request

from .one_rank import OTHER, TOKENS, OneRank, short_rank, two_for_one

NOTHING = (0, 0, 0)


@pytest.mark.parametrize("state", ["queued", "lower", "committed", "refused", "blocked"])
def test_a_cancelled_request_that_waits_holds_nothing_whatever_its_state(state: str) -> None:
    rank = two_for_one() if state in ("refused", "blocked") else short_rank()
    number = {"refused": 2, "blocked": 3}.get(state, 1)
    before = (0, 0, 0) if number == 1 else (1, 1, 0)
    if state == "blocked":
        rank.install(2)
    if state != "queued":
        rank.install(number, candidate={"lower": 20, "committed": 8}.get(state, 0))
    rank.cancel(number)
    assert rank.held() == before
    expected = [Claim, Retract] if state == "committed" else []
    assert [type(order) for order in rank.orders] == expected
    others = 1 if state in ("refused", "blocked") else 0
    assert (rank.participant.known, len(rank.keys)) == (others, others)
    with pytest.raises(RoundError, match=f"request {number} is not waiting"):
        rank.install(number, attempt=2)


def test_a_request_may_be_announced_installed_and_cancelled_in_one_round() -> None:
    rank = OneRank()
    up = rank.say(
        announces=(Request(1, "r1", TOKENS, "h1"),),
        probes=(Probe(1, 0),),
        installs=(Install(1, 1, 0, (28,)),),
        cancels=(Cancel(1, -1, "h1"),),
    )
    assert (len(up.hints), len(up.votes)) == (1, 1)
    rank.deliver()
    assert (rank.held(), rank.known()) == (NOTHING, (0, 0, 0, 0))
    rank.announce()


def test_an_admitted_request_is_loops_to_end() -> None:
    rank = OneRank()
    rank.begin()
    rank.cancel(after_wave=4)
    assert list(rank.orders) == [Drop(1, 4, "h1")]
    assert rank.known() == (0, 0, 1, 0)
    assert rank.held() == (1, 1, 0)


def test_a_verdict_and_a_cancellation_may_share_a_round() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    rank.say(verdicts=(Verdict(1, 1, 0, True),), cancels=(Cancel(1, -1, "h1"),))
    assert [type(order) for order in rank.orders] == [Claim, Grant, Drop]
    rank.deliver()
    assert (rank.held(), rank.known()) == (NOTHING, (0, 0, 0, 0))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_handle_ends_when_it_is_released_and_sealed(sealed: bool) -> None:
    rank = OneRank()
    rank.begin()
    if sealed:
        rank.run(30)
    rank.say(releases=("h1",))
    assert rank.held() == (NOTHING if sealed else (1, 1, 0))
    if not sealed:
        rank.run(30)
    assert (rank.held(), rank.known()) == (NOTHING, (0, 0, 0, 0))


def test_nothing_ends_twice_or_before_it_was_admitted() -> None:
    rank = OneRank()
    rank.announce()
    rank.install()
    with pytest.raises(RoundError, match="handle was released that request 1 does not have"):
        rank.say(releases=("h1",))
    with pytest.raises(RoundError, match="request 1 ends after wave 2, though it was not admitted"):
        rank.cancel(after_wave=2)
    rank.admit()
    rank.say(releases=("h1",))
    with pytest.raises(RoundError, match="handle was released"):
        rank.say(releases=("h1",))
    with pytest.raises(RoundError, match="request 1 is cancelled"):
        rank.cancel()


def test_no_refusal_gives_a_handle_away() -> None:
    rank = OneRank()
    rank.announce()
    for says in (
        {"releases": ("secret",)},
        {"cancels": (Cancel(1, 2, "secret"),)},
        {"cancels": (Cancel(1, -1, "secret"),)},
    ):
        with pytest.raises(RoundError) as refusal:
            rank.say(**says)
        assert "secret" not in str(refusal.value)


def test_reset_drops_only_what_nobody_holds() -> None:
    rank = OneRank()
    rank.preload(OTHER, 12)
    rank.preload(TOKENS, 8, (8,))
    rank.announce()
    rank.install(candidate=8)
    gauges = rank.say(reset=True).gauges
    assert gauges.pages_reclaimable == 0
    assert (gauges.pages_pinned, gauges.slots_pinned) == (2, 1), "the leased prefix"
