"""The paper's worked examples, in its own numbers, on the real objects.

That a probe of 200K tokens beside 64 others takes microseconds is measured: see `bench/admission.py`.
"""

from __future__ import annotations

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.cache.answers import Prepared, Reach
from wavepp.cache.keys import KeySpace
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache
from wavepp.scheduler.budgets import Pieces
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.planner import Planner
from wavepp.simulator.group import Group, prompt
from wavepp.simulator.rank import RankSpec

K = 1_000
BLOCK = 2 * K
KEYS = KeySpace("worked examples")


def group(*specs: RankSpec, snapshot_interval: int = 100 * BLOCK) -> Group:
    made = Group(
        specs,
        BLOCK,
        AdmissionConfig(snapshot_interval=snapshot_interval),
        SchedulerConfig(max_wave_tokens=8 * BLOCK, min_wave_tokens=8 * BLOCK),
    )
    made.keep_sent = True
    return made


def test_hint() -> None:
    """Attention reaches 7 blocks, recurrent 6: the candidate is 6."""
    one = group(RankSpec(num_pages=20, num_slots=8))
    tokens = prompt(range(8 * BLOCK))
    one.ranks[0].preload(tokens, 7 * BLOCK, snapshots=(6 * BLOCK,))
    keys = KeySpace("simulated").block_keys(tokens, BLOCK)
    assert one.ranks[0].cache.hint(keys, 7 * BLOCK) == Reach(6 * BLOCK, "recurrent")
    one.submit("r", tokens)
    one.settle()
    assert [install.candidate for down in one.sent for install in down.installs] == [6 * BLOCK]
    reuse = one.witness.completed["r"].reuse
    assert (reuse.hinted, reuse.endpoint, reuse.limited_by) == (6 * BLOCK, 6 * BLOCK, "rank 0: recurrent")


def test_escrow() -> None:
    """6 suffix blocks; 3 free, 2 offloadable with host room, 1 evictable: 6 reserved = 3 + 2 + 1."""
    cache = StageCache(frozenset({Window.ATTENTION}), 6, 0, BLOCK, host_pages=2)
    fill(cache, prompt(range(3 * BLOCK)))
    keys = KEYS.block_keys(prompt(range(10, 10 + 6 * BLOCK)), BLOCK)
    assert cache.lease(1, 1, "h", keys, 6 * BLOCK, 0) == Reach(0)
    assert cache.prepare(1, ()) == Prepared(0, free=3, offload=2, evict=1)
    gauges = cache.gauges()
    assert (gauges.pages_promised, gauges.pages_free, gauges.pages_reclaimable) == (6, 3, 3), "nobody was evicted yet"
    assert cache.commit(1, 0, ()) == Reach(0)
    moves = cache.materialise(1, 6 * BLOCK)
    assert moves is not None
    assert len(cache.sequence(1).pages) == 6
    gauges = cache.gauges()
    # Two have places on the host, so the third that must go leaves the cache.
    assert (gauges.dropped, gauges.host_pages_free, len(moves.offloads)) == (1, 0, 2)
    cache.check()


def test_reconcile() -> None:
    """Rank 0 has snapshots at 64K, 72K and 90K, rank 1 at 64K and 80K; the candidate is 80K: 72K, 64K, agreed."""
    two = group(RankSpec(num_pages=60, num_slots=16), RankSpec(num_pages=60, num_slots=16))
    tokens = prompt(range(100 * K))
    two.ranks[0].preload(tokens, 90 * K, snapshots=(64 * K, 72 * K, 90 * K))
    two.ranks[1].preload(tokens, 90 * K, snapshots=(64 * K, 80 * K))
    two.submit("r", tokens)
    two.settle()
    asked = [install.candidate for down in two.sent for install in down.installs]
    asked += [trim.endpoint for down in two.sent for trim in down.trims]
    assert asked == [80 * K, 72 * K, 64 * K]
    reuse = two.witness.completed["r"].reuse
    assert (reuse.hinted, reuse.leased, reuse.endpoint) == (80 * K, 72 * K, 64 * K)
    for rank in two.ranks:
        rank.cache.check()


def test_demand() -> None:
    """A prompt of 200K whose reuse falls from 112K to 96K: the suffix grows from 88K to 104K."""
    cache = StageCache(frozenset({Window.ATTENTION}), 120, 0, BLOCK)
    tokens = prompt(range(200 * K))
    fill(cache, tokens[: 4 * 112 * K])
    assert cache.lease(1, 1, "h", KEYS.block_keys(tokens, BLOCK), 200 * K, 112 * K) == Reach(112 * K)
    assert isinstance(cache.prepare(1, ()), Prepared)
    assert cache.gauges().pages_promised * BLOCK == 88 * K
    assert cache.commit(1, 96 * K, ()) == Reach(96 * K)
    assert cache.gauges().pages_promised * BLOCK == 104 * K
    while cache.materialise(1, 200 * K) is not None:
        pass
    assert (len(cache.sequence(1).pages), cache.gauges().pages_promised) == (100, 0)
    cache.check()


@pytest.mark.parametrize(("policy", "waves"), [("static", 2), ("mpu", 4)])
def test_waves(policy: str, waves: int) -> None:
    """2M tokens are admitted to four stages: two waves of M, or four of M/2."""
    most = 16_384
    assert (Pieces([2 * most]).waves(most), Pieces([2 * most]).waves(most // 2)) == (2, 4)
    config = SchedulerConfig.model_validate({"policy": policy, "pipeline_fills": 0, "max_wave_tokens": most})
    planner = Planner(config, 64, 4)
    planner.admit(1, 1, 0, 2 * most)
    sizes: list[int] = []
    while (plan := planner.plan(0.0)) is not None:
        planner.accept(plan)
        sizes.append(plan.tokens)
    assert sizes == [2 * most // waves] * waves


def fill(cache: StageCache, tokens: bytes) -> None:
    """Leaves the prompt's blocks cached, held by nobody."""
    num_tokens = len(tokens) // 4
    cache.lease(99, 1, "fill", KEYS.block_keys(tokens, BLOCK), num_tokens, 0)
    cache.prepare(99, ())
    cache.commit(99, 0, ())
    while cache.materialise(99, num_tokens) is not None:
        pass
    cache.publish(99, num_tokens)
    cache.release(99)
