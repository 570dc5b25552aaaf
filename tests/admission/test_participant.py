"""One rank's answers to rounds, in the order that they come and in no other."""

import pytest
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import Cancel, Install, Probe, RoundDown, RoundUp, Verdict
from wavepp.admission.request import Request
from wavepp.simulator.group import prompt
from wavepp.simulator.rank import Piece, Rank, RankSpec

EPOCH = 3
TOKENS = prompt(range(30))


class Driver:
    """Says one round after another to one rank."""

    def __init__(self, spec: RankSpec | None = None) -> None:
        self.rank = Rank(1, spec or RankSpec(True, True, 12, 6), 4, EPOCH)
        self.round = 0

    def say(self, **decisions: object) -> RoundUp:
        self.round += 1
        return self.rank.participant.apply(RoundDown(EPOCH, self.round, **decisions))  # pyright: ignore[reportArgumentType]

    def announce(self, number: int = 1, tokens: bytes = TOKENS) -> None:
        self.say(announces=(Request(number, f"r{number}", tokens, f"h{number}"),))

    def install(self, number: int = 1, attempt: int = 1, candidate: int = 0) -> RoundUp:
        return self.say(installs=(Install(number, attempt, candidate, (28,)),))

    def run(self, wave: int, start: int, end: int, number: int = 1) -> None:
        self.rank.waves.append((wave, (Piece(number, 1, 0, start, end, end == 30),)))
        self.rank.forward()
        self.rank.settle()

    def leases(self) -> int:
        self.rank.cache.check()
        return self.rank.cache.gauges().leases

    def handles(self) -> int:
        self.rank.cache.check()
        return self.rank.cache.gauges().handles


def test_a_round_of_another_epoch_is_refused() -> None:
    with pytest.raises(RoundError, match="epoch 2"):
        Driver().rank.participant.apply(RoundDown(2, 1))


@pytest.mark.parametrize("number", [1, 3])
def test_a_round_twice_or_after_a_gap_is_refused(number: int) -> None:
    driver = Driver()
    driver.say()
    with pytest.raises(RoundError, match=f"round {number}"):
        driver.rank.participant.apply(RoundDown(EPOCH, number))


def test_a_hint_says_how_far_and_what_limits_it() -> None:
    driver = Driver()
    driver.rank.preload(TOKENS, 24, (16,))
    driver.announce()
    up = driver.say(probes=(Probe(1, 1),))
    assert (up.epoch, up.rank, up.round) == (EPOCH, 1, 2)
    assert [(h.request, h.attempt, h.endpoint, h.limited_by) for h in up.hints] == [(1, 1, 16, "recurrent")]


def test_a_hint_leaves_one_token_to_compute() -> None:
    driver = Driver(RankSpec(True, False, 12, 0))
    tokens = prompt(range(28))
    driver.rank.preload(tokens, 28)
    driver.announce(tokens=tokens)
    assert driver.say(probes=(Probe(1, 1),)).hints[0].endpoint == 24


def test_the_same_install_again_changes_nothing_and_gets_the_same_vote() -> None:
    driver = Driver()
    driver.announce()
    first = driver.install()
    again = driver.install()
    assert first.votes == again.votes
    assert first.votes[0].committed
    assert first.gauges == again.gauges


def test_another_attempt_while_one_is_held_is_refused() -> None:
    driver = Driver()
    driver.announce()
    driver.install(attempt=1)
    with pytest.raises(RoundError, match="still held"):
        driver.install(attempt=2)


def test_a_rejected_attempt_holds_nothing_and_the_next_one_can_be_installed() -> None:
    driver = Driver()
    driver.announce()
    driver.install(attempt=1)
    driver.say(verdicts=(Verdict(1, 1, 0, False),))
    assert driver.leases() == 0
    assert driver.install(attempt=2).votes[0].committed


