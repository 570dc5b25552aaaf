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
    config = CacheConfig(memory_bytes=1 << 30).of_rank(0)
    capacity = plan_capacity((MLA, KDA, KDA), config, snapshot_interval=interval, live_slots=16)
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


def test_host_memory_is_divided_as_the_devices_is() -> None:
    config = CacheConfig(memory_bytes=1 << 28, host_memory_bytes=1 << 29).of_rank(0)
    capacity = plan_capacity((MLA, KDA), config, snapshot_interval=256)
    assert capacity.host_pages * PAGE + capacity.host_slots * STATE <= 1 << 29
    assert capacity.host_slots == pytest.approx(2 * capacity.num_slots, abs=1)
    assert capacity.host_pages == pytest.approx(2 * capacity.num_pages, rel=0.01)
    alone = plan_capacity((MLA,), CacheConfig(memory_bytes=10 * PAGE, host_memory_bytes=7 * PAGE + 1).of_rank(0))
    assert alone == Capacity(10, 0, 7, 0)
    assert plan_capacity((MLA, KDA), CacheConfig(memory_bytes=1 << 28).of_rank(0)).host_pages == 0


def test_host_places_by_hand_are_taken_as_they_are() -> None:
    config = CacheConfig(num_pages=10, num_slots=5, host_pages=3, host_slots=0)
    assert plan_capacity((MLA, KDA), config.of_rank(0)) == Capacity(10, 5, 3, 0)
    assert plan_capacity((MLA,), config.of_rank(0)) == Capacity(10, 0, 3, 0)


def test_sizes_may_differ_from_rank_to_rank() -> None:
    config = CacheConfig.model_validate({"num_pages": "40, 60,50", "num_slots": 7, "host_pages": [0, 9, 4]})
    assert [config.of_rank(rank).num_pages for rank in range(3)] == [40, 60, 50]
    assert [config.of_rank(rank).num_slots for rank in range(3)] == [7, 7, 7]
    assert [config.of_rank(rank).host_pages for rank in range(3)] == [0, 9, 4]
    assert CacheConfig.model_validate_json(config.model_dump_json()) == config
    config.check_ranks(3)
    with pytest.raises(ValueError, match="num_pages has 3 values, but there are 2 ranks"):
        config.check_ranks(2)


@pytest.mark.parametrize("wrong", ["", "4,", "4,x", "x", 1.5, True, [4, 0], 0, "0", {}])
def test_sizes_that_are_none_are_refused_by_name(wrong: object) -> None:
    with pytest.raises(ValidationError, match="num_pages"):
        CacheConfig.model_validate({"num_pages": wrong})
    if wrong not in (0, "0"):
        return
    assert CacheConfig.model_validate({"host_pages": wrong}).host_pages == 0
