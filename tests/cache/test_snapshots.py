"""A snapshot serves exactly its own position, and needs no other."""

from wavepp.cache.snapshots import SnapshotTree

from .world import BLOCK, chain


def test_match_finds_the_largest_position_within_the_limit() -> None:
    tree, keys = SnapshotTree(BLOCK), chain("abcdef")
    assert tree.match(keys, 24) == 0
    for slot, position in enumerate((8, 12, 20)):
        tree.attach(keys[position // BLOCK - 1], position, slot)
    assert [tree.match(keys, limit) for limit in (24, 20, 16, 12, 8, 4, 0)] == [20, 20, 12, 12, 8, 0, 0]
    assert tree.match(chain("abcxyz"), 24) == 12
    assert tree.match(keys[:2], 24) == 8


def test_snapshots_are_evicted_by_use_alone() -> None:
    tree, keys = SnapshotTree(BLOCK), chain("abc")
    first, second, third = (tree.attach(key, 4 * (i + 1), i) for i, key in enumerate(keys))
    tree.pin(first)
    tree.unpin(first)
    tree.pin(second)
    assert tree.evictable == 2
    assert [tree.evict_one() for _ in range(3)] == [third.item, first.item, None]
    assert tree.match(keys, 12) == 8


def test_an_attached_snapshot_stays_and_is_young_again() -> None:
    tree, keys = SnapshotTree(BLOCK), chain("ab")
    tree.attach(keys[0], 4, 0)
    tree.attach(keys[1], 8, 1)
    assert tree.attach(keys[0], 4, 7).item == 0
    assert [tree.evict_one() for _ in range(3)] == [1, 0, None]


def test_at_finds_only_the_exact_position() -> None:
    tree, keys = SnapshotTree(BLOCK), chain("abc")
    tree.attach(keys[1], 8, 5)
    found = tree.at(keys, 8)
    assert found is not None
    assert (found.item, found.position) == (5, 8)
    assert tree.at(keys, 4) is tree.at(keys, 12) is tree.at(keys, 0) is None
