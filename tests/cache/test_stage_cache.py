"""Claims: what is reused, what is taken, what is refused, and the worked examples of the design."""

import pytest
from wavepp.cache.answers import Claimed, NoRoom, Reach, Short
from wavepp.cache.errors import CacheCorrupt, UnknownSequence
from wavepp.cache.keys import KeySpace
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .world import BLOCK, chain

BOTH = frozenset(Window)
ATTENTION, RECURRENT = frozenset({Window.ATTENTION}), frozenset({Window.RECURRENT})
K = 1024


def finish(cache: StageCache, request: int, prompt: str, tail: int = 0, snapshots: tuple[int, ...] = ()) -> None:
    """Computes a prompt from nothing, publishes all of it and drops it: what it leaves is cached."""
    keys = chain(prompt)
    tokens = len(keys) * BLOCK + tail
    assert cache.claim(request, 0, f"h{request}", keys, tokens, 0, snapshots) == Claimed(0)
    cache.publish(request, tokens)
    cache.release(request)


def test_the_hint_is_what_all_windows_support() -> None:
    """Worked example: attention reaches 7 blocks, recurrent 6; the candidate is 6."""
    cache = StageCache(BOTH, 20, 5, BLOCK)
    finish(cache, 1, "abcdefg", snapshots=(2 * BLOCK, 6 * BLOCK))
    assert cache.probe(chain("abcdefgh"), 7 * BLOCK) == Reach(6 * BLOCK, "recurrent")
    assert cache.probe(chain("abcdefgh"), 5 * BLOCK) == Reach(2 * BLOCK, "recurrent")
    assert cache.probe(chain("abcxefgh"), 7 * BLOCK) == Reach(2 * BLOCK, "recurrent")
    assert cache.probe(chain("axcdefgh"), 7 * BLOCK) == Reach(0, "recurrent")
    assert cache.probe(chain("xbcdefgh"), 7 * BLOCK) == Reach(0, "attention")


def test_a_stage_is_limited_only_by_the_windows_it_has() -> None:
    keys = chain("abc")
    assert StageCache(frozenset(), 0, 0, BLOCK).probe(keys, 12) == Reach(12, "")
    assert StageCache(ATTENTION, 5, 0, BLOCK).probe(keys, 12) == Reach(0, "attention")
    assert StageCache(RECURRENT, 0, 5, BLOCK).probe(keys, 12) == Reach(0, "recurrent")
    cache = StageCache(frozenset(), 0, 0, BLOCK)
    assert cache.claim(1, 0, "h", keys, 14, 12, (4,)) == Claimed(12)
    sequence = cache.sequence(1)
    assert (sequence.pages, sequence.slot, sequence.source_slot, sequence.snapshots) == ((), -1, -1, ())
    cache.publish(1, 14)
    cache.seal(1)
    pull = cache.open_pull("h")
    assert (pull.pages, pull.slot, pull.num_tokens) == ((), -1, 14)


def test_ranks_with_different_snapshots_agree_on_a_lower_endpoint() -> None:
    """Worked example: rank 0 has 64K, 72K and 90K, rank 1 has 64K and 80K; the candidate falls 80K → 72K → 64K."""
    block, tokens = K, 100 * K
    keys = KeySpace("model").block_keys(bytes(4 * tokens), block)
    ranks = []
    for positions in ((64 * K, 72 * K, 90 * K), (64 * K, 80 * K)):
        cache = StageCache(RECURRENT, 0, 8, block)
        cache.claim(1, 0, "h1", keys, tokens, 0, positions)
        cache.publish(1, tokens)
        cache.release(1)
        ranks.append(cache)
    assert [rank.probe(keys, 99 * K).endpoint for rank in ranks] == [90 * K, 80 * K]
    candidate, seen = 80 * K, []
    for attempt in range(4):
        seen.append(candidate)
        answers = [rank.claim(2, attempt, "h2", keys, tokens, candidate, ()) for rank in ranks]
        if all(isinstance(answer, Claimed) for answer in answers):
            break
        candidate = min(answer.endpoint for answer in answers if not isinstance(answer, NoRoom))
        for rank in ranks:
            rank.release(2)
    assert seen == [80 * K, 72 * K, 64 * K]


