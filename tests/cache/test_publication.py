"""What is computed is attached for others, whoever comes first, and is let go of in order."""

from __future__ import annotations

import pytest
from wavepp.cache.answers import Reach
from wavepp.cache.errors import CacheCorrupt
from wavepp.cache.stage_cache import StageCache

from .requests import ATTENTION, BOTH, admit, compute, lease, leave, materialise
from .side_by_side import BLOCK, chain


def test_a_second_request_follows_on_what_the_first_has_published_so_far() -> None:
    cache = StageCache(BOTH, 20, 8, BLOCK)
    keys = chain("abcdef")
    admit(cache, 1, "abcdef", 2, snapshots=(8, 24))
    assert cache.hint(keys, 24).endpoint == 0
    compute(cache, 1, 12)
    assert cache.hint(keys, 24) == Reach(8, "recurrent")
    admit(cache, 2, "abcdef", 2, candidate=8, snapshots=(24,))
    materialise(cache, 1)
    materialise(cache, 2)
    assert cache.sequence(2).pages[:2] == cache.sequence(1).pages[:2]
    assert set(cache.sequence(2).pages[2:]).isdisjoint(cache.sequence(1).pages)


def test_the_first_publisher_of_a_block_keeps_its_page_there() -> None:
    cache = StageCache(ATTENTION, 20, 0, BLOCK)
    for request in (1, 2):
        admit(cache, request, "abcd")
        materialise(cache, request)
    cache.publish(1, 8)
    cache.publish(2, 16)
    first, second = cache.sequence(1), cache.sequence(2)
    admit(cache, 3, "abcdx", candidate=16)
    materialise(cache, 3)
    assert cache.sequence(3).pages[:4] == (*first.pages[:2], *second.pages[2:])
    cache.release(1)
    cache.release(3)
    # Request 2 holds the first two nodes too, or its own third block would lose its parents.
    assert cache.gauges().pages_reclaimable == 0
    cache.release(2)
    assert (cache.gauges().pages_reclaimable, cache.gauges().pages_free) == (4, 16)
    cache.check()


def test_what_doubles_a_tree_page_is_given_back_at_seal() -> None:
    cache = StageCache(ATTENTION, 20, 0, BLOCK)
    for request in (1, 2):
        admit(cache, request, "abcd", 1)
        materialise(cache, request)
    cache.publish(1, 12)
    first = cache.sequence(1).pages
    cache.publish(2, 17)
    second = cache.sequence(2).pages
    assert cache.gauges().pages_free == 10
    released = cache.released
    cache.seal(2)
    assert cache.gauges().pages_free == 13
    assert cache.released == released + 1
    assert cache.open_pull("h2").pages == (*first[:3], *second[3:])
    cache.check()
    cache.release(1)
    assert cache.gauges().pages_pinned == 5, "the handle holds the shared blocks itself"


def test_a_block_that_nobody_holds_takes_the_new_page_over() -> None:
    """Holding both would take a page from what is promised to others."""
    cache = StageCache(ATTENTION, 8, 0, BLOCK)
    leave(cache, 1, "ab")
    admit(cache, 2, "abc")
    admit(cache, 3, "xyz")
    assert cache._attention is not None
    assert cache._attention.slack == 2
    materialise(cache, 2)
    cache.publish(2, 8)
    assert cache._attention.slack == 2
    pages = cache.sequence(2).pages
    assert tuple(cache._attention.tree[key].item for key in chain("ab")) == pages[:2]
    cache.check()
    materialise(cache, 3)
    cache.check()


def test_the_end_of_a_prompt_is_never_published() -> None:
    cache = StageCache(BOTH, 9, 4, BLOCK)
    leave(cache, 1, "ab", tail=3)
    assert (cache.gauges().pages_reclaimable, cache.gauges().slots_reclaimable) == (2, 0)


