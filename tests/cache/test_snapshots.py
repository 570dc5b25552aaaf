"""A snapshot serves exactly its own position, and needs no other."""

from __future__ import annotations

import pytest
from wavepp.cache.hint_index import HintIndex
from wavepp.cache.layout import Window
from wavepp.cache.snapshots import SnapshotTree

from .side_by_side import BLOCK, chain


@pytest.fixture
def tree() -> SnapshotTree:
    return SnapshotTree(HintIndex({Window.RECURRENT}, BLOCK), BLOCK)


def test_match_finds_the_largest_position_within_the_limit(tree: SnapshotTree) -> None:
    keys = chain("abcdef")
    assert tree.match(keys, 24) == 0
    for slot, position in enumerate((8, 12, 20)):
        tree.attach(keys[position // BLOCK - 1], position, slot)
    assert [tree.match(keys, limit) for limit in (24, 20, 16, 12, 8, 4, 0)] == [20, 20, 12, 12, 8, 0, 0]
    assert tree.match(chain("abcxyz"), 24) == 12
    assert tree.match(keys[:2], 24) == 8
    assert tree.match(keys, 24, lambda snapshot: snapshot.position < 20) == 12


def test_snapshots_go_by_use_alone(tree: SnapshotTree) -> None:
    first, second, third = (tree.attach(key, 4 * (i + 1), i) for i, key in enumerate(chain("abc")))
    tree.pin(first)
    tree.unpin(first)
    tree.pin(second)
    assert len(tree.device) == 2
    assert [tree.device.pop() for _ in range(3)] == [third, first, None]


def test_at_finds_only_the_exact_position(tree: SnapshotTree) -> None:
    keys = chain("abc")
    tree.attach(keys[1], 8, 5)
    found = tree.at(keys, 8)
    assert found is not None
    assert (found.item, found.position) == (5, 8)
    assert tree.at(keys, 4) is tree.at(keys, 12) is tree.at(keys, 0) is None
