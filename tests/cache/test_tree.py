"""Blocks are found from the root without a gap, evicted leaves first, and offloaded likewise."""

from __future__ import annotations

import pytest
from wavepp.cache.errors import CacheCorrupt
from wavepp.cache.hint_index import HintIndex
from wavepp.cache.layout import Window
from wavepp.cache.tree import BlockNode, BlockTree

from .side_by_side import BLOCK, chain


@pytest.fixture
def tree() -> BlockTree:
    return BlockTree(HintIndex({Window.ATTENTION}, BLOCK))


def attach(tree: BlockTree, prompt: str, first_page: int) -> list[BlockNode]:
    """Attaches the whole chain, or pins what is there; page `first_page` + i for block i."""
    path: list[BlockNode] = []
    for block, key in enumerate(chain(prompt)):
        node = tree.get(key)
        if node is None:
            node = tree.attach(path[-1] if path else None, key, first_page + block)
        else:
            tree.pin(node)
        path.append(node)
    return path


def evict(tree: BlockTree) -> int | None:
    node = tree.device.pop()
    if node is None:
        return None
    tree.detach(node)
    return node.item


def test_match_counts_attached_blocks_up_to_the_limit(tree: BlockTree) -> None:
    attach(tree, "abcd", 0)
    assert tree.match(chain("abcdef"), 6) == 4
    assert tree.match(chain("abcdef"), 3) == 3
    assert tree.match(chain("abxd"), 4) == 2
    assert tree.match(chain("bcd"), 3) == 0
    assert tree.match((), 0) == 0
    assert tree.match(chain("ab"), 9) == 2


def test_children_are_evicted_before_their_parents_and_old_paths_before_new_ones(tree: BlockTree) -> None:
    old, new = attach(tree, "abc", 0), attach(tree, "axy", 10)
    tree.unpin_path(old)
    tree.unpin_path(new)
    # Page 0 is the shared first block; it goes last, though the older path let go of it first.
    assert [evict(tree) for _ in range(6)] == [2, 1, 12, 11, 0, None]
    assert len(tree) == 0


def test_a_held_path_is_never_evicted(tree: BlockTree) -> None:
    tree.unpin_path(attach(tree, "abc", 0))
    again = tree.pin_path(chain("abc"), 2)
    assert tree.held(chain("abc"), 3) == 2
    assert (len(tree.device), evict(tree), evict(tree)) == (1, 2, None)
    tree.unpin_path(again)
    tree.check()


def test_use_makes_a_path_young_again(tree: BlockTree) -> None:
    tree.unpin_path(attach(tree, "ab", 0))
    tree.unpin_path(attach(tree, "xy", 10))
    tree.unpin_path(tree.pin_path(chain("ab"), 2))
    assert [evict(tree) for _ in range(4)] == [11, 10, 1, 0]


def test_what_is_on_the_host_is_the_lower_end_of_every_path(tree: BlockTree) -> None:
    tree.unpin_path(attach(tree, "abcd", 0))
    for place in range(2):
        node = tree.device.pop()
        assert node is not None
        assert tree.to_host(node, place) == 3 - place
    assert (tree.match(chain("abcd"), 4), tree.resident(chain("abcd"), 4)) == (4, 2)
    tree.check()
    path = tree.pin_path(chain("abcd"), 4)
    assert tree.to_device(path[2], 7) == 1
    assert tree.resident(chain("abcd"), 4) == 3
    tree.unpin_path(path)
    tree.check()
    assert [node.key for node in tree.host.in_order()] == [b"abcd"]
    assert [node.key for node in tree.device.in_order()] == [b"abc", b"ab", b"a"]
    with pytest.raises(CacheCorrupt, match="before its 1 children"):
        tree.detach(tree[b"abc"])


def test_nothing_is_attached_below_what_could_be_evicted(tree: BlockTree) -> None:
    path = attach(tree, "a", 0)
    tree.unpin_path(path)
    with pytest.raises(CacheCorrupt):
        tree.attach(path[0], b"ab", 1)


def test_letting_go_twice_is_an_error(tree: BlockTree) -> None:
    path = attach(tree, "a", 0)
    tree.unpin_path(path)
    with pytest.raises(CacheCorrupt):
        tree.unpin_path(path)


def test_check_finds_a_child_without_its_parent_and_a_wrong_order(tree: BlockTree) -> None:
    path = attach(tree, "abc", 0)
    path[1].children = 0
    with pytest.raises(CacheCorrupt, match="counts 0 children"):
        tree.check()
    path[1].children = 1
    tree.unpin_path(path)
    tree.check()
    tree.device.touch(path[2])
    with pytest.raises(CacheCorrupt, match="after its ancestor"):
        tree.check()
