"""Leases: what is pinned, what stops them, what is refused, and the worked examples of the design."""

from __future__ import annotations

import pytest
from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.errors import AttemptConflict, DuplicateHandle, UnknownSequence
from wavepp.cache.keys import KeySpace
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .requests import ATTENTION, BOTH, RECURRENT, admit, compute, lease, leave, materialise
from .side_by_side import BLOCK, chain

K = 1024


def test_the_hint_is_what_all_windows_support() -> None:
    """Worked example: attention reaches 7 blocks, recurrent 6; the candidate is 6."""
    cache = StageCache(BOTH, 20, 5, BLOCK)
    leave(cache, 1, "abcdefg", snapshots=(2 * BLOCK, 6 * BLOCK))
    for ask in (cache.hint, cache.probe):
        assert ask(chain("abcdefgh"), 7 * BLOCK) == Reach(6 * BLOCK, "recurrent")
        assert ask(chain("abcdefgh"), 5 * BLOCK) == Reach(2 * BLOCK, "recurrent")
        assert ask(chain("abcxefgh"), 7 * BLOCK) == Reach(2 * BLOCK, "recurrent")
        assert ask(chain("axcdefgh"), 7 * BLOCK) == Reach(0, "recurrent")
        assert ask(chain("xbcdefgh"), 7 * BLOCK) == Reach(0, "attention")
    assert lease(cache, 2, "abcdefgh", candidate=7 * BLOCK) == Reach(6 * BLOCK, "recurrent")


def test_a_stage_is_limited_only_by_the_windows_it_has() -> None:
    keys = chain("abc")
    for windows, expected in (
        (frozenset[Window](), Reach(12, "")),
        (ATTENTION, Reach(0, "attention")),
        (RECURRENT, Reach(0, "recurrent")),
    ):
        cache = StageCache(windows, 5, 5, BLOCK)
        assert cache.hint(keys, 12) == cache.probe(keys, 12) == expected
        assert cache.lease(1, 0, "h", keys, 14, 12) == expected


def test_a_stage_without_windows_does_everything_with_nothing() -> None:
    cache = StageCache(frozenset(), 0, 0, BLOCK)
    assert lease(cache, 1, "abc", 2, 12) == Reach(12)
    assert cache.prepare(1, (4,)) == Prepared(12, 0, 0, 0)
    assert cache.commit(1, 8, (4,)) == Reach(8)
    assert cache.materialise(1, 14) is None
    sequence = cache.sequence(1)
    assert (sequence.pages, sequence.slot, sequence.source_slot, sequence.snapshots) == ((), -1, -1, ())
    cache.publish(1, 14)
    cache.seal(1)
    pull = cache.open_pull("h1")
    assert (pull.pages, pull.slot, pull.num_tokens) == ((), -1, 14)


def test_a_lease_pins_no_more_than_the_candidate() -> None:
    cache = StageCache(BOTH, 20, 6, BLOCK)
    leave(cache, 1, "abcdef", snapshots=(8, 16))
    assert lease(cache, 2, "abcdef", 1, 8) == Reach(8)
    gauges = cache.gauges()
    assert (gauges.pages_pinned, gauges.slots_pinned) == (2, 1)
    assert (gauges.leases, gauges.escrows) == (1, 0)
    cache.reset()
    assert cache.probe(chain("abcdef"), 24) == Reach(8, "attention")


def test_a_lease_is_shared_with_others() -> None:
    cache = StageCache(BOTH, 20, 6, BLOCK)
    leave(cache, 1, "abcd", snapshots=(16,))
    for request in (2, 3, 4):
        assert lease(cache, request, "abcdx", candidate=16) == Reach(16)
    assert (cache.gauges().pages_pinned, cache.gauges().slots_pinned) == (4, 1)
    cache.withdraw(2)
    cache.withdraw(4)
    assert (cache.gauges().pages_pinned, cache.gauges().slots_pinned) == (4, 1)
    cache.withdraw(3)
    assert (cache.gauges().pages_pinned, cache.gauges().slots_pinned) == (0, 0)
    cache.check()


def test_the_same_attempt_gets_the_same_answer_and_another_none() -> None:
    cache = StageCache(BOTH, 20, 6, BLOCK)
    leave(cache, 1, "abc", snapshots=(8,))
    assert lease(cache, 2, "abcd", candidate=12) == Reach(8, "recurrent")
    before = cache.gauges()
    assert lease(cache, 2, "abcd", candidate=12) == Reach(8, "recurrent")
    with pytest.raises(AttemptConflict, match="attempt 1 while 0"):
        cache.lease(2, 1, "h2", chain("abcd"), 16, 12)
    with pytest.raises(DuplicateHandle, match="request 3"):
        cache.lease(3, 0, "h2", chain("abcd"), 16, 12)
    assert cache.gauges() == before
    cache.withdraw(2)
    assert cache.lease(2, 1, "h2", chain("abcd"), 16, 12) == Reach(8, "recurrent")


def test_malformed_calls_are_refused() -> None:
    cache, keys = StageCache(BOTH, 9, 4, BLOCK), chain("ab")
    for tokens, candidate in ((8, 8), (9, 2), (12, 0), (0, 0), (9, -4)):
        with pytest.raises(ValueError, match=r"keys for|endpoint"):
            cache.lease(1, 0, "h", keys, tokens, candidate)
    assert cache.gauges().leases == 0
    cache.lease(1, 0, "h", keys, 9, 0)
    for snapshots in ((8, 4), (3,), (12,), (4, 4), (0,)):
        with pytest.raises(ValueError, match="snapshots"):
            cache.prepare(1, snapshots)
        with pytest.raises(ValueError, match="snapshots"):
            cache.commit(1, 0, snapshots)
    for endpoint in (12, 3, -4):
        with pytest.raises(ValueError, match="endpoint"):
            cache.commit(1, endpoint, ())
    with pytest.raises(UnknownSequence):
        cache.prepare(2, ())
    cache.withdraw(2)
    cache.check()


