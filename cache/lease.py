"""The lease: a reused prefix is walked, and pinned in the same mutex hold, so that nothing in it can be evicted.

A sequence holds its lease in its own references (`path`, `source`) from the first moment on, so there is no gap between
lease, sequence and handle. It has no time limit. Lowering it is part of the escrow's revision: see `escrow.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Keys

from .answers import Reach
from .sequence import Sequence
from .window import CacheWindow


def probe(windows: Iterable[CacheWindow], keys: Keys[bytes], limit: int) -> Reach:
    """How much of the prefix all windows could reuse. Owns nothing."""
    return _narrow(windows, limit, lambda window, endpoint: window.reach(keys, endpoint))


def acquire(windows: Iterable[CacheWindow], sequence: Sequence, candidate: int) -> Reach:
    """The authoritative walk: pins what is there of at most `candidate` tokens.

    An entry that a committed escrow was going to evict may be pinned like any other: the escrow then has the next one
    in the order of eviction. Where there is no next one, the lease stops before that block, or looks for an earlier
    snapshot, so that what was promised stays promised.
    """
    windows = tuple(windows)
    reach = _narrow(windows, candidate, lambda window, endpoint: window.leasable(sequence.keys, endpoint))
    sequence.endpoint = sequence.computed = reach.endpoint
    sequence.limited_by = reach.limited_by
    for window in windows:
        window.pin(sequence)
    return reach


def _narrow(windows: Iterable[CacheWindow], limit: int, ask: Callable[[CacheWindow, int], int]) -> Reach:
    reach = Reach(limit)
    for window in windows:
        endpoint = ask(window, reach.endpoint)
        if endpoint < reach.endpoint:
            reach = Reach(endpoint, str(window.window))
    return reach
