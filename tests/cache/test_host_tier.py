"""The host tier keeps what the device makes way with, as long as it has room."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.eviction import Retention
from wavepp.cache.layout import Window
from wavepp.cache.pool import IdPool
from wavepp.cache.stage_cache import StageCache

from .requests import ATTENTION, BOTH, RECURRENT, admit, compute, lease, leave, materialise
from .side_by_side import BLOCK, chain


def host_of(cache: StageCache, window: Window = Window.ATTENTION) -> dict[bytes, int]:
    """Places on the host, by key."""
    found = cache._attention if window is Window.ATTENTION else cache._recurrent
    return {entry.key: entry.host for entry in found.tree if entry.host >= 0} if found else {}


def test_offloading_keeps_hints_and_is_told_as_copies() -> None:
    cache = StageCache(BOTH, 4, 3, BLOCK, host_pages=4, host_slots=3)
    leave(cache, 1, "abcd", snapshots=(8, 16))
    pages = {node.key: node.item for node in cache._attention.tree} if cache._attention else {}
    admit(cache, 2, "xyz", snapshots=(4, 8))
    (moves,) = materialise(cache, 2)
    assert cache.hint(chain("abcd"), 16) == cache.probe(chain("abcd"), 16) == Reach(16)
    offloads = [(item, place) for window, item, place in moves.offloads if window is Window.ATTENTION]
    assert {*offloads} == {(pages[key], place) for key, place in host_of(cache).items()}
    assert [key for key in chain("abcd") if key in host_of(cache)] == [b"ab", b"abc", b"abcd"], "leaves first"
    assert len(host_of(cache, Window.RECURRENT)) == 2
    assert {item for item, _ in offloads} == {*cache.sequence(2).pages}, "what was freed is used in the same step"
    assert moves.onboards == ()
    cache.check()


def test_a_place_on_the_host_is_found_before_the_page_is_let_go_of() -> None:
    cache = StageCache(ATTENTION, 4, 0, BLOCK, host_pages=2)
    attention = cache._attention
    assert attention is not None
    places: list[int] = []

    class Watched(IdPool):
        def give(self, ids: Iterable[int]) -> None:
            places.append(attention.host.pool.capacity - attention.host.pool.free)
            super().give(ids)

    attention.pool = Watched(4)
    leave(cache, 1, "abcd")
    admit(cache, 2, "xyz")
    places.clear()
    materialise(cache, 2)
    assert places == [1, 2, 2], "each victim has its place by then, the third that of the first"
    cache.check()


def test_the_host_drops_its_own_oldest_to_make_room() -> None:
    cache = StageCache(ATTENTION, 3, 0, BLOCK, host_pages=3)
    leave(cache, 1, "abc")
    leave(cache, 2, "xyz")
    assert [*host_of(cache)] == [*chain("abc")]
    leave(cache, 3, "m")
    assert [*sorted(host_of(cache))] == [b"a", b"ab", b"xyz"]
    assert cache.probe(chain("abc"), 12) == Reach(8, "attention")
    assert cache.probe(chain("xyz"), 12) == Reach(12)
    gauges = cache.gauges()
    assert (gauges.offloaded, gauges.dropped, gauges.host_pages_free) == (4, 1, 0)
    cache.check()


def test_what_is_offloaded_and_dropped_in_one_step_is_not_copied() -> None:
    cache = StageCache(ATTENTION, 6, 0, BLOCK, host_pages=2)
    leave(cache, 1, "abcdef")
    admit(cache, 2, "uvwxyz")
    (moves,) = materialise(cache, 2)
    assert len(moves.offloads) == 2
    assert {*host_of(cache)} == {b"a", b"ab"}
    assert {place for _, _, place in moves.offloads} == {*host_of(cache).values()}
    gauges = cache.gauges()
    assert (gauges.offloaded, gauges.dropped) == (2, 4)
    cache.check()


def test_a_leased_entry_on_the_host_is_not_dropped() -> None:
    cache = StageCache(ATTENTION, 6, 0, BLOCK, host_pages=2)
    leave(cache, 1, "ab")
    leave(cache, 2, "uvwxyz")
    assert {*host_of(cache)} == {*chain("ab")}
    assert lease(cache, 3, "abc", candidate=8) == Reach(8)
    assert cache.prepare(3, ()) == Prepared(8, 0, 0, 3), "the host is full of what it leases itself"
    assert cache.commit(3, 8, ()) == Reach(8)
    steps = materialise(cache, 3)
    assert [len(moves.offloads) for moves in steps] == [0, 1], "the first ones leave, then there are two places"
    assert cache.probe(chain("abc"), 8) == Reach(8)
    cache.check()


def test_a_place_that_is_read_in_a_step_is_not_written_in_it() -> None:
    """All offloads of a step come before its onboards: a place is free for others only in the next step."""
    cache = StageCache(ATTENTION, 2, 0, BLOCK, host_pages=1)
    leave(cache, 1, "a")
    leave(cache, 2, "xy")
    assert {*host_of(cache)} == {b"a"}
    admit(cache, 3, "a", 1, candidate=4)
    moves = cache.materialise(3, 4)
    assert moves is not None
    assert (moves.offloads, len(moves.onboards)) == ((), 1)
    assert cache.gauges().host_pages_free == 1
    moves = cache.materialise(3, 5)
    assert moves is not None
    assert (len(moves.offloads), moves.onboards) == (1, ())
    cache.check()


def test_a_source_is_not_overwritten_by_what_makes_way_for_its_copy() -> None:
    cache = StageCache(RECURRENT, 0, 3, BLOCK, host_slots=1)
    leave(cache, 1, "a", snapshots=(4,))
    leave(cache, 2, "xy", snapshots=(4, 8))
    admit(cache, 3, "m", 1)
    materialise(cache, 3)
    assert {*host_of(cache, Window.RECURRENT)} == {b"a"}
    admit(cache, 4, "a", 1, candidate=4)
    moves = cache.materialise(4, 4)
    assert moves is not None
    assert (moves.offloads, len(moves.onboards)) == ((), 1)
    assert {*host_of(cache, Window.RECURRENT)} == {b"a"}
    assert cache.gauges().host_slots_reclaimable == 1
    assert cache.probe(chain("xy"), 8) == Reach(8)
    assert cache.probe(chain("x"), 4) == Reach(0, "recurrent"), "lost, as its place was not free yet"
    cache.check()


def test_a_publisher_replaces_what_is_on_the_host() -> None:
    cache = StageCache(BOTH, 4, 3, BLOCK, host_pages=4, host_slots=2)
    leave(cache, 1, "ab", snapshots=(8,))
    leave(cache, 2, "wxyz", snapshots=(8, 16))
    assert {*host_of(cache)} == {*chain("ab")}
    assert {*host_of(cache, Window.RECURRENT)} == {b"ab"}
    admit(cache, 3, "abc", snapshots=(8,))  # Computes what is there again.
    materialise(cache, 3)
    compute(cache, 3, 8)
    sequence = cache.sequence(3)
    assert {*host_of(cache)}.isdisjoint(chain("ab"))
    assert cache._attention is not None
    assert tuple(cache._attention.tree[key].item for key in chain("ab")) == sequence.pages[:2]
    assert sequence.own_pages() == list(sequence.pages[2:])
    assert b"ab" not in host_of(cache, Window.RECURRENT)
    assert cache.gauges().onboarded == 0
    cache.check()


def test_a_publisher_brings_back_what_others_count_on() -> None:
    cache = StageCache(ATTENTION, 12, 0, BLOCK, host_pages=12)
    leave(cache, 1, "abc")
    leave(cache, 2, "klmnopqrstuv")
    assert {*host_of(cache)} == {*chain("abc")}
    admit(cache, 3, "abc", 1, candidate=12)
    admit(cache, 4, "abc", 2)
    assert cache.gauges().pages_promised == 4 + 4
    materialise(cache, 4, 8)
    released = cache.released
    cache.publish(4, 8)
    assert cache.gauges().pages_promised == 2 + 2, "two blocks are there now, for both"
    assert cache.released == released + 1
    cache.check()
    steps = materialise(cache, 3)
    assert [len(moves.onboards) for moves in steps] == [1, 0]
    cache.check()


def test_a_smaller_promise_does_not_take_from_what_another_counts_on() -> None:
    cache = StageCache(ATTENTION, 10, 0, BLOCK, host_pages=12)
    leave(cache, 1, "abcd")
    leave(cache, 2, "klmnopqrst")
    admit(cache, 3, "abcd", 1, candidate=16)  # Four to bring back and one.
    assert lease(cache, 4, "abcdmn", candidate=16) == Reach(16)
    assert cache.prepare(4, ()) == Prepared(16, 0, 2, 0), "the four are promised already"
    # Computing the four again takes four of its own beside the four of the other: three are left.
    assert cache.commit(4, 0, ()) == NoRoom("attention", 6, 5)
    assert cache.commit(4, 4, ()) == Reach(4)
    assert cache.gauges().pages_promised == 10
    cache.check()
    materialise(cache, 4)
    materialise(cache, 3)
    cache.check()


@pytest.mark.parametrize(("retention", "kept"), [("lru", {b"x", b"xy"}), ("cost", {b"abcdef", b"xy"})])
def test_costly_snapshots_outlive_cheap_ones_where_cost_counts(retention: Retention, kept: set[bytes]) -> None:
    cache = StageCache(RECURRENT, 0, 3, BLOCK, retention=retention)
    leave(cache, 1, "abcdef", snapshots=(24,))
    leave(cache, 2, "x", snapshots=(4,))
    leave(cache, 3, "xy", snapshots=(8,))
    assert cache._recurrent is not None
    assert {snapshot.key for snapshot in cache._recurrent.tree} == kept


def test_a_snapshot_costs_what_lies_between_it_and_the_one_before() -> None:
    cache = StageCache(RECURRENT, 0, 9, BLOCK, retention="cost")
    leave(cache, 1, "abcdef", snapshots=(8, 12, 24))
    admit(cache, 2, "abcxyz", candidate=12, snapshots=(16, 24))
    compute(cache, 2, 16)
    compute(cache, 2, 24)
    assert cache._recurrent is not None
    costs = {snapshot.key: snapshot.cost for snapshot in cache._recurrent.tree}
    assert costs == {b"ab": 8, b"abc": 4, b"abcdef": 12, b"abcx": 4, b"abcxyz": 8}


def test_reset_drops_what_is_on_the_host_too() -> None:
    cache = StageCache(BOTH, 4, 4, BLOCK, host_pages=4, host_slots=4)
    leave(cache, 1, "abcd", snapshots=(8, 16))
    leave(cache, 2, "xyz", snapshots=(4, 8, 12))
    assert lease(cache, 3, "abx", candidate=8) == Reach(8)
    dropped = cache.gauges().dropped
    cache.reset()
    cache.check()
    assert cache.hint(chain("abcd"), 16) == Reach(8, "attention"), "leased, though on the host"
    assert {*host_of(cache)} == {b"ab"}
    assert cache.gauges().dropped == dropped, "nothing was dropped to make room"
    cache.withdraw(3)
    cache.reset()
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.slots_free, gauges.host_pages_free, gauges.host_slots_free) == (4, 4, 4, 4)


def test_a_host_tier_cannot_have_less_than_no_places() -> None:
    with pytest.raises(ValueError, match="-1 places"):
        StageCache(ATTENTION, 4, 0, BLOCK, host_pages=-1)