def test_a_snapshot_that_leaves_no_slot_to_go_on_in_is_out_of_reach() -> None:
    cache = StageCache(RECURRENT, 0, 2, BLOCK)
    leave(cache, 1, "ab", snapshots=(8,))
    assert lease(cache, 2, "abcd", 1, 8) == Reach(8)
    assert cache.prepare(2, (16,)) == Prepared(0, 1, 0, 1), "waiting would not help, computing it again does"
    assert cache.sequence(2).endpoint == 0
    assert cache.commit(2, 8, (16,)) == Reach(0, "recurrent")
    assert cache.commit(2, 0, (16,)) == Reach(0)
    cache.check()


def test_a_lease_that_claims_a_victim_gives_the_escrow_the_next_one() -> None:
    cache = StageCache(ATTENTION, 8, 0, BLOCK)
    leave(cache, 1, "abc")
    leave(cache, 2, "xyz")
    admit(cache, 3, "mnop")
    victims = cache._attention.victims() if cache._attention else []
    assert [node.key for node in victims] == [b"abc", b"ab"], "two free pages and the oldest two"
    assert lease(cache, 4, "abcd", candidate=12) == Reach(12), "a victim is usable by anybody, even after the commit"
    victims = cache._attention.victims() if cache._attention else []
    assert [node.key for node in victims] == [b"xyz", b"xy"]
    cache.check()
    materialise(cache, 3)
    assert cache.probe(chain("xyz"), 12) == Reach(4, "attention")
    assert cache.probe(chain("abc"), 12) == Reach(12)
    cache.check()


def test_a_lease_stops_before_a_victim_that_nothing_replaces() -> None:
    cache = StageCache(ATTENTION, 8, 0, BLOCK)
    leave(cache, 1, "abcde")
    admit(cache, 2, "mnopqr")  # Three free pages, and three of the five reclaimable ones.
    assert lease(cache, 3, "abcdef", candidate=20) == Reach(8, "attention")
    assert cache.hint(chain("abcdef"), 20) == Reach(20), "it is still there"
    cache.check()
    assert lease(cache, 4, "abcdef", candidate=20) == Reach(8, "attention"), "sharing costs nothing"
    materialise(cache, 2)
    assert cache.probe(chain("abcdef"), 20) == Reach(8, "attention")
    cache.check()


def test_a_lease_looks_for_an_earlier_snapshot_where_a_victim_has_no_replacement() -> None:
    cache = StageCache(RECURRENT, 0, 4, BLOCK)
    leave(cache, 1, "abc", snapshots=(4, 8, 12))
    assert lease(cache, 2, "ab", 1, 8) == Reach(8)
    admit(cache, 3, "m", 1, snapshots=(4,))  # The free slot and one of the two reclaimable ones.
    assert lease(cache, 4, "m", 1) == Reach(0)
    assert cache.prepare(4, ()) == Prepared(0, 0, 0, 1)
    assert lease(cache, 5, "abcd", 1, 12) == Reach(8, "recurrent"), "held by another already, so nobody's victim"
    cache.check()


def test_a_lease_and_its_escrow_never_count_the_same_page() -> None:
    cache = StageCache(BOTH, 4, 3, BLOCK)
    leave(cache, 1, "abc", snapshots=(8, 12))
    # The source at 8 is the oldest snapshot and the deepest attention block the oldest block; neither may go.
    admit(cache, 2, "abxy", candidate=8, snapshots=(12,))
    compute(cache, 2, 16)
    sequence = cache.sequence(2)
    assert len({*sequence.pages}) == 4
    assert cache.probe(chain("abxy"), 12) == Reach(12)
    cache.check()


def test_ranks_with_different_snapshots_agree_on_a_lower_endpoint() -> None:
    """Worked example: rank 0 has 64K, 72K and 90K, rank 1 has 64K and 80K; the candidate falls 80K → 72K → 64K."""
    tokens = 100 * K
    keys = KeySpace("model").block_keys(bytes(4 * tokens), K)
    ranks = []
    for snapshots in ((64 * K, 72 * K, 90 * K), (64 * K, 80 * K)):
        cache = StageCache(RECURRENT, 0, 8, K)
        cache.lease(1, 0, "h1", keys, tokens, 0)
        cache.commit(1, 0, snapshots)
        compute(cache, 1)
        cache.release(1)
        ranks.append(cache)
    assert [rank.hint(keys, 99 * K).endpoint for rank in ranks] == [90 * K, 80 * K]
    leased = [rank.lease(2, 0, "h2", keys, tokens, 80 * K).endpoint for rank in ranks]
    assert leased == [72 * K, 80 * K]
    for rank in ranks:
        assert isinstance(rank.prepare(2, ()), Prepared)
    seen = [80 * K]
    while True:
        seen.append(min(leased))
        answers = [rank.commit(2, min(leased), ()) for rank in ranks if rank.sequence(2).endpoint > min(leased)]
        assert not any(isinstance(answer, NoRoom) for answer in answers)
        leased = [rank.sequence(2).endpoint for rank in ranks]
        if len({*leased}) == 1:
            break
    assert seen == [80 * K, 72 * K, 64 * K]
    for rank in ranks:
        assert rank.commit(2, 64 * K, ()) == Reach(64 * K)
        rank.check()
