"""The plain way to find and to pin a prefix: a radix tree that is walked block by block under one mutex, twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any


class NaiveNode:
    """One attached block; `snapshot` where a recurrent state of exactly its end is kept."""

    __slots__ = ("children", "key", "parent", "refs", "snapshot")

    def __init__(self, key: bytes, parent: NaiveNode | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, NaiveNode] = {}
        self.refs = 0
        self.snapshot = False


class NaiveTree:
    """Blocks of one rank, keyed as WavePP keys them, with the least recently used leaf evicted first. The walks are
    what the paper calls the naive two-walk implementation (§4.1): one to probe, one to pin, each O(blocks) under the
    mutex. Any thread may call any method."""

    def __init__(self, capacity: int, mutex: AbstractContextManager[Any]) -> None:
        self._mutex, self._capacity = mutex, capacity
        self._root = NaiveNode(b"", None)
        self._unheld: OrderedDict[NaiveNode, None] = OrderedDict()
        self._size = 0

    def probe(self, keys: Sequence[bytes], limit_blocks: int, recurrent: bool) -> int:
        """Reusable blocks, at most `limit_blocks`; with `recurrent`, up to the last snapshot among them."""
        with self._mutex:
            node, depth, at_snapshot = self._root, 0, 0
            for key in keys:
                child = node.children.get(key)
                if child is None or depth == limit_blocks:
                    break
                node = child
                depth += 1
                if node.snapshot:
                    at_snapshot = depth
            return at_snapshot if recurrent else depth

    def claim(self, keys: Sequence[bytes], blocks: int) -> list[NaiveNode]:
        """Walks again, and pins what is there of the first `blocks`."""
        with self._mutex:
            node, path = self._root, []
            for key in keys:
                child = node.children.get(key)
                if child is None or len(path) == blocks:
                    break
                if child.refs == 0:
                    del self._unheld[child]
                child.refs += 1
                path.append(child)
                node = child
            return path

    def insert(self, keys: Sequence[bytes], snapshots: frozenset[int] = frozenset()) -> list[NaiveNode]:
        """Attaches what is missing of the chain, evicting what must make way, and pins all of it. `snapshots` are
        counts of blocks."""
        with self._mutex:
            node, path = self._root, []
            for key in keys:
                child = node.children.get(key)
                if child is None:
                    if self._size == self._capacity:
                        self._evict()
                    child = node.children[key] = NaiveNode(key, node)
                    self._size += 1
                elif child.refs == 0:
                    del self._unheld[child]
                child.refs += 1
                path.append(child)
                child.snapshot |= len(path) in snapshots
                node = child
            return path

    def release(self, path: Sequence[NaiveNode]) -> None:
        """Lets go of a pinned path, deepest first."""
        with self._mutex:
            for node in reversed(path):
                node.refs -= 1
                if node.refs == 0:
                    self._unheld[node] = None

    def _evict(self) -> None:
        victim, _ = self._unheld.popitem(last=False)
        assert victim.parent is not None, "the root is never let go of"
        del victim.parent.children[victim.key]
        self._size -= 1
