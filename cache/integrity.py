"""Checks that every id of a window has one owner and every count is that of what it counts. For tests and diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from .errors import CacheCorrupt
from .layout import Window
from .pool import IdPool
from .sequence import Phase, Sequence
from .tree import BlockNode
from .window import CacheWindow


def check_window(window: CacheWindow, sequences: Sequences[Sequence]) -> None:
    """Raises CacheCorrupt unless, in this window, every device id is exactly one of free, an entry's and a sequence's
    own, every host id free or an entry's, every entry held by as many as it counts, and the promises those of the
    sequences, and covered. O(everything)."""
    name = window.window
    window.tree.check()
    entries = list(window.tree)
    owners: list[int] = [entry.item for entry in entries if entry.item >= 0]
    holders: Counter[bytes] = Counter()
    for sequence in sequences:
        own, pinned = window.holds(sequence)
        owners.extend(own)
        holders.update(entry.key for entry in pinned)
        if stray := [entry.key.hex() for entry in pinned if window.tree.get(entry.key) is not entry]:
            raise CacheCorrupt(f"request {sequence.request} pins detached {name} entries: {stray}")
    _check_owners(f"{name} ids", window.pool, owners)
    _check_owners(f"{name} host ids", window.host.pool, [entry.host for entry in entries if entry.host >= 0])
    for entry in entries:
        if entry.refs != holders[entry.key]:
            raise CacheCorrupt(f"{name} entry {entry.key.hex()} counts {entry.refs} holders of {holders[entry.key]}")
    _check_promises(window, sequences)


def _check_owners(what: str, pool: IdPool, taken: Iterable[int]) -> None:
    owners = Counter(pool.free_ids())
    owners.update(taken)
    wrong = {i: owners[i] for i in range(pool.capacity) if owners[i] != 1}
    if wrong or len(owners) != pool.capacity:
        raise CacheCorrupt(f"owners of {what}, where not exactly one: {wrong}")


def _check_promises(window: CacheWindow, sequences: Iterable[Sequence]) -> None:
    name = window.window
    promised = 0
    wanted: Counter[bytes] = Counter()
    for sequence in sequences:
        if sequence.escrowed != (sequence.phase in (Phase.PREPARED, Phase.COMMITTED)):
            raise CacheCorrupt(f"request {sequence.request}, {sequence.phase.name}, escrowed: {sequence.escrowed}")
        to_it, needs = sequence.promised.get(name, 0), window.outstanding(sequence) if sequence.escrowed else 0
        if to_it != needs:
            raise CacheCorrupt(f"request {sequence.request} is promised {to_it} {name} ids of {needs}")
        promised += to_it
        if sequence.escrowed and name is Window.ATTENTION:
            wanted.update(node.key for node in sequence.path if node.host >= 0)
    for entry in window.tree:
        if isinstance(entry, BlockNode) and entry.wanted != wanted[entry.key]:
            raise CacheCorrupt(f"block {entry.key.hex()} is wanted {entry.wanted} times of {wanted[entry.key]}")
    wanted_blocks = sum(count > 0 for count in wanted.values())
    if promised + wanted_blocks != window.promised or window.slack < 0:
        raise CacheCorrupt(
            f"{name} counts {window.promised} promised of {promised} + {wanted_blocks}, {window.available} available"
        )
