"""Everything that one stage caches, for every request, behind one mutex."""

from collections.abc import Generator
from collections.abc import Sequence as Keys
from contextlib import contextmanager
from itertools import count, pairwise
from threading import Lock

from .answers import Claimed, NoRoom, Pull, Reach, Short
from .attention_window import AttentionWindow
from .errors import (
    AttemptConflict,
    CacheCorrupt,
    DuplicateHandle,
    HandleGone,
    HandleNotSealed,
    UnknownHandle,
    UnknownSequence,
)
from .gauges import CacheGauges
from .layout import Window
from .recurrent_window import RecurrentWindow
from .sequence import Sequence
from .window import CacheWindow


class StageCache:
    """The windows of one stage, what requests hold of them, and the handles and pulls that keep finished ones.

    Any thread may call any method: one mutex, held for bookkeeping only, never across I/O, hashing or a device sync.
    Ownership passes lease → sequence → handle with the one `Sequence` object, so no reference is let go in between.
    """

    def __init__(self, windows: frozenset[Window], num_pages: int, num_slots: int, block_size: int) -> None:
        """A count is ignored where its window is not among `windows`. Raises ValueError for one below 1 that is."""
        self.block_size = block_size
        self._attention = AttentionWindow(num_pages, block_size) if Window.ATTENTION in windows else None
        self._recurrent = RecurrentWindow(num_slots, block_size) if Window.RECURRENT in windows else None
        # In the order in which they narrow a reach: the snapshot is looked for below what attention has.
        self._windows: tuple[CacheWindow, ...] = tuple(w for w in (self._attention, self._recurrent) if w is not None)
        self._mutex = Lock()
        self._sequences: dict[int, Sequence] = {}
        """Unsealed, by request."""
        self._handles: dict[str, Sequence] = {}
        """Every sequence, sealed or not, by handle."""
        self._pulls: dict[int, Sequence] = {}
        self._pull_ids = count(1)
        self._released = 0

    def probe(self, keys: Keys[bytes], limit: int) -> Reach:
        """How much of the prefix `keys` this stage could reuse, at most `limit` = alignDown_B(n-1) tokens. Owns
        nothing, and does not count as a use."""
        with self._mutex:
            return self._reach(keys, limit)

    def claim(
        self,
        request: int,
        attempt: int,
        handle: str,
        keys: Keys[bytes],
        num_tokens: int,
        candidate: int,
        snapshots: tuple[int, ...],
    ) -> Claimed | Short | NoRoom:
        """Pins the first `candidate` tokens and takes all that the rest of the prompt needs, or takes nothing.

        Taken are a page for every block from the candidate to ⌈n/B⌉, a live slot, and a slot for each position of
        `snapshots` beyond the candidate; least recently used pages and snapshots are evicted for them, never the
        claim's own prefix. `keys` are those of the prompt's full blocks. The same attempt again gets the same answer.

        `Short`: the stage cannot reach the candidate, or could never hold it together with the rest (a snapshot to
        resume from costs a slot of its own). Raises AttemptConflict while another attempt of the request is held or
        when it is done already, DuplicateHandle, and ValueError for a malformed claim.
        """
        self._validate(keys, num_tokens, candidate, snapshots)
        sequence = Sequence(
            request=request,
            attempt=attempt,
            handle=handle,
            keys=tuple(keys),
            num_tokens=num_tokens,
            endpoint=candidate,
            planned=tuple(position for position in snapshots if position > candidate),
            computed=candidate,
        )
        with self._mutex:
            held = self._sequences.get(request)
            if held is not None:
                if held.attempt == attempt:
                    return Claimed(held.endpoint)
                raise AttemptConflict(f"request {request}: attempt {attempt} while {held.attempt} is held")
            if handle in self._handles:
                raise DuplicateHandle(f"request {request}: its handle is that of {self._handles[handle].request}")
            refusal = self._refusal(sequence)
            if refusal is not None:
                return refusal
            for window in self._windows:
                window.claim(sequence)
            self._sequences[request] = sequence
            self._handles[handle] = sequence
            return Claimed(candidate)

    def sequence(self, request: int) -> Sequence:
        """What the request holds. Raises UnknownSequence when it holds nothing or is sealed."""
        with self._mutex:
            return self._unsealed(request)

    def resumed(self, request: int) -> None:
        """The source snapshot has been copied to the live slot: unpins it. Harmless when there is none."""
        with self._changing():
            sequence = self._unsealed(request)
            for window in self._windows:
                window.resumed(sequence)

    def publish(self, request: int, computed: int) -> None:
        """Device work up to `computed` tokens is complete: attaches its full blocks and the snapshots it reached.

        Where a key is attached already, the existing page or snapshot stays; our page remains the request's own, and
        our slot is freed. A `computed` at or below the last one changes nothing.
        """
        with self._changing():
            sequence = self._unsealed(request)
            if computed > sequence.num_tokens:
                raise ValueError(f"request {request}: {computed} tokens computed of {sequence.num_tokens}")
            for window in self._windows:
                window.publish(sequence, computed)
            sequence.computed = max(sequence.computed, computed)

    def seal(self, request: int) -> None:
        """All tokens are computed: the sequence passes to its handle, references and all, and is no request's any
        more. Slots of snapshots that were never published are freed. A handle released before is dropped here."""
        with self._changing():
            sequence = self._unsealed(request)
            for window in self._windows:
                window.seal(sequence)
            del self._sequences[request]
            sequence.sealed = True
            self._drop_if_over(sequence)

    def release(self, request: int) -> None:
        """Drops an unsealed sequence: published blocks and snapshots stay cached, the rest is free. No-op when there
        is none. The caller sees to it that no device work still writes."""
        with self._changing():
            sequence = self._sequences.pop(request, None)
            if sequence is not None:
                self._drop(sequence)

    def release_handle(self, handle: str) -> None:
        """Ends a handle: no pull can be opened any more, and the state goes with the last open one.

        An unsealed sequence runs on and is dropped when it is sealed: a holder may be done with the other stages before
        this one has noticed its own last chunk. No-op for an unknown handle.
        """
        with self._changing():
            sequence = self._handles.get(handle)
            if sequence is not None:
                sequence.ended = True
                self._drop_if_over(sequence)

    def open_pull(self, handle: str) -> Pull:
        """Keeps the handle's state until `close_pull`. Raises UnknownHandle, HandleNotSealed or HandleGone."""
        with self._mutex:
            sequence = self._handles.get(handle)
            if sequence is None:
                raise UnknownHandle("no finished prefill has this handle here")
            if sequence.ended:
                raise HandleGone(f"the handle of request {sequence.request} was released")
            if not sequence.sealed:
                raise HandleNotSealed(f"request {sequence.request} is still being computed")
            pull = next(self._pull_ids)
            self._pulls[pull] = sequence
            sequence.pulls += 1
            return Pull(pull, sequence.pages, sequence.slot, sequence.num_tokens)

    def close_pull(self, pull: int) -> bool:
        """Ends a pull; False when it is not open (closed or expired before)."""
        with self._changing():
            sequence = self._pulls.pop(pull, None)
            if sequence is None:
                return False
            sequence.pulls -= 1
            self._drop_if_over(sequence)
            return True

    def reset(self) -> None:
        """Detaches every block and snapshot that nobody holds."""
        with self._changing():
            for window in self._windows:
                window.reset()

    def fits(self, num_tokens: int, num_snapshots: int) -> bool:
        """Whether a prompt of this length with this many planned snapshots fits an empty cache."""
        return all(window.sustains(0, num_tokens, num_snapshots) for window in self._windows)

    @property
    def released(self) -> int:
        """How many operations have made more pages or slots free or reclaimable than there were before them."""
        return self._released

    def gauges(self) -> CacheGauges:
        with self._mutex:
            pages, slots = self._attention, self._recurrent
            return CacheGauges(
                pages_total=pages.pool.capacity if pages else 0,
                pages_free=pages.pool.free if pages else 0,
                pages_reclaimable=pages.tree.evictable if pages else 0,
                slots_total=slots.pool.capacity if slots else 0,
                slots_free=slots.pool.free if slots else 0,
                slots_reclaimable=slots.tree.evictable if slots else 0,
                leases=len(self._sequences),
                handles=len(self._handles) - len(self._sequences),
                pulls=len(self._pulls),
            )

    def check(self) -> None:
        """Raises CacheCorrupt unless every page and slot is exactly one of free, tree-owned and request-owned, and all
        counts agree. O(everything): for tests and diagnosis."""
        with self._mutex:
            sequences = list(self._handles.values())
            for window in self._windows:
                window.check(sequences)
            unsealed = {sequence.request: sequence for sequence in sequences if not sequence.sealed}
            if unsealed != self._sequences:
                raise CacheCorrupt(f"unsealed {sorted(unsealed)}, by request {sorted(self._sequences)}")
            open_pulls = list(self._pulls.values())
            for sequence in sequences:
                if sequence.pulls != open_pulls.count(sequence):
                    raise CacheCorrupt(f"request {sequence.request} counts {sequence.pulls} pulls")
                if sequence.sealed and sequence.ended and not sequence.pulls:
                    raise CacheCorrupt(f"request {sequence.request} outlived its handle")
            if sum(sequence.pulls for sequence in sequences) != len(open_pulls):
                raise CacheCorrupt("a pull is open on a sequence that no handle names")

    @contextmanager
    def _changing(self) -> Generator[None]:
        """The mutex, and one more on `released` if any window's free and reclaimable grew."""
        with self._mutex:
            before = [window.available for window in self._windows]
            yield
            if any(window.available > was for window, was in zip(self._windows, before, strict=True)):
                self._released += 1

    def _validate(self, keys: Keys[bytes], num_tokens: int, candidate: int, snapshots: tuple[int, ...]) -> None:
        block = self.block_size
        if num_tokens < 1 or len(keys) != num_tokens // block:
            raise ValueError(f"{len(keys)} keys for {num_tokens} tokens in blocks of {block}")
        if not 0 <= candidate < num_tokens or candidate % block:
            raise ValueError(f"candidate {candidate} of {num_tokens} tokens in blocks of {block}")
        if any(position % block or not 0 < position <= num_tokens for position in snapshots):
            raise ValueError(f"snapshots {snapshots} of {num_tokens} tokens in blocks of {block}")
        if any(after <= before for before, after in pairwise(snapshots)):
            raise ValueError(f"snapshots {snapshots} are not ascending")

    def _reach(self, keys: Keys[bytes], limit: int) -> Reach:
        reach = Reach(limit)
        for window in self._windows:
            endpoint = window.reach(keys, reach.endpoint)
            if endpoint < reach.endpoint:
                reach = Reach(endpoint, str(window.window))
        return reach

    def _refusal(self, sequence: Sequence) -> Short | NoRoom | None:
        """Why `sequence` cannot be claimed now; None when it can."""
        candidate, tokens, planned = sequence.endpoint, sequence.num_tokens, len(sequence.planned)
        endpoint = self._reach(sequence.keys, candidate).endpoint
        if endpoint < candidate:
            return Short(endpoint)
        for window in self._windows:
            # Waiting would never help, though recomputing would: say so, or an idle stage would refuse for ever.
            if not window.sustains(candidate, tokens, planned) and window.sustains(0, tokens, planned):
                return Short(0)
        for window in self._windows:
            demand = window.demand(sequence)
            if demand.needed > demand.available:
                return NoRoom(str(window.window), demand.needed, demand.available)
        return None

    def _unsealed(self, request: int) -> Sequence:
        sequence = self._sequences.get(request)
        if sequence is None:
            raise UnknownSequence(f"request {request} holds nothing here, or is sealed")
        return sequence

    def _drop_if_over(self, sequence: Sequence) -> None:
        if sequence.sealed and sequence.ended and not sequence.pulls:
            self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        del self._handles[sequence.handle]
        for window in self._windows:
            window.release(sequence)
