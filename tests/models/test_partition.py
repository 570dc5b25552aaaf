"""Partitions cover all layers, in order, each stage with at least one."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.models.errors import PartitionError
from wavepp.models.partition import balanced_partition, even_partition, parse_partition, partition_text


@given(st.integers(1, 200), st.data())
def test_an_even_partition_covers_all_layers_with_sizes_that_differ_by_at_most_one(
    num_layers: int, data: st.DataObject
) -> None:
    num_stages = data.draw(st.integers(1, num_layers))
    ranges = even_partition(num_layers, num_stages)
    assert [layer for part in ranges for layer in part] == list(range(num_layers))
    assert len(ranges) == num_stages
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_more_stages_than_layers_is_refused_with_both_numbers() -> None:
    with pytest.raises(PartitionError, match="5 stages need at least 5 layers, the model has 4"):
        even_partition(4, 5)
    with pytest.raises(PartitionError, match="at least 1"):
        even_partition(4, 0)


def test_a_partition_by_hand_is_read() -> None:
    assert parse_partition("0-3,4-11", 12, 2) == [range(4), range(4, 12)]
    assert parse_partition(" 0 , 1 - 2 , 3 ", 4, 3) == [range(1), range(1, 3), range(3, 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-3,5-11", "'5-11' must start at layer 4"),
        ("0-3,3-11", "'3-11' must start at layer 4"),
        ("1-11", "'1-11' must start at layer 0"),
        ("0-3,4-10", "ends at layer 10, the model's last is 11"),
        ("0-3,4-12", "ends at layer 12"),
        ("0-11", "1 ranges for 2 stages"),
        ("0-3;4-11", "not a layer or a range"),
        ("", "not a layer or a range"),
        ("0-3,4-2", "holds no layer"),
    ],
)
def test_a_wrong_partition_by_hand_names_the_range_at_fault(text: str, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        parse_partition(text, 12, 2)


@given(
    costs=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    first=st.floats(0, 5),
    last=st.floats(0, 20),
    data=st.data(),
)
def test_no_other_partition_has_a_faster_slowest_stage_or_with_the_same_one_is_more_even(
    costs: list[float], first: float, last: float, data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = balanced_partition(costs, stages, first=first, last=last)
    assert [layer for part in found for layer in part] == list(range(len(costs))) and len(found) == stages

    def times(parts: list[range]) -> list[float]:
        each = [sum(costs[layer] for layer in part) for part in parts]
        each[0] += first
        each[-1] += last
        return each

    cuts = combinations(range(1, len(costs)), stages - 1)
    every = [times([range(a, b) for a, b in zip((0, *cut), (*cut, len(costs)), strict=True)]) for cut in cuts]
    least = min(map(max, every))
    assert max(times(found)) == pytest.approx(least)
    squares = [sum(time**2 for time in each) for each in every if max(each) <= least * (1 + 1e-12)]
    # Rounding may let a partition more count as no slower, and so find less than that.
    assert sum(time**2 for time in times(found)) <= min(squares) * (1 + 1e-6)


def test_equal_layers_with_a_heavy_head_leave_the_last_stage_fewer() -> None:
    assert balanced_partition([1.0] * 12, 3, last=3.0) == [range(5), range(5, 10), range(10, 12)]


@given(st.integers(1, 60), st.floats(0.01, 100), st.data())
def test_layers_that_are_all_alike_are_dealt_out_evenly(num_layers: int, cost: float, data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, min(num_layers, 12)))
    assert balanced_partition([cost] * num_layers, num_stages) == even_partition(num_layers, num_stages)


def test_a_partition_of_many_layers_over_many_stages_is_found_and_can_be_said() -> None:
    costs = [1.0 + (layer % 4 == 3) for layer in range(93)]
    found = balanced_partition(costs, 64)
    assert max(sum(costs[layer] for layer in part) for part in found) == 3.0
    assert parse_partition(partition_text(found), 93, 64) == found
    with pytest.raises(PartitionError):
        balanced_partition([1.0], 2)
