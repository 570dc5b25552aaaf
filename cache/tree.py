"""The attention window's tree: one node a block, each needing every block before it."""

from bisect import bisect_left
from collections.abc import Sequence

from .errors import CacheCorrupt
from .lru import Entry, LruTable


class BlockNode(Entry):
    """One attached block. `item` is its page, `children` how many attached blocks continue it."""

    __slots__ = ("children", "parent")

    def __init__(self, key: bytes, page: int, parent: "BlockNode | None") -> None:
        super().__init__(key, page, refs=1)
        self.parent = parent
        self.children = 0


class BlockTree(LruTable[BlockNode]):
    """Attached blocks, keyed by chained keys.

    Holders pin whole paths from the root, so a held node's ancestors are held, and a path is let go of deepest
    first, so in eviction order a node always comes after its children. Two things follow: the next victim is
    always a leaf, and on any chain of keys the attached ones, and the held ones, are a prefix, which is why both can
    be found by bisection. Under the stage cache's mutex.
    """

    __slots__ = ()

    def match(self, keys: Sequence[bytes], limit_blocks: int) -> int:
        """How many of the first `limit_blocks` keys are attached, from the first on without a gap. O(log limit)."""
        return bisect_left(keys, True, hi=min(limit_blocks, len(keys)), key=lambda key: key not in self._entries)

    def held(self, keys: Sequence[bytes], blocks: int) -> int:
        """Of the first `blocks` keys, all attached, how many (a prefix of them) somebody holds. O(log blocks)."""
        return bisect_left(keys, True, hi=blocks, key=lambda key: self._entries[key].refs == 0)

    def pin_path(self, keys: Sequence[bytes], blocks: int) -> list[BlockNode]:
        """Pins the first `blocks` keys, all attached: their nodes, root first."""
        path = [self._entries[key] for key in keys[:blocks]]
        for node in path:
            self.pin(node)
        return path

    def unpin_path(self, path: Sequence[BlockNode]) -> None:
        """Lets go of a path that starts at the root, deepest first."""
        for node in reversed(path):
            self.unpin(node)

    def attach(self, parent: BlockNode | None, key: bytes, page: int) -> BlockNode:
        """The node of `key` below `parent` (None: a first block), pinned once for the caller.

        A node that is attached already stays, with its own page: then the result's `item` is not `page`, which
        remains the caller's. Raises CacheCorrupt when nobody holds the parent.
        """
        node = self._entries.get(key)
        if node is not None:
            self.pin(node)
            return node
        if parent is not None:
            if parent.refs == 0:
                raise CacheCorrupt(f"block {key.hex()} attached below {parent.key.hex()}, which nobody holds")
            parent.children += 1
        return self._attach(BlockNode(key, page, parent))

    def _detach(self, entry: BlockNode) -> BlockNode:
        if entry.children:
            raise CacheCorrupt(f"block {entry.key.hex()} evicted before its {entry.children} children")
        if entry.parent is not None:
            entry.parent.children -= 1
        return super()._detach(entry)

    def check(self) -> None:
        super().check()
        children: dict[bytes, int] = {}
        for node in self:
            if node.parent is None:
                continue
            if self.get(node.parent.key) is not node.parent or node.parent.refs < min(node.refs, 1):
                raise CacheCorrupt(f"block {node.key.hex()} with a parent that is detached or less held than it")
            children[node.parent.key] = children.get(node.parent.key, 0) + 1
        seen: set[bytes] = set()
        for node in self.eviction_order():
            if node.parent is not None and node.parent.key in seen:
                raise CacheCorrupt(f"block {node.key.hex()} comes after its parent in eviction order")
            seen.add(node.key)
        for node in self:
            if node.children != children.get(node.key, 0):
                raise CacheCorrupt(f"block {node.key.hex()} counts {node.children} children")