def test_a_lower_endpoint_raises_the_demand_by_what_is_computed_again() -> None:
    """Worked example: 200K tokens, reuse falls from 112K to 96K; the suffix grows from 88K to 104K."""
    cache = StageCache(ATTENTION, 300, 0, K)
    keys = KeySpace("model").block_keys(bytes(4 * 200 * K), K)
    cache.claim(1, 0, "h1", keys[:112], 112 * K, 0, ())
    cache.publish(1, 112 * K)
    cache.release(1)
    for attempt, (endpoint, suffix) in enumerate(((112 * K, 88), (96 * K, 104))):
        before = cache.gauges()
        assert cache.claim(2, attempt, "h2", keys, 200 * K, endpoint, ()) == Claimed(endpoint)
        after = cache.gauges()
        assert before.pages_free - after.pages_free == suffix
        assert before.pages_reclaimable - after.pages_reclaimable == endpoint // K
        cache.release(2)


def test_free_pages_are_taken_first_then_the_least_recently_used() -> None:
    """Six suffix blocks from three free pages and three reclaimable ones: the oldest path's, deepest first."""
    cache = StageCache(ATTENTION, 8, 0, BLOCK)
    finish(cache, 1, "abc")
    finish(cache, 2, "xy")
    assert cache.gauges().pages_free == 3
    assert cache.claim(3, 0, "h3", chain("mnopqr"), 24, 0, ()) == Claimed(0)
    assert cache.probe(chain("abc"), 12).endpoint == 0
    assert cache.probe(chain("xy"), 8).endpoint == 8
    finish(cache, 4, "q")
    assert cache.probe(chain("xy"), 8).endpoint == 4


def test_no_room_evicts_nothing_and_holds_nothing() -> None:
    cache = StageCache(BOTH, 8, 4, BLOCK)
    finish(cache, 1, "abcd", snapshots=(8, 16))
    before = cache.gauges()
    keys = chain("abmnopqrs")
    assert cache.claim(2, 0, "h2", keys, 36, 8, ()) == NoRoom("attention", 7, 6)
    assert cache.claim(2, 0, "h2", keys[:4], 16, 0, (4, 8, 12, 16)) == NoRoom("recurrent", 5, 4)
    assert cache.gauges() == before
    assert cache.probe(chain("abcd"), 16) == Reach(16, "")
    with pytest.raises(UnknownSequence):
        cache.sequence(2)


def test_a_claim_never_evicts_its_own_prefix() -> None:
    cache = StageCache(BOTH, 4, 3, BLOCK)
    finish(cache, 1, "abc", snapshots=(8, 12))
    # The source at 8 is the oldest snapshot and the deepest attention block the oldest block; neither may go.
    assert cache.claim(2, 0, "h2", chain("abxy"), 16, 8, (12,)) == Claimed(8)
    sequence = cache.sequence(2)
    assert len({*sequence.pages}) == 4
    assert len({sequence.source_slot, sequence.slot, sequence.snapshots[0][1]}) == 3
    cache.check()


def test_a_source_that_leaves_no_room_for_the_rest_is_out_of_reach() -> None:
    """Two slots hold a live state and one capture, but not the source too: waiting would not help, recomputing does."""
    cache = StageCache(RECURRENT, 0, 2, BLOCK)
    finish(cache, 1, "ab", snapshots=(8,))
    assert cache.fits(17, 1)
    assert not cache.fits(17, 2)
    assert cache.claim(2, 0, "h2", chain("abcd"), 17, 8, (16,)) == Short(0)
    assert cache.claim(2, 1, "h2", chain("abcd"), 17, 0, (16,)) == Claimed(0)


def test_planned_snapshots_within_the_prefix_are_not_taken_again() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    finish(cache, 1, "abc", snapshots=(4, 8))
    assert cache.claim(2, 0, "h2", chain("abcd"), 18, 8, (4, 8, 12, 16)) == Claimed(8)
    assert [position for position, _ in cache.sequence(2).snapshots] == [12, 16]


def test_resuming_lets_go_of_the_source() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    finish(cache, 1, "abc", snapshots=(8,))
    cache.claim(2, 0, "h2", chain("abcd"), 16, 8, ())
    assert cache.gauges().slots_reclaimable == 0
    assert cache.sequence(2).source_slot >= 0
    cache.resumed(2)
    assert cache.gauges().slots_reclaimable == 1
    assert cache.sequence(2).source_slot == -1
    cache.resumed(2)
    cache.check()


