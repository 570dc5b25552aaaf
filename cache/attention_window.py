"""The full-attention window: a request needs every block, so it holds a page for each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Keys
from itertools import islice

from .errors import CacheCorrupt
from .hint_index import HintIndex
from .layout import Window
from .moves import Copies
from .sequence import Sequence
from .table import Entry
from .tree import BlockNode, BlockTree
from .window import CacheWindow


class AttentionWindow(CacheWindow[BlockTree]):
    """Pages and their tree. Under the stage cache's mutex.

    A sequence pins one path from the root: the reused blocks, then every block it has published. Where another
    request that still holds the block had published it first, that request's page stays in the tree and ours remains
    the sequence's own; the node is pinned all the same, so that what is attached below it never loses its parent.
    """

    window = Window.ATTENTION

    def __init__(self, num_pages: int, block_size: int, index: HintIndex, host_pages: int = 0) -> None:
        super().__init__(BlockTree(index), num_pages, host_pages)
        self._block_size = block_size

    def reach(self, keys: Keys[bytes], limit: int) -> int:
        return self.tree.match(keys, limit // self._block_size) * self._block_size

    def leasable(self, keys: Keys[bytes], limit: int) -> int:
        blocks = self.tree.match(keys, limit // self._block_size)
        held, slack = self.tree.held(keys, blocks), self.slack
        # Of the blocks that nobody holds yet, those on the device stop being reclaimable; those on the host cost
        # nothing before they are promised a page.
        if self.tree.resident(keys, blocks) - held > slack:
            blocks = held + slack
        return blocks * self._block_size

    def pin(self, sequence: Sequence) -> None:
        sequence.path = self.tree.pin_path(sequence.keys, sequence.endpoint // self._block_size)

    def regained(self, sequence: Sequence, endpoint: int) -> int:
        path = sequence.path
        kept = endpoint // self._block_size
        alone = bisect_left(path, True, key=lambda node: node.refs == 1)
        return max(0, _resident(sequence) - max(kept, alone))

    def trim(self, sequence: Sequence, endpoint: int) -> None:
        kept = endpoint // self._block_size
        self.tree.unpin_path(sequence.path[kept:])
        del sequence.path[kept:]

    def size(self, num_tokens: int, num_snapshots: int) -> int:
        return -(-num_tokens // self._block_size)

    def demand(self, sequence: Sequence, endpoint: int, planned: tuple[int, ...]) -> int:
        kept, own = endpoint // self._block_size, int(sequence.escrowed)
        absent = sequence.path[_resident(sequence) : kept]
        return self.size(sequence.num_tokens, 0) - kept + sum([node.wanted == own for node in absent])

    def own_promise(self, sequence: Sequence) -> int:
        own = super().own_promise(sequence)
        if sequence.escrowed:
            own += sum([node.wanted == 1 for node in sequence.path[_resident(sequence) :]])
        return own

    def outstanding(self, sequence: Sequence) -> int:
        there = max(len(sequence.pages), sequence.endpoint // self._block_size)
        return self.size(sequence.num_tokens, 0) - there

    def promise(self, sequence: Sequence) -> None:
        super().promise(sequence)
        for node in sequence.path[_resident(sequence) :]:
            self.promised += node.wanted == 0
            node.wanted += 1

    def give_back(self, sequence: Sequence) -> None:
        super().give_back(sequence)
        if sequence.escrowed:
            for node in sequence.path[_resident(sequence) :]:
                node.wanted -= 1
                self.promised -= node.wanted == 0

    def bring(self, sequence: Sequence, limit: int | None, copies: Copies) -> None:
        path = sequence.path
        if sequence.pages or not path:
            return
        there = _resident(sequence)
        absent = path[there:] if limit is None else path[there : there + limit]
        for node in absent:
            self._want_no_more(node)
        pages = self._acquire(len(absent), copies)
        for node, page in zip(absent, pages, strict=True):
            self.host.bring_back(node, page, copies)
        if there + len(absent) == len(path):
            sequence.pages = tuple([node.item for node in path])

    def _want_no_more(self, node: BlockNode) -> None:
        """The block comes back to the device: the page that was promised for it is not any more."""
        self.promised -= node.wanted > 0
        node.wanted = 0

    def arrived(self, sequence: Sequence) -> bool:
        return bool(sequence.pages) or _resident(sequence) == len(sequence.path)

    def extend(self, sequence: Sequence, upto: int, copies: Copies) -> bool:
        missing = self.size(upto, 0) - len(sequence.pages)
        if missing <= 0:
            return False
        sequence.pages = (*sequence.pages, *self.take(sequence, missing, copies))
        return True

    def covers(self, sequence: Sequence, computed: int) -> bool:
        return len(sequence.pages) >= self.size(computed, 0)

    def publish(self, sequence: Sequence, computed: int) -> None:
        tree, path, keys, pages = self.tree, sequence.path, sequence.keys, sequence.pages
        parent = path[-1] if path else None
        for block in range(len(path), computed // self._block_size):
            key, page = keys[block], pages[block]
            node = tree.get(key)
            if node is None:
                node = tree.attach(parent, key, page)
            else:
                others = node.refs
                tree.pin(node)
                if node.item < 0:
                    self._want_no_more(node)
                    self.host.bring_back(node, page)
                elif others == 0:
                    # Ours replaces the page that nobody holds: holding both would take one from what is promised.
                    self.pool.give((node.item,))
                    node.item = page
                else:
                    sequence.duplicates += 1
            path.append(node)
            parent = node

    def seal(self, sequence: Sequence) -> None:
        if not sequence.duplicates:
            return
        path, pages = sequence.path, sequence.pages
        self.pool.give([page for page, node in zip(pages, path, strict=False) if node.item != page])
        sequence.pages = (*[node.item for node in path], *islice(pages, len(path), None))
        sequence.duplicates = 0

    def release(self, sequence: Sequence) -> None:
        if self.window in sequence.promised:
            raise CacheCorrupt(f"request {sequence.request} lets go of its blocks before its pages' promise")
        self.pool.give(reversed(sequence.own_pages()))
        self.tree.unpin_path(sequence.path)
        sequence.path, sequence.pages, sequence.duplicates = [], (), 0

    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        return sequence.own_pages(), list(sequence.path)


def _resident(sequence: Sequence) -> int:
    """How many blocks of the path, a prefix of it, are on the device. O(log path)."""
    return bisect_left(sequence.path, True, key=lambda node: node.item < 0)
