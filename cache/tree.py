"""The attention window's tree: one node a block, each needing every block before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from .errors import CacheCorrupt
from .hint_index import HintIndex
from .layout import Window
from .table import Entry, EntryTable


class BlockNode(Entry):
    """One attached block. `item` is its page, `children` how many attached blocks continue it, and `wanted` how many
    escrows count on a page to bring it back to: none unless it is on the host."""

    __slots__ = ("children", "parent", "wanted")

    def __init__(self, key: bytes, page: int, parent: BlockNode | None) -> None:
        super().__init__(key, page, refs=1)
        self.parent = parent
        self.children = 0
        self.wanted = 0


class BlockTree(EntryTable[BlockNode]):
    """Attached blocks, keyed by chained keys.

    Holders pin whole paths from the root, so a held node's ancestors are held, and a path is let go of deepest first,
    so in either order of eviction a node comes after its descendants there. Blocks go to the host from the leaves up
    and come back from the root down. So on every chain of keys the attached ones are a prefix, and so are, of those,
    the held ones, and the ones on the device: all these ends are found by bisection. Under the stage cache's mutex.
    """

    def __init__(self, index: HintIndex) -> None:
        super().__init__(Window.ATTENTION, index)

    def match(self, keys: Sequence[bytes], limit_blocks: int) -> int:
        """How many of the first `limit_blocks` keys are attached, from the first on without a gap. O(log limit)."""
        return bisect_left(keys, True, hi=min(limit_blocks, len(keys)), key=lambda key: key not in self._entries)

    def held(self, keys: Sequence[bytes], blocks: int) -> int:
        """Of the first `blocks` keys, all attached, how many (a prefix of them) somebody holds. O(log blocks)."""
        return bisect_left(keys, True, hi=blocks, key=lambda key: self._entries[key].refs == 0)

    def resident(self, keys: Sequence[bytes], blocks: int) -> int:
        """Of the first `blocks` keys, all attached, how many (a prefix of them) are on the device. O(log blocks)."""
        return bisect_left(keys, True, hi=blocks, key=lambda key: self._entries[key].item < 0)

    def pin_path(self, keys: Sequence[bytes], blocks: int) -> list[BlockNode]:
        """Pins the first `blocks` keys, all attached: their nodes, root first."""
        entries = self._entries
        path = [entries[key] for key in keys[:blocks]]
        for node in path:
            if node.refs == 0:
                (self.device if node.item >= 0 else self.host).discard(node)
            node.refs += 1
        return path

    def unpin_path(self, path: Sequence[BlockNode]) -> None:
        """Lets go of the lower end of a path, or all of it, deepest first."""
        for node in reversed(path):
            self.unpin(node)

    def attach(self, parent: BlockNode | None, key: bytes, page: int) -> BlockNode:
        """A new node of `key` below `parent` (None: a first block), pinned once for the caller. Raises CacheCorrupt
        when nobody holds the parent."""
        if parent is not None:
            if parent.refs == 0:
                raise CacheCorrupt(f"block {key.hex()} attached below {parent.key.hex()}, which nobody holds")
            parent.children += 1
        return self.insert(BlockNode(key, page, parent))

    def detach(self, entry: BlockNode) -> None:
        if entry.children:
            raise CacheCorrupt(f"block {entry.key.hex()} evicted before its {entry.children} children")
        if entry.parent is not None:
            entry.parent.children -= 1
        super().detach(entry)

    def check(self) -> None:
        """Besides, that parents are attached, held and resident where their children are, and come after them."""
        super().check()
        children: dict[bytes, int] = {}
        for node in self:
            parent = node.parent
            if parent is None:
                continue
            if self.get(parent.key) is not parent or parent.refs < node.refs:
                raise CacheCorrupt(f"block {node.key.hex()} with a parent that is detached or less held than it")
            if node.resident and not parent.resident:
                raise CacheCorrupt(f"block {node.key.hex()} is on the device and its parent is not")
            children[parent.key] = children.get(parent.key, 0) + 1
        for node in self:
            if node.children != children.get(node.key, 0):
                raise CacheCorrupt(f"block {node.key.hex()} counts {node.children} children")
        for order in (self.device, self.host):
            place = {node.key: i for i, node in enumerate(order.in_order())}
            for node in order.in_order():
                above = node.parent
                while above is not None and above.key not in place:
                    above = above.parent
                if above is not None and place[above.key] < place[node.key]:
                    raise CacheCorrupt(f"block {node.key.hex()} comes after its ancestor in eviction order")