def test_a_second_request_follows_on_what_the_first_has_published_so_far() -> None:
    cache = StageCache(BOTH, 20, 8, BLOCK)
    keys = chain("abcdef")
    cache.claim(1, 0, "h1", keys, 26, 0, (8, 24))
    assert cache.probe(keys, 24).endpoint == 0
    cache.publish(1, 12)
    assert cache.probe(keys, 24) == Reach(8, "recurrent")
    assert cache.claim(2, 0, "h2", keys, 26, 8, (24,)) == Claimed(8)
    assert cache.sequence(2).pages[:2] == cache.sequence(1).pages[:2]
    assert set(cache.sequence(2).pages[2:]).isdisjoint(cache.sequence(1).pages)


def test_the_first_publisher_of_a_block_keeps_its_page_there() -> None:
    cache = StageCache(ATTENTION, 20, 0, BLOCK)
    for request in (1, 2):
        cache.claim(request, 0, f"h{request}", chain("abcd"), 16, 0, ())
    cache.publish(1, 8)
    cache.publish(2, 16)
    first, second = cache.sequence(1), cache.sequence(2)
    cache.claim(3, 0, "h3", chain("abcdx"), 20, 16, ())
    assert cache.sequence(3).pages[:4] == (*first.pages[:2], *second.pages[2:])
    cache.release(1)
    cache.release(3)
    # Request 2 holds the first two nodes too, or its own third block would lose its parents.
    assert cache.gauges().pages_reclaimable == 0
    cache.release(2)
    assert (cache.gauges().pages_reclaimable, cache.gauges().pages_free) == (4, 16)
    cache.check()


def test_the_end_of_a_prompt_is_never_published() -> None:
    cache = StageCache(BOTH, 9, 4, BLOCK)
    finish(cache, 1, "ab", tail=3)
    assert (cache.gauges().pages_reclaimable, cache.gauges().slots_reclaimable) == (2, 0)


def test_what_holds_nothing_is_unknown() -> None:
    cache = StageCache(BOTH, 9, 4, BLOCK)
    for call in (cache.sequence, cache.resumed, cache.seal, lambda request: cache.publish(request, 0)):
        with pytest.raises(UnknownSequence, match="request 7"):
            call(7)
    cache.release(7)
    assert cache.released == 0


def test_malformed_claims_are_refused() -> None:
    cache, keys = StageCache(BOTH, 9, 4, BLOCK), chain("ab")
    for tokens, candidate, snapshots in (
        (8, 8, ()),
        (9, 2, ()),
        (12, 0, ()),
        (9, 0, (8, 4)),
        (9, 0, (3,)),
        (9, 0, (12,)),
    ):
        with pytest.raises(ValueError, match=r"keys for|candidate|snapshots"):
            cache.claim(1, 0, "h", keys, tokens, candidate, snapshots)
    assert cache.gauges().leases == 0


def test_released_grows_exactly_when_room_does() -> None:
    cache = StageCache(BOTH, 6, 4, BLOCK)
    counts = [cache.released]
    cache.claim(1, 0, "h1", chain("abc"), 12, 0, (8,))
    counts.append(cache.released)
    cache.publish(1, 4)
    counts.append(cache.released)
    cache.publish(1, 12)  # the snapshot at 8 becomes reclaimable
    counts.append(cache.released)
    cache.seal(1)
    counts.append(cache.released)
    cache.release_handle("h1")
    counts.append(cache.released)
    cache.reset()
    counts.append(cache.released)
    assert counts == [0, 0, 0, 1, 1, 2, 2]


def test_reset_leaves_what_is_held_and_nothing_else() -> None:
    cache = StageCache(BOTH, 20, 8, BLOCK)
    finish(cache, 1, "abcd", snapshots=(8, 16))
    cache.claim(2, 0, "h2", chain("abx"), 12, 8, ())
    cache.reset()
    assert cache.probe(chain("abcd"), 16) == Reach(8, "attention")
    cache.release(2)
    cache.reset()
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.slots_free) == (20, 8)


def test_check_finds_a_page_with_two_owners_and_a_lost_one() -> None:
    cache = StageCache(ATTENTION, 6, 0, BLOCK)
    cache.claim(1, 0, "h1", chain("ab"), 8, 0, ())
    cache.claim(2, 0, "h2", chain("xy"), 8, 0, ())
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
