"""A prompt that reuses nothing, with all of its storage taken at once: where a test is not about admission."""

from wavepp.cache.answers import Prepared, Reach
from wavepp.cache.stage_cache import StageCache


def claim_cold(cache: StageCache, request: int, handle: str, num_tokens: int) -> None:
    """`request` holds every page and the live slot that `num_tokens` need; its keys are like no other's."""
    keys = tuple(f"{handle} {block}".encode() for block in range(num_tokens // cache.block_size))
    assert cache.lease(request, 1, handle, keys, num_tokens, 0) == Reach(0)
    assert isinstance(cache.prepare(request, ()), Prepared)
    assert cache.commit(request, 0, ()) == Reach(0)
    while (moves := cache.materialise(request, num_tokens)) is not None:
        assert not moves, "nothing was there to make way"
