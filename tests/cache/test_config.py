"""A stage's memory becomes pages and slots, or an error that names what to change."""

import pytest
from pydantic import ValidationError
from wavepp.cache.config import MIN_PAGES, MIN_SLOTS, CacheConfig, Capacity, plan_capacity
from wavepp.cache.errors import CapacityError
from wavepp.cache.layout import LayerCache, TensorSpec, Window, bytes_per_state, bytes_per_token

MLA = LayerCache(0, "layers.0", "mla", Window.ATTENTION, (TensorSpec("latent", (576,), "bfloat16"),))
KDA = LayerCache(1, "layers.1", "kda", Window.RECURRENT, (TensorSpec("state", (4, 128, 128), "float32"),))
PAGE, STATE = 576 * 2 * 64, 4 * 128 * 128 * 4


def test_one_window_gets_all_the_memory() -> None:
    config = CacheConfig(memory_bytes=100 * PAGE + 17)
    assert plan_capacity((MLA,), config.of_rank(0)) == Capacity(100, 0)
    assert plan_capacity((KDA,), config.of_rank(0)) == Capacity(0, (100 * PAGE + 17) // STATE)
    assert plan_capacity((), config.of_rank(0)) == Capacity(0, 0)


@pytest.mark.parametrize("interval", [256, 8192])
def test_both_windows_cover_the_same_tokens(interval: int) -> None:
    config = CacheConfig(memory_bytes=1 << 30)
    capacity = plan_capacity((MLA, KDA, KDA), config.of_rank(0), snapshot_interval=interval, live_slots=16)
    used = capacity.num_pages * PAGE + capacity.num_slots * 2 * STATE
    assert config.memory_bytes - PAGE < used <= config.memory_bytes
    by_pages, by_slots = capacity.num_pages * 64, (capacity.num_slots - 16) * interval
    assert by_slots <= by_pages < by_slots + 2 * interval


def test_live_slots_take_at_most_half() -> None:
    capacity = plan_capacity((MLA, KDA), CacheConfig(memory_bytes=20 * STATE).of_rank(0), live_slots=1000)
    assert capacity.num_slots == 10 + 10 * STATE // (576 * 2 * 8192 + STATE)
    assert capacity.num_pages == (20 - capacity.num_slots) * STATE // PAGE


def test_named_counts_are_taken_as_they_are() -> None:
    config = CacheConfig(memory_bytes=1, num_pages=7, num_slots=1)
    assert plan_capacity((MLA, KDA), config.of_rank(0)) == Capacity(7, 1)
    assert plan_capacity((MLA,), config.of_rank(0)) == Capacity(7, 0)
    assert plan_capacity((KDA,), config.of_rank(0)) == Capacity(0, 1)
    config = CacheConfig(memory_bytes=10 * PAGE + 5 * STATE, num_pages=10)
    assert plan_capacity((MLA, KDA), config.of_rank(0)) == Capacity(10, 5)
    config = CacheConfig(memory_bytes=10 * PAGE + 5 * STATE, num_slots=5)
    assert plan_capacity((MLA, KDA), config.of_rank(0)) == Capacity(10, 5)


def test_too_little_memory_names_the_field() -> None:
    with pytest.raises(CapacityError, match=f"memory_bytes=.* least of {MIN_PAGES} attention pages"):
        plan_capacity((MLA,), CacheConfig(memory_bytes=2 * PAGE - 1).of_rank(0))
    with pytest.raises(CapacityError, match=f"memory_bytes=.* least of {MIN_SLOTS} recurrent slots"):
        plan_capacity((KDA,), CacheConfig(memory_bytes=3 * STATE - 1).of_rank(0))
    with pytest.raises(CapacityError, match="memory_bytes"):
        plan_capacity((MLA, KDA), CacheConfig(memory_bytes=3 * STATE + 2 * PAGE - 1).of_rank(0))
    with pytest.raises(CapacityError, match="num_pages=9"):
        plan_capacity((MLA, KDA), CacheConfig(memory_bytes=9 * PAGE, num_pages=9).of_rank(0))
    with pytest.raises(CapacityError, match="num_slots=9"):
        plan_capacity((MLA, KDA), CacheConfig(memory_bytes=9 * STATE, num_slots=9).of_rank(0))
    assert plan_capacity((MLA, KDA), CacheConfig(memory_bytes=3 * STATE + 2 * PAGE).of_rank(0)) == Capacity(2, 3)


@pytest.mark.parametrize("wrong", [0, 3, 48, 2048, -64])
def test_a_block_size_that_is_no_power_of_two_in_range_is_refused(wrong: int) -> None:
    with pytest.raises(ValidationError, match="block_size"):
        CacheConfig(block_size=wrong)


def test_bytes_are_those_of_the_layers_of_the_kind() -> None:
    assert bytes_per_token((MLA, KDA, MLA)) * 64 == 2 * PAGE
    assert bytes_per_state((MLA, KDA, KDA)) == 2 * STATE
