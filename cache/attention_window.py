"""The full-attention window: a request needs every block, so it holds a page for each."""

from collections.abc import Sequence as Keys

from .layout import Window
from .lru import Entry
from .sequence import Sequence
from .tree import BlockTree
from .window import CacheWindow, Demand


class AttentionWindow(CacheWindow[BlockTree]):
    """Pages and their tree. Under the stage cache's mutex.

    A sequence pins one path from the root: the reused blocks, then every block it has published. Where another
    request had published a block first, that request's page stays in the tree and ours remains the sequence's own; the
    node is pinned all the same, so that what is attached below it never loses its parent.
    """

    window = Window.ATTENTION

    def __init__(self, num_pages: int, block_size: int) -> None:
        super().__init__(BlockTree(), num_pages)
        self._block_size = block_size

    def reach(self, keys: Keys[bytes], limit: int) -> int:
        return self.tree.match(keys, limit // self._block_size) * self._block_size

    def size(self, num_tokens: int, num_snapshots: int) -> int:
        return -(-num_tokens // self._block_size)

    def sustains(self, endpoint: int, num_tokens: int, num_snapshots: int) -> bool:
        return self.size(num_tokens, num_snapshots) <= self.pool.capacity

    def demand(self, sequence: Sequence) -> Demand:
        reused = sequence.endpoint // self._block_size
        reclaimable_prefix = reused - self.tree.held(sequence.keys, reused)
        return Demand(self.size(sequence.num_tokens, 0) - reused, self.available - reclaimable_prefix)

    def claim(self, sequence: Sequence) -> None:
        reused = sequence.endpoint // self._block_size
        sequence.path = self.tree.pin_path(sequence.keys, reused)
        rest = self.take(self.size(sequence.num_tokens, 0) - reused)
        sequence.pages = (*(node.item for node in sequence.path), *rest)

    def publish(self, sequence: Sequence, computed: int) -> None:
        path, keys, pages = sequence.path, sequence.keys, sequence.pages
        parent = path[-1] if path else None
        for block in range(len(path), computed // self._block_size):
            parent = self.tree.attach(parent, keys[block], pages[block])
            path.append(parent)

    def release(self, sequence: Sequence) -> None:
        self.pool.give(reversed(sequence.own_pages()))
        self.tree.unpin_path(sequence.path)
        sequence.path, sequence.pages = [], ()

    def holds(self, sequence: Sequence) -> tuple[list[int], list[Entry]]:
        return sequence.own_pages(), list(sequence.path)
