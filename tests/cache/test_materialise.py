"""Materialisation: what is promised is taken step by step, root first, and only then does anything make way."""

from __future__ import annotations

import pytest
from wavepp.cache.answers import Prepared, Reach
from wavepp.cache.errors import UnknownSequence, WrongPhase
from wavepp.cache.layout import Window
from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache

from .requests import ATTENTION, BOTH, RECURRENT, admit, compute, lease, leave, materialise
from .side_by_side import BLOCK, chain


@pytest.fixture
def offloaded() -> StageCache:
    """Four blocks and two snapshots of "abcd", all on the host; the device is free."""
    cache = StageCache(BOTH, 10, 4, BLOCK, host_pages=10, host_slots=4)
    leave(cache, 1, "abcd", snapshots=(8, 16))
    leave(cache, 2, "qrstuvwxyz", snapshots=(4, 8, 12))
    for window in cache._windows:  # Nothing of the second is left.
        while (entry := window.tree.device.pop()) is not None:
            window.tree.detach(entry)
            window.pool.give((entry.item,))
    cache.check()
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.slots_free) == (10, 4)
    assert (gauges.host_pages_reclaimable, gauges.host_slots_reclaimable) == (4, 2)
    return cache


def test_chunks_are_taken_one_by_one() -> None:
    cache = StageCache(BOTH, 20, 8, BLOCK)
    leave(cache, 1, "ab", snapshots=(8,))
    admit(cache, 2, "abcdefg", 1, candidate=8, snapshots=(16, 28))
    assert cache.gauges().pages_promised == 6
    assert cache.materialise(2, 8) is None, "the prefix is there already"
    sequence = cache.sequence(2)
    assert (len(sequence.pages), sequence.slot, sequence.source_slot) == (2, -1, -1)
    for upto, pages, captures in ((9, 3, 0), (16, 4, 1), (27, 7, 1), (29, 8, 2)):
        assert cache.materialise(2, upto) == Moves()
        assert cache.materialise(2, upto) is None
        assert cache.materialise(2, 8) is None
        assert (len(sequence.pages), len(sequence.snapshots)) == (pages, captures)
        assert cache.gauges().pages_promised == 8 - pages
        cache.check()
    assert sequence.slot >= 0
    assert sequence.source_slot >= 0
    assert len({*sequence.pages}) == 8


def test_what_makes_way_stays_until_its_page_is_taken() -> None:
    cache = StageCache(ATTENTION, 6, 0, BLOCK)
    leave(cache, 1, "abcdef")
    admit(cache, 2, "mnop")
    assert cache.probe(chain("abcdef"), 24) == Reach(24)
    for upto, left in ((4, 5), (8, 4), (12, 3), (16, 2)):
        assert cache.materialise(2, upto) == Moves()
        assert cache.probe(chain("abcdef"), 24).endpoint == left * BLOCK


def test_the_prefix_comes_back_root_first_in_bounded_steps(offloaded: StageCache) -> None:
    cache = offloaded
    assert lease(cache, 3, "abcdmn", candidate=16) == Reach(16)
    assert cache.prepare(3, ()) == Prepared(16, 7, 0, 0)
    assert cache.gauges().pages_promised == 6, "four to bring back, two to compute"
    assert cache.commit(3, 16, ()) == Reach(16)
    places = {node.key: node.host for node in cache._attention.tree} if cache._attention else {}
    brought: list[int] = []
    for _ in range(2):
        moves = cache.materialise(3, 24, limit=2)
        assert moves is not None
        assert moves.offloads == ()
        brought += [place for window, place, _ in moves.onboards if window is Window.ATTENTION]
        assert len(moves.onboards) == 2
        cache.check()
    assert brought == [places[key] for key in chain("abcd")]
    assert cache.sequence(3).slot == -1
    moves = cache.materialise(3, 24, limit=2)
    assert moves is not None
    sequence = cache.sequence(3)
    assert [(window, to) for window, _, to in moves.onboards] == [(Window.RECURRENT, sequence.slot)]
    assert sequence.source_slot == -1, "straight to the live slot"
    assert cache.gauges().slots_reclaimable == 0
    assert cache.gauges().host_slots_reclaimable == 2, "and let go of at once"
    assert cache.materialise(3, 24, limit=2) == Moves()
    assert cache.materialise(3, 24, limit=2) is None
    assert len(sequence.pages) == 6
    assert (cache.gauges().onboarded, cache.gauges().host_pages_free) == (5, 10)
    compute(cache, 3)
    cache.seal(3)
    cache.check()


def test_a_position_within_the_prefix_brings_the_prefix_only(offloaded: StageCache) -> None:
    cache = offloaded
    admit(cache, 3, "abcdmn", candidate=8, snapshots=(24,))
    materialise(cache, 3, 0)
    sequence = cache.sequence(3)
    assert len(sequence.pages) == 2
    assert sequence.snapshots == ()
    assert (cache.gauges().pages_promised, cache.gauges().slots_promised) == (4, 1)


