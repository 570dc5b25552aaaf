"""Escrows: what is promised, what a commit counts anew, and in which order things are let go of."""

from __future__ import annotations

import pytest
from wavepp.cache import escrow
from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.errors import CacheCorrupt, WrongPhase
from wavepp.cache.escrow import Floors
from wavepp.cache.keys import KeySpace
from wavepp.cache.moves import Moves
from wavepp.cache.stage_cache import StageCache

from .requests import ATTENTION, BOTH, RECURRENT, admit, compute, lease, leave, materialise
from .side_by_side import BLOCK, chain

K = 1024


def test_six_blocks_are_three_free_two_offloaded_and_one_evicted() -> None:
    """Worked example: 6 suffix blocks; 3 free, 2 places on the host, and 1 more victim."""
    cache = StageCache(ATTENTION, 8, 0, BLOCK, host_pages=2)
    leave(cache, 1, "abc")
    leave(cache, 2, "xy")
    before = cache.gauges()
    lease(cache, 3, "mnopqr")
    assert cache.prepare(3, ()) == Prepared(0, free=3, offload=2, evict=1)
    after = cache.gauges()
    assert (after.pages_free, after.pages_reclaimable) == (before.pages_free, before.pages_reclaimable) == (3, 5)
    assert (after.pages_promised, after.escrows) == (6, 1)
    assert cache.probe(chain("abc"), 12) == Reach(12), "nothing has moved yet"
    assert cache.commit(3, 0, ()) == Reach(0)
    (moves,) = materialise(cache, 3)
    assert len(moves.offloads) == 2
    gauges = cache.gauges()
    assert (gauges.pages_promised, gauges.offloaded, gauges.dropped) == (0, 2, 1)
    assert cache.probe(chain("abc"), 12) == Reach(8, "attention")
    assert cache.probe(chain("xy"), 8) == Reach(8)
    cache.check()


