"""Partitions cover all layers, in order, each stage with at least one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.models.errors import PartitionError
from wavepp.models.partition import even_partition, parse_partition


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