def test_publishing_less_than_before_changes_nothing() -> None:
    cache = StageCache(BOTH, 9, 4, BLOCK)
    admit(cache, 1, "abc", snapshots=(4, 8))
    compute(cache, 1, 8)
    before = cache.gauges()
    cache.publish(1, 4)
    cache.publish(1, 0)
    assert cache.gauges() == before
    assert cache.sequence(1).computed == 8
    materialise(cache, 1)
    with pytest.raises(ValueError, match="13 tokens computed of 12"):
        cache.publish(1, 13)


def test_a_snapshot_that_is_there_already_stays_and_is_young_again() -> None:
    cache = StageCache(BOTH, 20, 5, BLOCK)
    leave(cache, 1, "a", snapshots=(4,))
    leave(cache, 2, "x", snapshots=(4,))
    assert cache._recurrent is not None
    slot = cache._recurrent.tree[b"a"].item
    leave(cache, 3, "a", snapshots=(4,))
    assert cache._recurrent.tree[b"a"].item == slot
    assert [snapshot.key for snapshot in cache._recurrent.tree.device.in_order()] == [b"x", b"a"]
    assert cache.gauges().slots_free == 3


def test_reset_leaves_what_is_held_and_nothing_else() -> None:
    cache = StageCache(BOTH, 20, 8, BLOCK)
    leave(cache, 1, "abcd", snapshots=(8, 16))
    admit(cache, 2, "abx", candidate=8)
    cache.reset()
    assert cache.hint(chain("abcd"), 16) == cache.probe(chain("abcd"), 16) == Reach(8, "attention")
    compute(cache, 2)
    cache.release(2)
    cache.reset()
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.slots_free) == (20, 8)


def test_check_finds_a_page_with_two_owners_and_a_lost_one() -> None:
    cache = StageCache(ATTENTION, 6, 0, BLOCK)
    for request, prompt in ((1, "ab"), (2, "xy")):
        admit(cache, request, prompt)
        materialise(cache, request)
    sequence = cache.sequence(1)
    kept = sequence.pages
    sequence.pages = (kept[0], cache.sequence(2).pages[0])
    with pytest.raises(CacheCorrupt, match="2: 2"):
        cache.check()
    sequence.pages = kept[:1]
    with pytest.raises(CacheCorrupt, match="1: 0"):
        cache.check()
    sequence.pages = kept
    cache.check()


def test_check_finds_what_contradicts_itself() -> None:
    cache = StageCache(BOTH, 6, 4, BLOCK, host_pages=4, host_slots=2)
    leave(cache, 1, "ab", snapshots=(8,))
    leave(cache, 2, "uvwxyz")
    admit(cache, 3, "abm", candidate=8)
    attention = cache._attention
    assert attention is not None
    node, sequence = attention.tree[b"a"], cache.sequence(3)
    attention.promised += 1
    with pytest.raises(CacheCorrupt, match="promised"):
        cache.check()
    attention.promised -= 1
    node.refs += 1
    with pytest.raises(CacheCorrupt, match="holders"):
        cache.check()
    node.refs -= 1
    node.item = 0
    with pytest.raises(CacheCorrupt, match="on the device at 0 and on the host"):
        cache.check()
    node.item, place, node.host = -1, node.host, 3
    with pytest.raises(CacheCorrupt, match="host ids"):
        cache.check()
    node.host = place
    cache.index.add(attention.window, b"elsewhere")
    with pytest.raises(CacheCorrupt, match="index"):
        cache.check()
    cache.index.remove(attention.window, b"elsewhere")
    sequence.promised.clear()
    with pytest.raises(CacheCorrupt, match="request 3 is promised 0"):
        cache.check()


def test_a_lease_on_the_way_is_no_obstacle_to_a_publisher() -> None:
    cache = StageCache(BOTH, 9, 5, BLOCK)
    admit(cache, 1, "abc", snapshots=(8,))
    compute(cache, 1, 8)
    assert lease(cache, 2, "abc", 1, 8) == Reach(8)
    compute(cache, 1, 12)
    cache.seal(1)
    cache.withdraw(2)
    cache.check()
