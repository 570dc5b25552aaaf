"""A finished prefill stays until its handle ends and its last pull is closed."""

import pytest
from wavepp.cache.errors import HandleGone, HandleNotSealed, UnknownHandle
from wavepp.cache.stage_cache import StageCache

from .requests import BOTH, admit, compute, materialise
from .side_by_side import BLOCK, chain


@pytest.fixture
def cache() -> StageCache:
    """One request of 10 tokens with a planned snapshot at 8, computed but not sealed."""
    cache = StageCache(BOTH, 8, 5, BLOCK)
    admit(cache, 1, "ab", 2, snapshots=(8,))
    compute(cache, 1)
    return cache


def test_sealing_passes_everything_on(cache: StageCache) -> None:
    sequence = cache.sequence(1)
    before = cache.gauges()
    cache.seal(1)
    after = cache.gauges()
    assert (before.leases, before.handles, after.leases, after.handles) == (1, 0, 0, 1)
    assert (before.pages_pinned, before.slots_pinned) == (after.pages_pinned, after.slots_pinned) == (3, 1)
    pull = cache.open_pull("h1")
    assert (pull.pages, pull.slot, pull.num_tokens) == (sequence.pages, sequence.slot, 10)
    cache.release(1)
    assert cache.gauges().handles == 1, "a sealed sequence is its handle's, not its request's"


def test_sealing_frees_snapshots_that_were_never_published() -> None:
    cache = StageCache(BOTH, 8, 5, BLOCK)
    admit(cache, 1, "ab", 2, snapshots=(4, 8))
    materialise(cache, 1)
    cache.publish(1, 4)
    cache.seal(1)
    gauges = cache.gauges()
    assert (gauges.slots_free, gauges.slots_reclaimable, gauges.slots_pinned) == (3, 1, 1)
    cache.check()


def test_a_handle_cannot_be_pulled_before_it_is_sealed_or_after_it_ended(cache: StageCache) -> None:
    with pytest.raises(HandleNotSealed):
        cache.open_pull("h1")
    with pytest.raises(UnknownHandle):
        cache.open_pull("another")
    cache.seal(1)
    pull = cache.open_pull("h1")
    cache.release_handle("h1")
    with pytest.raises(HandleGone):
        cache.open_pull("h1")
    assert cache.close_pull(pull.id)
    with pytest.raises(UnknownHandle):
        cache.open_pull("h1")


def test_the_state_stays_until_the_last_pull_closes(cache: StageCache) -> None:
    cache.seal(1)
    first, second = cache.open_pull("h1"), cache.open_pull("h1")
    assert first.id != second.id
    cache.release_handle("h1")
    assert cache.close_pull(first.id)
    assert cache.gauges().pages_pinned == 3
    assert (cache.gauges().handles, cache.gauges().pulls) == (1, 1)
    assert not cache.close_pull(first.id)
    assert cache.close_pull(second.id)
    assert (cache.gauges().pages_pinned, cache.gauges().slots_pinned) == (0, 0)
    assert (cache.gauges().handles, cache.gauges().pulls) == (0, 0)
    cache.check()


def test_a_closed_pull_leaves_a_living_handle_alone(cache: StageCache) -> None:
    cache.seal(1)
    assert cache.close_pull(cache.open_pull("h1").id)
    assert cache.gauges().handles == 1
    assert cache.open_pull("h1").num_tokens == 10


def test_a_handle_released_before_its_stage_has_sealed_ends_with_the_seal(cache: StageCache) -> None:
    cache.release_handle("h1")
    assert cache.gauges().leases == 1
    with pytest.raises(HandleGone):
        cache.open_pull("h1")
    cache.seal(1)
    gauges = cache.gauges()
    assert (gauges.leases, gauges.handles, gauges.pages_pinned, gauges.slots_pinned) == (0, 0, 0, 0)
    cache.check()


def test_releasing_an_unsealed_request_ends_its_handle(cache: StageCache) -> None:
    cache.release(1)
    with pytest.raises(UnknownHandle):
        cache.open_pull("h1")
    assert (cache.gauges().pages_reclaimable, cache.gauges().pages_free) == (2, 6)


def test_pages_of_a_handle_narrow_what_others_can_have(cache: StageCache) -> None:
    cache.seal(1)
    cache.reset()
    assert cache.probe(chain("ab"), 8).endpoint == 0, "the snapshot goes, as nobody holds it"
    gauges = cache.gauges()
    assert (gauges.pages_free, gauges.pages_reclaimable, gauges.pages_pinned) == (5, 0, 3)


def test_sealing_lets_go_of_a_source_that_nobody_reported_as_copied(cache: StageCache) -> None:
    cache.release(1)
    admit(cache, 2, "abx", 1, candidate=8)
    materialise(cache, 2)
    assert (cache.gauges().slots_pinned, cache.gauges().slots_reclaimable) == (2, 0)
    cache.seal(2)
    assert (cache.gauges().slots_pinned, cache.gauges().slots_reclaimable) == (1, 1)
    cache.check()
