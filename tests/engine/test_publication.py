"""A wave counts as published when every rank has said so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.engine.publication import Publication


def test_chunks_are_published_when_the_last_rank_reports_their_wave() -> None:
    publication = Publication(3)
    publication.planned(0, ((1, 16), (2, 16)))
    publication.planned(1, ((1, 32),))
    assert publication.done(0, 0) == ()
    assert publication.done(0, 1) == ()
    assert publication.done(1, 0) == ()
    assert publication.done(2, 0) == ((1, 16), (2, 16))
    assert publication.done(2, 1) == (), "the last stage may be ahead of one before it: settling takes its time"
    assert publication.done(1, 1) == ((1, 32),)


def test_a_group_of_one_publishes_at_once() -> None:
    publication = Publication(1)
    publication.planned(0, ((9, 7),))
    assert publication.done(0, 0) == ((9, 7),)


def test_a_report_out_of_turn_is_an_error_with_the_rank_and_the_wave() -> None:
    publication = Publication(2)
    publication.planned(0, ((1, 16),))
    with pytest.raises(RuntimeError, match="rank 1 reports wave 1 done, where wave 0 was due"):
        publication.done(1, 1)
    publication.done(1, 0)
    with pytest.raises(RuntimeError, match="rank 1 reports wave 0 done, where wave 1 was due"):
        publication.done(1, 0)


@given(st.integers(1, 5), st.integers(1, 8), st.randoms())
def test_every_chunk_is_published_once_in_order_and_never_early(ranks: int, waves: int, random) -> None:
    publication = Publication(ranks)
    reports = [rank for rank in range(ranks) for _ in range(waves)]
    random.shuffle(reports)
    done = [0] * ranks
    published: list[tuple[int, int]] = []
    planned = 0
    for rank in reports:
        if done[rank] == planned:
            publication.planned(planned, ((planned, 1),))
            planned += 1
        published.extend(publication.done(rank, done[rank]))
        done[rank] += 1
        assert published == [(wave, 1) for wave in range(min(done))]
    assert len(published) == waves
