"""A rank that lacks room: what it votes, who waits behind, and when it says that trying again may help."""

from wavepp.admission.messages import BLOCKED, Install, Verdict
from wavepp.cache.answers import NoRoom, Prepared
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .one_rank import BLOCK, OTHER, THIRD, OneRank, two_for_one


def test_a_vote_without_room_names_the_window_and_the_room_there_had_been() -> None:
    rank = two_for_one()
    up = rank.say(installs=(Install(2, 1, 0, (28,)),))
    vote = up.votes[0]
    assert (vote.committed, vote.endpoint, vote.reason) == (False, 0, "attention")
    assert vote.released == up.released == rank.cache.released
    assert rank.participant.report() is None
    assert rank.held() == (1, 1, 0)


def test_what_the_attempt_itself_gives_back_is_no_room_for_another_try() -> None:
    rank = OneRank(windows=frozenset({Window.ATTENTION}))
    rank.preload(OTHER, 12)
    rank.begin(1)
    rank.announce(2, OTHER)
    before = rank.cache.released
    up = rank.say(installs=(Install(2, 1, 12, ()),))
    assert rank.cache.released > before, "the leased prefix was given back"
    assert (up.votes[0].reason, up.votes[0].released) == ("attention", up.released)


def test_room_that_comes_while_there_is_found_none_counts_as_having_come_later() -> None:
    class Raced(StageCache):
        """A pull of the only finished request ends just when room has been found lacking."""

        pull = -1

        def prepare(self, request: int, snapshots: tuple[int, ...]) -> Prepared | NoRoom:
            outcome = super().prepare(request, snapshots)
            if isinstance(outcome, NoRoom):
                assert self.close_pull(self.pull)
            return outcome

    rank = OneRank(cache=Raced(frozenset({Window.ATTENTION}), 12, 0, BLOCK))
    assert isinstance(rank.cache, Raced)
    rank.begin(1)
    rank.run(30)
    rank.cache.pull = rank.cache.open_pull("h1").id
    rank.say(releases=("h1",))
    rank.announce(2, OTHER + THIRD[: 4 * 10])
    up = rank.say(installs=(Install(2, 1, 0, ()),))
    assert up.votes[0].reason == "attention"
    assert up.votes[0].released < up.released
    rank.reject(2)
    assert rank.install(2, attempt=2, snapshots=()).committed


def test_those_behind_one_that_lacks_room_are_blocked_until_its_verdict() -> None:
    rank = two_for_one()
    assert rank.install(2).reason == "attention"
    blocked = rank.install(3, snapshots=())
    assert (blocked.reason, blocked.endpoint, blocked.committed) == (BLOCKED, 0, False)
    assert rank.held() == (1, 1, 0), "it would have fitted, and holds nothing"
    rank.reject(2)
    assert rank.install(3, snapshots=()) == blocked, "the same question has the same answer"
    rank.reject(3)
    assert rank.install(3, attempt=2, snapshots=()).committed


def test_those_behind_are_blocked_within_one_round_too() -> None:
    rank = two_for_one()
    up = rank.say(installs=(Install(2, 1, 0, (28,)), Install(3, 1, 0, ())))
    assert [vote.reason for vote in up.votes] == ["attention", BLOCKED]
    up = rank.say(
        verdicts=(Verdict(2, 1, 0, False), Verdict(3, 1, 0, False)),
        installs=(Install(3, 2, 0, ()), Install(2, 2, 0, (28,))),
    )
    assert [vote.reason for vote in up.votes] == ["", "attention"]


def test_the_end_of_one_that_lacked_room_lets_those_behind_it_pass() -> None:
    rank = two_for_one()
    rank.install(2)
    rank.cancel(2)
    assert rank.install(3, snapshots=()).committed


def test_room_that_comes_between_rounds_is_reported_once() -> None:
    rank = OneRank()
    rank.begin()
    rank.run(30)
    report = rank.participant.report()
    assert report is not None and report.released == rank.cache.released
    assert (report.round, report.hints, report.votes) == (rank.round, (), ())
    assert rank.participant.report() is None