def test_a_vote_that_falls_short_names_how_far_and_by_what() -> None:
    driver = Driver()
    driver.rank.preload(TOKENS, 24, (8, 24))
    driver.announce()
    vote = driver.install(candidate=20).votes[0]
    assert (vote.committed, vote.endpoint, vote.reason, vote.limited_by) == (False, 8, "", "recurrent")
    assert driver.leases() == 0


def test_a_vote_without_room_names_the_window_and_the_room_there_had_been() -> None:
    driver = Driver()
    for number in (1, 2):
        driver.announce(number)
    driver.install(1)
    up = driver.install(2)
    assert (up.votes[0].committed, up.votes[0].reason) == (False, "attention")
    assert up.votes[0].released == up.released == driver.rank.cache.released
    assert driver.rank.participant.report() is None
    assert driver.say(cancels=(Cancel(1, -1),)).released > up.released


def test_room_that_comes_between_rounds_is_reported_once() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.run(0, 0, 30)
    report = driver.rank.participant.report()
    assert report is not None and report.released == driver.rank.cache.released
    assert report.round == driver.round
    assert driver.rank.participant.report() is None


def test_a_verdict_on_what_was_not_committed_is_refused() -> None:
    driver = Driver()
    driver.announce()
    driver.install(candidate=0)
    with pytest.raises(RoundError, match="voted"):
        driver.say(verdicts=(Verdict(1, 1, 4, True),))


def test_a_request_that_was_never_announced_is_refused() -> None:
    with pytest.raises(RoundError, match="request 9"):
        Driver().say(probes=(Probe(9, 1),))
    with pytest.raises(RoundError, match="request 9"):
        Driver().rank.participant.request(9)


def test_an_announcement_twice_is_refused() -> None:
    driver = Driver()
    driver.announce()
    with pytest.raises(RoundError, match="twice"):
        driver.announce()


def test_a_cancelled_request_keeps_its_storage_until_the_last_wave_that_names_it_has_run() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.run(0, 0, 8)
    driver.say(cancels=(Cancel(1, 2),))
    assert driver.leases() == 1
    driver.run(1, 8, 16)
    assert driver.leases() == 1
    driver.run(2, 16, 24)
    assert (driver.leases(), driver.rank.participant.known) == (0, 0)
    gauges = driver.rank.cache.gauges()
    assert gauges.pages_reclaimable == 24 // 4, "what was computed stays reusable"
    assert gauges.pages_pinned == 0


def test_a_cancellation_after_its_last_wave_has_run_takes_effect_at_once() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.run(0, 0, 8)
    driver.say(cancels=(Cancel(1, 0),))
    assert driver.leases() == 0


def test_wave_completed_tells_whether_a_cancelled_request_ended() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.say(cancels=(Cancel(1, 5),))
    assert not driver.rank.participant.wave_completed(4)
    assert driver.rank.participant.wave_completed(5)


def test_a_cancellation_of_a_request_that_was_sealed_meanwhile_ends_its_handle() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.run(0, 0, 30)
    assert (driver.leases(), driver.handles()) == (0, 1)
    driver.say(cancels=(Cancel(1, 0),))
    assert (driver.handles(), driver.rank.participant.sealed) == (0, 0)


def test_a_handle_released_before_this_rank_has_finished_ends_when_it_has() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.say(releases=("h1",))
    assert driver.leases() == 1
    driver.run(0, 0, 30)
    assert (driver.leases(), driver.handles()) == (0, 0)
    assert (driver.rank.participant.known, driver.rank.participant.sealed) == (0, 0)
    driver.announce()


def test_a_verdict_that_comes_after_the_waves_is_harmless() -> None:
    driver = Driver()
    driver.announce()
    driver.install()
    driver.run(0, 0, 30)
    driver.say(verdicts=(Verdict(1, 1, 0, True),))
    assert driver.handles() == 1


def test_reset_drops_only_what_nobody_holds() -> None:
    driver = Driver()
    driver.rank.preload(prompt(range(100, 112)), 12)
    driver.announce()
    driver.install()
    gauges = driver.say(reset=True).gauges
    assert gauges.pages_reclaimable == 0
    assert gauges.pages_pinned == 8
