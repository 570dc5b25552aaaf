"""What one request holds on one stage, from its lease until its handle ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from .layout import Window
from .snapshots import Snapshot
from .tree import BlockNode


class Phase(IntEnum):
    """How far a request has come on its stage."""

    LEASED = 0
    """Its prefix is pinned."""
    PREPARED = 1
    """Capacity for the rest is promised."""
    COMMITTED = 2
    """The endpoint is final, and the promise is good for it: pages and slots may be taken."""
    SEALED = 3
    """All tokens are computed, and the handle is what holds this."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's storage. Made by `StageCache.lease`; only StageCache changes it, under its mutex.

    Readers on other threads see whole values: the public fields are immutable values, and those that change are
    replaced in one assignment.
    """

    request: int
    attempt: int
    handle: str
    keys: tuple[bytes, ...]
    """Chained keys of the prompt's full blocks."""
    num_tokens: int
    """Length of the prompt, n."""
    endpoint: int = 0
    """Tokens that are reused, block-aligned and below n. Only falls, until it is committed."""
    limited_by: str = ""
    """The window that keeps the endpoint below the candidate (empty: nothing does)."""
    phase: Phase = Phase.LEASED
    planned: tuple[int, ...] = ()
    """Positions beyond the endpoint at which snapshots are captured where there is a recurrent window, ascending."""
    pages: tuple[int, ...] = ()
    """Pages of the first blocks: none until the reused prefix is on the device, then those, then more as they are
    materialised, up to ⌈n/B⌉. Empty without an attention window."""
    slot: int = -1
    """The live recurrent state; -1 until it is materialised, and without a recurrent window."""
    source_slot: int = -1
    """The pinned snapshot at `endpoint`, to be copied to `slot` before the first chunk. -1 until the live slot is
    there, once that is done, where it came from the host, and where there is none: the state then starts at zero."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """(position, slot) of every snapshot that is materialised and still to be captured, ascending."""
    computed: int = 0
    """Tokens whose device work is known to be complete, the reused ones included."""
    ended: bool = False
    """The handle was released: dropped as soon as it is sealed and no pull is open."""
    pulls: int = 0
    """Pulls that are open."""

    escrowed: bool = False
    """Something was promised, and has not been given back as a whole."""
    promised: dict[Window, int] = field(default_factory=dict, repr=False)
    """The escrow: pages and slots promised for the uncached suffix and not yet taken, where that is more than none.
    Pages for leased blocks that are on the host are promised once for all who lease them (`BlockNode.wanted`)."""
    path: list[BlockNode] = field(default_factory=list, repr=False)
    """Attention's own: the nodes of blocks 0..len(path)-1, each pinned once by this sequence. Where a node has another
    page than ours in `pages`, and beyond the path, the page in `pages` is this sequence's own."""
    duplicates: int = field(default=0, repr=False)
    """Attention's own: how many pages below `computed` are ours beside a node's."""
    source: Snapshot | None = field(default=None, repr=False)
    """Recurrent's own: the snapshot at `endpoint`, pinned once by this sequence until the live slot has its state."""
    captures: int = field(default=0, repr=False)
    """Recurrent's own: how many of `planned` have had their slot taken."""
    captured: int = field(default=0, repr=False)
    """Recurrent's own: the position of the snapshot published last."""

    @property
    def sealed(self) -> bool:
        return self.phase is Phase.SEALED

    def own_pages(self) -> list[int]:
        """Pages that no tree node owns; they are freed with the sequence."""
        path = self.path
        own = (
            [page for page, node in zip(self.pages, path, strict=False) if node.item != page] if self.duplicates else []
        )
        own.extend(self.pages[len(path) :])
        return own

    def own_slots(self) -> list[int]:
        """Slots that no snapshot owns; they are freed with the sequence."""
        return [slot for _, slot in self.snapshots] + ([self.slot] if self.slot >= 0 else [])
