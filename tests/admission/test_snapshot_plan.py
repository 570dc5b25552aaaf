from hypothesis import given
from hypothesis import strategies as st
from wavepp.admission.snapshot_plan import plan_snapshots, reuse_limit


def test_at_least_one_token_is_left_to_compute() -> None:
    assert [reuse_limit(n, 16) for n in (1, 16, 17, 32, 33)] == [0, 0, 16, 16, 32]


def test_multiples_of_the_interval_and_the_last_reusable_position() -> None:
    assert plan_snapshots(0, 1000, 256, 16, 32) == (256, 512, 768, 992)


def test_only_positions_beyond_the_endpoint() -> None:
    assert plan_snapshots(512, 1000, 256, 16, 32) == (768, 992)
    assert plan_snapshots(992, 1000, 256, 16, 32) == ()


def test_the_last_position_is_not_named_twice_when_it_is_a_multiple() -> None:
    assert plan_snapshots(0, 513, 256, 16, 32) == (256, 512)
    assert plan_snapshots(0, 512, 256, 16, 32) == (256, 496)


def test_too_many_double_the_interval_and_keep_the_last() -> None:
    assert plan_snapshots(0, 1000, 64, 16, 4) == (256, 512, 768, 992)
    assert plan_snapshots(0, 1000, 64, 16, 1) == (992,)
    assert plan_snapshots(0, 1000, 64, 16, 0) == ()


def test_a_prompt_of_less_than_a_block_has_none() -> None:
    assert plan_snapshots(0, 16, 16, 16, 4) == ()


@given(st.integers(1, 3000), st.integers(0, 200), st.integers(1, 30), st.sampled_from([1, 4, 16]), st.integers(0, 40))
def test_what_holds_for_every_plan(n: int, endpoint_blocks: int, interval_blocks: int, block: int, most: int) -> None:
    endpoint = min(endpoint_blocks * block, reuse_limit(n, block))
    interval = interval_blocks * block
    plan = plan_snapshots(endpoint, n, interval, block, most)
    everything = [
        p for p in range(block, n, block) if p > endpoint and (p % interval == 0 or p == reuse_limit(n, block))
    ]
    assert len(plan) <= most
    assert list(plan) == sorted(set(plan))
    assert set(plan) <= set(everything)
    if len(everything) <= most:
        assert list(plan) == everything
    if everything and most:
        assert plan[-1] == everything[-1]


def test_forks_are_planned_beside_the_interval_but_only_beyond_the_endpoint() -> None:
    assert plan_snapshots(0, 1000, 256, 16, 32, [16, 300 // 16 * 16, 512]) == (16, 256, 288, 512, 768, 992)
    assert plan_snapshots(288, 1000, 256, 16, 32, [16, 288, 304]) == (304, 512, 768, 992)
    assert plan_snapshots(0, 1000, 2048, 16, 32, [992]) == (992,)


def test_where_they_are_too_many_the_last_stays_then_the_deepest_forks_then_what_fits() -> None:
    assert plan_snapshots(0, 1000, 256, 16, 3, [16, 32, 48]) == (32, 48, 992)
    assert plan_snapshots(0, 1000, 256, 16, 4, [16, 32]) == (16, 32, 512, 992)
    assert plan_snapshots(0, 1000, 256, 16, 1, [16]) == (992,)


@given(
    st.integers(1, 3000),
    st.integers(0, 200),
    st.integers(1, 30),
    st.integers(0, 40),
    st.sets(st.integers(1, 190), max_size=12),
)
def test_what_holds_for_every_plan_with_forks(n: int, endpoint: int, interval: int, most: int, forks: set[int]) -> None:
    block = 16
    endpoint = min(endpoint * block, reuse_limit(n, block))
    places = sorted(fork * block for fork in forks)
    plan = plan_snapshots(endpoint, n, interval * block, block, most, places)
    assert len(plan) <= most and list(plan) == sorted(set(plan))
    assert all(endpoint < position <= reuse_limit(n, block) and position % block == 0 for position in plan)
    assert set(plan) - set(places) <= {p for p in range(0, n, block) if p % (interval * block) == 0} | {
        reuse_limit(n, block)
    }
    passed = [fork for fork in places if endpoint < fork < reuse_limit(n, block)]
    if most and endpoint < reuse_limit(n, block):
        assert set(passed[max(0, len(passed) - most + 1) :]) <= set(plan)
    if len(plan_snapshots(endpoint, n, interval * block, block, 10**6, places)) <= most:
        assert plan == plan_snapshots(endpoint, n, interval * block, block, 10**6, places)