def test_two_requests_share_what_is_brought_back(offloaded: StageCache) -> None:
    cache = offloaded
    admit(cache, 3, "abcd", 1, candidate=16)
    assert cache.gauges().pages_promised == 5
    admit(cache, 4, "abcd", 2, candidate=16)
    assert cache.gauges().pages_promised == 6, "each shared block once, and a page of its own for each"
    first = cache.materialise(3, 16, limit=1)
    assert first is not None
    assert len(first.onboards) == 1
    assert cache.gauges().pages_promised == 5
    cache.check()
    steps = materialise(cache, 4)
    assert sum(window is Window.ATTENTION for moves in steps for window, _, _ in moves.onboards) == 3
    assert cache.gauges().pages_promised == 1
    steps = materialise(cache, 3)
    assert not any(window is Window.ATTENTION for moves in steps for window, _, _ in moves.onboards)
    assert cache.gauges().pages_promised == 0
    assert cache.sequence(3).pages[:4] == cache.sequence(4).pages[:4]
    assert cache.sequence(3).pages[4] != cache.sequence(4).pages[4]
    cache.check()


def test_what_two_count_on_stays_promised_when_one_of_them_ends(offloaded: StageCache) -> None:
    cache = offloaded
    admit(cache, 3, "abcd", 1, candidate=16)
    admit(cache, 4, "abcdmn", candidate=8)
    assert cache.gauges().pages_promised == 9
    cache.withdraw(3)
    assert cache.gauges().pages_promised == 6
    cache.check()
    admit(cache, 5, "abcd", 1, candidate=16)
    cache.withdraw(4)
    assert cache.gauges().pages_promised == 5
    materialise(cache, 5)
    cache.check()


def test_a_request_may_end_with_its_prefix_half_there(offloaded: StageCache) -> None:
    cache = offloaded
    admit(cache, 3, "abcdmn", candidate=16)
    assert cache.materialise(3, 16, limit=3) is not None
    cache.release(3)
    cache.check()
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.pages_reclaimable, gauges.host_pages_reclaimable) == (7, 3, 1)
    assert (gauges.pages_promised, gauges.slots_promised, gauges.leases) == (0, 0, 0)
    assert cache.probe(chain("abcd"), 16) == Reach(16)
    admit(cache, 4, "abcd", 1, candidate=16)
    (moves,) = materialise(cache, 4, 16)
    assert [window for window, _, _ in moves.onboards] == [Window.ATTENTION, Window.RECURRENT]


def test_a_source_that_somebody_brought_to_the_device_meanwhile_is_copied_from_there() -> None:
    cache = StageCache(RECURRENT, 0, 3, BLOCK, host_slots=2)
    leave(cache, 1, "ab", snapshots=(8,))
    admit(cache, 2, "xy", 1, snapshots=(4, 8))
    materialise(cache, 2)
    cache.release(2)
    assert cache.gauges().host_slots_reclaimable == 1
    admit(cache, 3, "abc", candidate=8)
    admit(cache, 4, "ab", 1, snapshots=(8,))
    compute(cache, 4, 8)
    assert cache.gauges().host_slots_free == 2, "the other publisher's slot took its place"
    assert cache.materialise(3, 12) == Moves()
    sequence = cache.sequence(3)
    assert sequence.source_slot >= 0
    assert sequence.source_slot not in (sequence.slot, cache.sequence(4).slot)
    cache.resumed(3)
    assert sequence.source_slot == -1
    cache.check()


def test_resuming_lets_go_of_the_source() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    leave(cache, 1, "abc", snapshots=(8,))
    admit(cache, 2, "abcd", candidate=8)
    cache.resumed(2)
    assert cache.gauges().slots_reclaimable == 0, "nothing has been copied yet"
    materialise(cache, 2)
    assert cache.gauges().slots_reclaimable == 0
    assert cache.sequence(2).source_slot >= 0
    cache.resumed(2)
    assert cache.gauges().slots_reclaimable == 1
    assert cache.sequence(2).source_slot == -1
    cache.resumed(2)
    cache.check()


def test_what_is_not_committed_or_not_there_is_refused() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    for call in (cache.sequence, cache.resumed, cache.seal, lambda request: cache.publish(request, 4)):
        with pytest.raises(UnknownSequence, match="request 7"):
            call(7)
    with pytest.raises(UnknownSequence, match="request 7"):
        cache.materialise(7, 4)
    cache.release(7)
    assert cache.released == 0
    lease(cache, 1, "abc")
    for call in (cache.resumed, cache.seal, lambda request: cache.publish(request, 4)):
        with pytest.raises(WrongPhase, match="request 1 is leased"):
            call(1)
    cache.prepare(1, (8,))
    with pytest.raises(WrongPhase, match="request 1 is prepared"):
        cache.materialise(1, 4)
    cache.commit(1, 0, (8,))
    with pytest.raises(WrongPhase, match="is committed"):
        cache.prepare(1, ())
    materialise(cache, 1, 8)
    with pytest.raises(WrongPhase, match="not materialised up to 12"):
        cache.publish(1, 12)
    cache.publish(1, 8)
    with pytest.raises(WrongPhase, match="not materialised up to 12"):
        cache.seal(1)
    with pytest.raises(ValueError, match="13 tokens of 12"):
        cache.materialise(1, 13)
    with pytest.raises(ValueError, match="at most 0 copies"):
        cache.materialise(1, 12, 0)
    cache.check()
