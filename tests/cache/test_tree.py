"""Blocks are found from the root without a gap, and evicted leaves first."""

import pytest
from wavepp.cache.errors import CacheCorrupt
from wavepp.cache.tree import BlockNode, BlockTree

from .world import chain


def attach(tree: BlockTree, prompt: str, first_page: int) -> list[BlockNode]:
    """Attaches the whole chain; page `first_page` + i for block i."""
    path: list[BlockNode] = []
    for block, key in enumerate(chain(prompt)):
        path.append(tree.attach(path[-1] if path else None, key, first_page + block))
    return path


def test_match_counts_attached_blocks_up_to_the_limit() -> None:
    tree = BlockTree()
    attach(tree, "abcd", 0)
    assert tree.match(chain("abcdef"), 6) == 4
    assert tree.match(chain("abcdef"), 3) == 3
    assert tree.match(chain("abxd"), 4) == 2
    assert tree.match(chain("bcd"), 3) == 0
    assert tree.match((), 0) == 0
    assert tree.match(chain("ab"), 9) == 2


def test_an_attached_block_stays_and_is_pinned_for_both() -> None:
    tree = BlockTree()
    first, second = attach(tree, "ab", 0), attach(tree, "ab", 10)
    assert [node.item for node in second] == [0, 1]
    assert all(a is b for a, b in zip(first, second, strict=True))
    tree.unpin_path(first)
    assert tree.evictable == 0
    tree.unpin_path(second)
    assert tree.evictable == 2


def test_children_are_evicted_before_their_parents_and_old_paths_before_new_ones() -> None:
    tree = BlockTree()
    old, new = attach(tree, "abc", 0), attach(tree, "axy", 10)
    tree.unpin_path(old)
    tree.unpin_path(new)
    # Page 0 is the shared first block; it goes last, though the older path let go of it first.
    assert [tree.evict_one() for _ in range(6)] == [2, 1, 12, 11, 0, None]
    assert len(tree) == 0


def test_a_held_path_is_never_evicted() -> None:
    tree = BlockTree()
    path = attach(tree, "abc", 0)
    tree.unpin_path(path)
    again = tree.pin_path(chain("abc"), 2)
    assert tree.held(chain("abc"), 3) == 2
    assert (tree.evictable, tree.evict_one(), tree.evict_one()) == (1, 2, None)
    tree.unpin_path(again)
    tree.check()


def test_use_makes_a_path_young_again() -> None:
    tree = BlockTree()
    tree.unpin_path(attach(tree, "ab", 0))
    tree.unpin_path(attach(tree, "xy", 10))
    tree.unpin_path(tree.pin_path(chain("ab"), 2))
    assert [tree.evict_one() for _ in range(4)] == [11, 10, 1, 0]


def test_nothing_is_attached_below_what_could_be_evicted() -> None:
    tree = BlockTree()
    path = attach(tree, "a", 0)
    tree.unpin_path(path)
    with pytest.raises(CacheCorrupt):
        tree.attach(path[0], b"ab", 1)


def test_letting_go_twice_is_an_error() -> None:
    tree = BlockTree()
    path = attach(tree, "a", 0)
    tree.unpin_path(path)
    with pytest.raises(CacheCorrupt):
        tree.unpin_path(path)