def test_a_lower_endpoint_raises_the_demand_by_what_is_computed_again() -> None:
    """Worked example: 200K tokens in blocks of 64; reuse falls from 112K to 96K, and the suffix grows from 88K to
    104K."""
    block, tokens = 64, 200 * K
    cache = StageCache(ATTENTION, tokens // block, 0, block)
    keys = KeySpace("model").block_keys(bytes(4 * tokens), block)
    cache.lease(1, 0, "h1", keys[: 112 * K // block], 112 * K, 0)
    assert cache.commit(1, 0, ()) == Reach(0)
    compute(cache, 1)
    cache.release(1)
    assert cache.lease(2, 0, "h2", keys, tokens, 112 * K) == Reach(112 * K)
    assert cache.prepare(2, ()) == Prepared(112 * K, 88 * K // block, 0, 0)
    assert cache.gauges().pages_promised == 88 * K // block
    assert cache.commit(2, 96 * K, ()) == Reach(96 * K)
    gauges = cache.gauges()
    assert gauges.pages_promised == 104 * K // block == gauges.pages_free + gauges.pages_reclaimable
    materialise(cache, 2)
    assert len({*cache.sequence(2).pages}) == tokens // block
    cache.check()


def test_no_room_promises_nothing_and_lets_go_of_nothing() -> None:
    cache = StageCache(BOTH, 8, 4, BLOCK)
    leave(cache, 1, "abcd", snapshots=(8, 16))
    empty = cache.gauges()
    assert lease(cache, 2, "abmnopqrs", candidate=8) == Reach(8)
    before = cache.gauges()
    assert cache.prepare(2, ()) == NoRoom("attention", 7, 6)
    assert cache.gauges() == before
    cache.withdraw(2)
    assert lease(cache, 3, "abcd") == Reach(0)
    assert cache.prepare(3, (4, 8, 12, 16)) == NoRoom("recurrent", 5, 4)
    cache.withdraw(3)
    assert cache.gauges() == empty
    assert cache.probe(chain("abcd"), 16) == Reach(16)


def test_a_failed_commit_leaves_the_earlier_promise_and_lease_intact() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    leave(cache, 1, "abcd", snapshots=(4, 16))
    assert lease(cache, 2, "abcdmn", 1, candidate=16) == Reach(16)
    assert cache.prepare(2, ()) == Prepared(16, 4, 0, 0)
    admit(cache, 3, "abcd", 1, candidate=16)
    before = cache.gauges()
    # What the trim lets go of is held by the other, so nothing is gained by it, and three more blocks are needed.
    assert cache.commit(2, 4, ()) == NoRoom("attention", 6, 4)
    assert cache.gauges() == before
    assert cache.sequence(2).endpoint == 16
    cache.release(3)
    assert cache.commit(2, 4, ()) == Reach(4)
    cache.check()


def test_trimming_takes_hold_of_the_earlier_snapshot_before_it_lets_the_later_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = StageCache(BOTH, 20, 6, BLOCK)
    leave(cache, 1, "abcdef", snapshots=(8, 20))
    assert lease(cache, 2, "abcdefg", candidate=24) == Reach(20, "recurrent")
    assert isinstance(cache.prepare(2, ()), Prepared)
    recurrent = cache._recurrent
    assert recurrent is not None
    log: list[tuple[str, int]] = []
    pin, unpin = recurrent.tree.pin, recurrent.tree.unpin
    monkeypatch.setattr(recurrent.tree, "pin", lambda s: (log.append(("pin", s.position)), pin(s)))
    monkeypatch.setattr(recurrent.tree, "unpin", lambda s: (log.append(("unpin", s.position)), unpin(s)))
    assert cache.commit(2, 12, ()) == Reach(8, "recurrent"), "no snapshot at 12: lower still, and not committed"
    assert log == [("pin", 8), ("unpin", 20)]
    assert (cache.gauges().pages_pinned, cache.gauges().pages_promised) == (2, 5)
    with pytest.raises(WrongPhase):
        cache.materialise(2, 28)
    assert cache.commit(2, 8, ()) == Reach(8)
    assert cache.commit(2, 8, ()) == Reach(8)
    with pytest.raises(WrongPhase):
        cache.commit(2, 4, ())
    cache.check()


def test_an_escrow_is_released_before_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = StageCache(BOTH, 20, 6, BLOCK)
    leave(cache, 1, "abcdef", snapshots=(8,))
    admit(cache, 2, "abxy", candidate=8)
    seen: list[int] = []
    for window in cache._windows:
        unpin = window.tree.unpin
        monkeypatch.setattr(
            window.tree, "unpin", lambda entry, w=window, f=unpin: (seen.append(w.promised), f(entry)), raising=True
        )
    cache.withdraw(2)
    assert seen == [0, 0, 0], "two blocks and a snapshot, let go of when nothing was promised any more"
    admit(cache, 3, "abxy", candidate=8)
    monkeypatch.setattr(escrow, "give_back", lambda windows, sequence: None)
    with pytest.raises(CacheCorrupt, match="before its"):
        cache.release(3)


def test_slots_are_promised_by_count() -> None:
    cache = StageCache(RECURRENT, 0, 8, BLOCK)
    admit(cache, 1, "abcdef", 2, snapshots=(8, 16, 24))
    gauges = cache.gauges()
    assert (gauges.slots_free, gauges.slots_promised) == (8, 4)
    assert (cache.sequence(1).slot, cache.sequence(1).snapshots) == (-1, ())
    for upto, taken, captures in ((7, 1, []), (8, 2, [8]), (23, 3, [8, 16]), (26, 4, [8, 16, 24])):
        materialise(cache, 1, upto)
        gauges = cache.gauges()
        assert (gauges.slots_free, gauges.slots_promised) == (8 - taken, 4 - taken)
        assert [position for position, _ in cache.sequence(1).snapshots] == captures
    assert lease(cache, 2, "m") == Reach(0)
    assert cache.prepare(2, (4,)) == Prepared(0, 2, 0, 0)
    assert lease(cache, 3, "n") == Reach(0)
    assert cache.prepare(3, (4,)) == Prepared(0, 2, 0, 0)
    assert lease(cache, 4, "o") == Reach(0)
    assert cache.prepare(4, ()) == NoRoom("recurrent", 1, 0)


def test_planned_snapshots_within_the_prefix_do_not_count() -> None:
    cache = StageCache(BOTH, 9, 6, BLOCK)
    leave(cache, 1, "abc", snapshots=(4, 8))
    admit(cache, 2, "abcd", 2, candidate=8, snapshots=(4, 8, 12, 16))
    assert cache.gauges().slots_promised == 3
    materialise(cache, 2)
    assert [position for position, _ in cache.sequence(2).snapshots] == [12, 16]


def test_what_becomes_free_meanwhile_is_used_before_any_victim() -> None:
    cache = StageCache(ATTENTION, 8, 0, BLOCK)
    leave(cache, 1, "abc")
    admit(cache, 2, "xyz")
    admit(cache, 3, "mnop")
    assert [len(window.victims()) for window in cache._windows] == [2]
    cache.withdraw(2)
    assert [len(window.victims()) for window in cache._windows] == [0]
    materialise(cache, 3)
    assert cache.probe(chain("abc"), 12) == Reach(12)


def test_a_commit_keeps_the_floors_for_what_runs() -> None:
    cache = StageCache(BOTH, 10, 8, BLOCK, floors=Floors(pages=3, slots=2))
    assert lease(cache, 1, "abcdefgh") == Reach(0)
    assert isinstance(cache.prepare(1, ()), Prepared)
    assert cache.commit(1, 0, ()) == Reach(0), "alone, it may go below the floors"
    cache.release(1)
    admit(cache, 2, "abcd", snapshots=(4, 8))
    assert lease(cache, 3, "mnop") == Reach(0)
    assert cache.prepare(3, ()) == Prepared(0, 5, 0, 0), "promised without regard to the floors"
    before = cache.gauges()
    assert cache.commit(3, 0, ()) == NoRoom("attention", 4, 3)
    assert cache.gauges() == before, "and promised still"
    cache.withdraw(3)
    assert lease(cache, 4, "mno") == Reach(0)
    assert cache.commit(4, 0, (4, 8, 12)) == NoRoom("recurrent", 4, 3)
    assert cache.commit(4, 0, (4, 8)) == Reach(0)
    cache.check()


def test_a_finished_request_does_not_count_as_running() -> None:
    cache = StageCache(ATTENTION, 10, 0, BLOCK, floors=Floors(pages=5))
    admit(cache, 1, "abcd")
    compute(cache, 1)
    cache.seal(1)
    assert lease(cache, 2, "mnop") == Reach(0)
    assert cache.commit(2, 0, ()) == Reach(0), "nobody runs whom the floors could protect"


def test_a_withdrawn_attempt_leaves_nothing_in_any_phase() -> None:
    cache = StageCache(BOTH, 12, 6, BLOCK, host_pages=4, host_slots=2)
    leave(cache, 1, "abc", snapshots=(8, 12))
    before = cache.gauges()
    for phase in range(4):
        assert cache.lease(2, phase, "h2", chain("abcxy"), 21, 12) == Reach(12)
        if phase > 0:
            assert isinstance(cache.prepare(2, (16, 20)), Prepared)
        if phase > 1:
            assert cache.commit(2, 8, (16, 20)) == Reach(8)
        if phase > 2:
            materialise(cache, 2, 17)
        cache.check()
        cache.withdraw(2)
        cache.withdraw(2)
        cache.check()
        assert cache.gauges() == before
    assert cache.probe(chain("abc"), 12) == Reach(12)


def test_released_grows_exactly_when_more_could_be_promised() -> None:
    cache = StageCache(BOTH, 6, 4, BLOCK)
    counts = [cache.released]

    def note() -> None:
        counts.append(cache.released)

    lease(cache, 1, "abc")
    note()
    cache.prepare(1, (8,))
    note()
    cache.prepare(1, ())  # A smaller promise.
    note()
    cache.commit(1, 0, (8,))
    note()
    assert cache.materialise(1, 12) == Moves()
    note()
    cache.publish(1, 4)
    note()
    cache.publish(1, 12)  # The snapshot at 8 becomes reclaimable.
    note()
    cache.seal(1)
    note()
    cache.release_handle("h1")
    note()
    cache.reset()
    note()
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
