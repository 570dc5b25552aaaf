"""Ids are each free or taken, and never twice."""

import pytest
from wavepp.cache.errors import CacheCorrupt
from wavepp.cache.pool import IdPool


def test_fresh_ids_ascend_and_the_last_given_back_is_taken_first() -> None:
    pool = IdPool(6)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.give([1, 3])
    assert pool.free == 4
    assert pool.take(3) == [3, 1, 4]
    assert pool.free_ids() == {5}


def test_a_double_free_is_an_error() -> None:
    pool = IdPool(3)
    pool.take(2)
    pool.give([0])
    for wrong in (0, 2, 3, -1):
        with pytest.raises(CacheCorrupt, match=str(wrong)):
            pool.give([wrong])
    assert pool.free_ids() == {0, 2}


def test_taking_more_than_is_free_takes_nothing() -> None:
    pool = IdPool(3)
    with pytest.raises(CacheCorrupt):
        pool.take(4)
    assert pool.free == 3
    assert pool.take(0) == []
