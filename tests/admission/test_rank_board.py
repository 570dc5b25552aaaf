"""Who has answered, who is silent, and what was last heard."""

import pytest
from wavepp.admission.errors import RoundError
from wavepp.admission.messages import Gauges, RoundUp
from wavepp.admission.rank_board import RankBoard


def board(*, in_waves: bool = True) -> RankBoard:
    return RankBoard(2, 1, 30.0, 100.0, answers_in_waves=in_waves)


def test_older_answers_are_signs_of_life_and_no_news() -> None:
    ranks = board()
    ranks.sent(1, 0.0)
    ranks.sent(2, 0.0)
    ranks.hear(RoundUp(1, 0, 2, released=5, gauges=Gauges(pages_free=7)), 1.0)
    ranks.hear(RoundUp(1, 0, 1, released=3, gauges=Gauges(pages_free=9)), 2.0)
    ranks.hear(RoundUp(1, 0, 2, released=5, gauges=Gauges(pages_free=6)), 3.0)
    assert ranks.released(0) == 5
    assert ranks.gauges[0].pages_free == 6
    assert not ranks.all_answered(2) and ranks.owing
    ranks.hear(RoundUp(1, 1, 2), 3.0)
    assert ranks.all_answered(2) and not ranks.owing


@pytest.mark.parametrize(
    ("up", "why"), [(RoundUp(2, 0, 1), "epoch 2"), (RoundUp(1, 2, 1), "rank 2"), (RoundUp(1, 0, 2), "round 2")]
)
def test_an_answer_that_cannot_be_is_an_error_with_a_name(up: RoundUp, why: str) -> None:
    ranks = board()
    ranks.sent(1, 0.0)
    with pytest.raises(RoundError, match=why):
        ranks.hear(up, 0.0)


def test_a_rank_is_silent_when_it_has_owed_an_answer_for_too_long() -> None:
    ranks = board()
    assert ranks.silence_at() is None
    ranks.sent(1, 10.0)
    ranks.hear(RoundUp(1, 0, 1), 11.0)
    assert (ranks.silence_at(), ranks.silent(39.9), ranks.silent(40.0)) == (40.0, (), (1,))
    ranks.sent(2, 20.0)
    assert ranks.silence_at() == 40.0, "the newer round does not excuse it"
    ranks.hear(RoundUp(1, 1, 1), 25.0)
    assert ranks.silence_at() == 50.0, "rank 0 is next; rank 1 owes the second round since it was heard"


def test_where_ranks_answer_in_waves_a_wave_excuses_no_silence_and_has_its_own_limit() -> None:
    ranks = board()
    ranks.alive(1, 0.0, in_wave=True)
    assert (ranks.silence_at(), ranks.silent(99.0), ranks.silent(100.0)) == (100.0, (), (1,))
    ranks.sent(1, 1.0)
    ranks.hear(RoundUp(1, 0, 1), 2.0)
    assert (ranks.silent(30.9), ranks.silent(31.0)) == ((), (1,))
    ranks.hear(RoundUp(1, 1, 1), 5.0)
    assert ranks.silence_at() == 100.0
    ranks.alive(1, 50.0, in_wave=False)
    assert ranks.silence_at() is None


def test_where_ranks_answer_between_waves_silence_may_last_as_long_as_a_wave() -> None:
    ranks = board(in_waves=False)
    ranks.alive(1, 0.0, in_wave=True)
    assert ranks.silence_at() is None
    ranks.sent(1, 1.0)
    ranks.hear(RoundUp(1, 0, 1), 2.0)
    assert ranks.silence_at() == 101.0
    ranks.alive(1, 50.0, in_wave=False)
    assert ranks.silence_at() == 80.0
