"""What one request holds on one stage, from its claim until its handle ends."""

from dataclasses import dataclass, field

from .snapshots import Snapshot
from .tree import BlockNode


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's storage. Made by `StageCache.claim`; only StageCache changes it, under its mutex.

    Readers on other threads see whole values: the public fields are immutable values, and those that change
    (`source_slot`, `snapshots`, `computed`) are replaced in one assignment.
    """

    request: int
    attempt: int
    handle: str
    keys: tuple[bytes, ...]
    """Chained keys of the prompt's full blocks."""
    num_tokens: int
    """Length of the prompt, n."""
    endpoint: int
    """Tokens that are reused, block-aligned and below n."""
    planned: tuple[int, ...] = ()
    """Positions beyond the endpoint at which snapshots are captured where there is a recurrent window, ascending."""
    pages: tuple[int, ...] = ()
    """Pages of blocks 0..ceil(n/B)-1, the reused ones first; empty without an attention window."""
    slot: int = -1
    """The live recurrent state; -1 without a recurrent window."""
    source_slot: int = -1
    """The pinned snapshot at `endpoint`, to be copied to `slot` before the first chunk; -1 once that is done, or where
    there is none: the state then starts at zero."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """(position, slot) of every snapshot still to be captured, ascending."""
    computed: int = 0
    """Tokens whose device work is known to be complete, the reused ones included."""
    sealed: bool = False
    """All tokens are computed, and the handle is what holds this."""
    ended: bool = False
    """The handle was released: dropped as soon as it is sealed and no pull is open."""
    pulls: int = 0
    """Pulls that are open."""

    path: list[BlockNode] = field(default_factory=list, repr=False)
    """Attention's own: the nodes of blocks 0..len(path)-1, each pinned once by this sequence. Where a node has another
    page than ours in `pages`, and beyond the path, the page in `pages` is this sequence's own."""
    source: Snapshot | None = field(default=None, repr=False)
    """Recurrent's own: the snapshot of `source_slot`, pinned once by this sequence."""

    def own_pages(self) -> list[int]:
        """Pages that no tree node owns; they are freed with the sequence."""
        path = self.path
        own = [page for page, node in zip(self.pages, path, strict=False) if node.item != page]
        own.extend(self.pages[len(path) :])
        return own

    def own_slots(self) -> list[int]:
        """Slots that no snapshot owns; they are freed with the sequence."""
        return [slot for _, slot in self.snapshots] + ([self.slot] if self.slot >= 0 else [])
