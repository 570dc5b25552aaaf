"""Everything that one stage caches, for every request, behind one mutex."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Keys
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any

from . import escrow, lease
from .answers import NoRoom, Prepared, Pull, Reach
from .attention_window import AttentionWindow
from .errors import CacheCorrupt, WrongPhase
from .escrow import Floors
from .eviction import Retention
from .gauges import CacheGauges, take_gauges
from .handles import Handles, is_over
from .hint_index import HintIndex
from .integrity import check_window
from .layout import Window
from .moves import Copies, Moves
from .recurrent_window import RecurrentWindow
from .sequence import Phase, Sequence
from .unsealed import Unsealed
from .validation import check_endpoint, check_prompt, check_snapshots
from .window import CacheWindow

_NO_FLOORS = Floors()


class StageCache:
    """The windows of one stage, what requests hold of them, and the handles and pulls that keep finished ones.

    Any thread may call any method: one mutex, held for bookkeeping only, never across I/O, hashing or a device sync.
    WAVE leases, prepares, commits and withdraws while LOOP materialises, publishes, seals and releases. Ownership
    passes lease → sequence → handle with the one `Sequence` object, so no reference is let go in between.
    """

    def __init__(
        self,
        windows: frozenset[Window],
        num_pages: int,
        num_slots: int,
        block_size: int,
        *,
        host_pages: int = 0,
        host_slots: int = 0,
        floors: Floors = _NO_FLOORS,
        retention: Retention = "lru",
        mutex: AbstractContextManager[Any] | None = None,
    ) -> None:
        """A count is ignored where its window is not among `windows`. `host_pages` and `host_slots` are places of the
        host tier (0: none). `retention` is the snapshots' order of eviction, on both tiers. `mutex` is used instead of
        a lock of its own. Raises ValueError for a window without pages or slots."""
        self.block_size = block_size
        self.index = HintIndex(windows, block_size)
        """Of what is attached; any thread reads it without the mutex."""
        self._attention: AttentionWindow | None = None
        self._recurrent: RecurrentWindow | None = None
        if Window.ATTENTION in windows:
            self._attention = AttentionWindow(num_pages, block_size, self.index, host_pages)
        if Window.RECURRENT in windows:
            self._recurrent = RecurrentWindow(num_slots, block_size, self.index, host_slots, retention)
        # In the order in which they narrow a reach: the snapshot is looked for below what attention has.
        self._windows: tuple[CacheWindow, ...] = tuple(w for w in (self._attention, self._recurrent) if w is not None)
        self._floors = floors
        self._mutex = Lock() if mutex is None else mutex
        self._unsealed = Unsealed()
        self._handles = Handles()
        self._released = 0

    # Admission.

    def hint(self, keys: Keys[bytes], limit: int) -> Reach:
        """How much of the prefix `keys` this stage could reuse, at most `limit` = alignDown_B(n-1) tokens, as far as
        the index knows. Takes no mutex, owns nothing, and may be out of date at once."""
        return self.index.reach(keys, limit)

    def probe(self, keys: Keys[bytes], limit: int) -> Reach:
        """The same by a walk under the mutex. Owns nothing, and does not count as a use."""
        with self._mutex:
            return lease.probe(self._windows, keys, limit)

    def lease(
        self, request: int, attempt: int, handle: str, keys: Keys[bytes], num_tokens: int, candidate: int
    ) -> Reach:
        """Pins what is there of the first `candidate` tokens, and says how much that is. Nothing is promised yet.

        `keys` are those of the prompt's full blocks. It is less than there is where a committed escrow has no other
        victims, and where the snapshot would leave no slot to go on in. The same attempt again gets the same answer.
        Raises AttemptConflict while another attempt of the request is held, DuplicateHandle, and ValueError for a
        malformed call.
        """
        check_prompt(keys, num_tokens, self.block_size)
        check_endpoint(candidate, num_tokens, self.block_size)
        sequence = Sequence(request, attempt, handle, tuple(keys), num_tokens)
        with self._mutex:
            held = self._unsealed.same_attempt(request, attempt)
            if held is not None:
                return Reach(held.endpoint, held.limited_by)
            self._handles.refuse_duplicate(handle, request)
            reach = lease.acquire(self._windows, sequence, candidate)
            self._unsealed.add(sequence)
            self._handles.add(sequence)
            return reach

    def prepare(self, request: int, snapshots: tuple[int, ...]) -> Prepared | NoRoom:
        """Promises what the rest of a leased prompt needs, with a slot for each position of `snapshots` beyond the
        endpoint; again, it revises the promise.

        The answer's endpoint is below the lease's where source, live state and captures could never fit together: the
        lease is lowered then. After `NoRoom` everything is as it was. Raises WrongPhase when the request is committed.
        """
        check_snapshots(snapshots, self.block_size)
        with self._changing():
            sequence = self._unsealed.uncommitted(request, snapshots)
            outcome = escrow.revise(self._windows, sequence, sequence.endpoint, snapshots, _NO_FLOORS)
            if isinstance(outcome, Prepared):
                sequence.phase = Phase.PREPARED
            return outcome

    def commit(self, request: int, endpoint: int, snapshots: tuple[int, ...]) -> Reach | NoRoom:
        """Makes `endpoint` final, and the promise good for it.

        A lease above `endpoint` is lowered first. The answer's endpoint is `endpoint`: committed, with the demand
        counted anew and the floors kept (but for the only unsealed request of the stage, which may go below them). It
        is lower: the lease and its promise are now good for that one, and nothing is committed. After `NoRoom`
        everything is as it was. Again at the same endpoint it changes nothing; at another it raises WrongPhase.
        """
        check_snapshots(snapshots, self.block_size)
        with self._changing():
            sequence = self._unsealed.get(request)
            check_endpoint(endpoint, sequence.num_tokens, self.block_size)
            if sequence.phase is Phase.COMMITTED and sequence.endpoint == endpoint:
                return Reach(endpoint)
            sequence = self._unsealed.uncommitted(request, snapshots)
            floors = self._floors if len(self._unsealed) > 1 else _NO_FLOORS
            outcome = escrow.revise(self._windows, sequence, endpoint, snapshots, floors)
            if isinstance(outcome, NoRoom):
                return outcome
            if outcome.endpoint < endpoint:
                sequence.phase = Phase.PREPARED
                return Reach(outcome.endpoint, sequence.limited_by)
            sequence.phase = Phase.COMMITTED
            return Reach(endpoint)

    def withdraw(self, request: int) -> bool:
        """Ends an attempt that is not admitted: its escrow, then its lease. Whether `released` grew by that (others may
        move it at any time); False when nothing is held."""
        with self._mutex:
            before = self._slacks()
            self._drop_unsealed(request)
            return self._count_growth(before)

    # The life of an admitted request.

    def sequence(self, request: int) -> Sequence:
        """What the request holds. Raises UnknownSequence when it holds nothing or is sealed."""
        with self._mutex:
            return self._unsealed.get(request)

    def materialise(self, request: int, upto: int, limit: int | None = None) -> Moves | None:
        """One step towards having on the device all that tokens below `upto` read and write. LOOP's.

        First what is reused is brought from the host, root first and at most `limit` pages and slots a step (a source
        snapshot straight to the live slot). When all of it is there, what the tokens from the endpoint to `upto` write
        to is taken: pages, the live slot, slots of the snapshots on the way. Evicts and offloads what makes way for
        it. None when there was nothing left to do; else the copies, perhaps none, to be made before the next step of
        any request: until then nothing else uses what they name. Raises WrongPhase when the request is not committed.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"at most {limit} copies a step would never end")
        with self._changing():
            sequence = self._unsealed.committed(request)
            if not 0 <= upto <= sequence.num_tokens:
                raise ValueError(f"request {request}: {upto} tokens of {sequence.num_tokens}")
            step = [Copies(window.window) for window in self._windows]
            left = limit
            for window, copies in zip(self._windows, step, strict=True):
                window.bring(sequence, left, copies)
                left = None if left is None else left - copies.onboards
            worked = any(copies.onboards for copies in step)
            if not worked and upto > sequence.endpoint:
                for window, copies in zip(self._windows, step, strict=True):
                    worked |= window.extend(sequence, upto, copies)
            return Copies.moves(step) if worked else None

    def on_device(self, request: int) -> bool:
        """Whether all that the request reuses is on the device."""
        with self._mutex:
            sequence = self._unsealed.committed(request)
            return all(window.arrived(sequence) for window in self._windows)

    def resumed(self, request: int) -> None:
        """The source snapshot has been copied to the live slot: unpins it. Harmless when there is none."""
        with self._changing():
            sequence = self._unsealed.committed(request)
            for window in self._windows:
                window.resumed(sequence)

    def publish(self, request: int, computed: int) -> None:
        """Device work up to `computed` tokens is complete: attaches its full blocks and the snapshots it reached.

        Where a key is attached already: a block that somebody holds on the device stays, and our page remains the
        request's own; any other block takes our page over; a snapshot on the device stays, and our slot is freed; one
        on the host takes our slot over. A `computed` at or below the last one changes nothing.
        """
        with self._changing():
            sequence = self._unsealed.committed(request)
            if computed > sequence.num_tokens:
                raise ValueError(f"request {request}: {computed} tokens computed of {sequence.num_tokens}")
            if computed <= sequence.computed:
                return
            self._require(sequence, computed)
            for window in self._windows:
                window.publish(sequence, computed)
            sequence.computed = computed

    def seal(self, request: int) -> None:
        """All tokens are computed: the sequence passes to its handle, references and all, and is no request's any
        more. Pages that double a tree's and slots of snapshots that were never published are freed. A handle released
        before is dropped here."""
        with self._changing():
            sequence = self._unsealed.committed(request)
            self._require(sequence, sequence.num_tokens)
            escrow.give_back(self._windows, sequence)
            for window in self._windows:
                window.seal(sequence)
            self._unsealed.pop(request)
            sequence.phase = Phase.SEALED
            self._drop_if_over(sequence)

    def release(self, request: int) -> None:
        """Drops an unsealed sequence: published blocks and snapshots stay cached, the rest is free. No-op when there
        is none. The caller sees to it that no device work still writes."""
        with self._changing():
            self._drop_unsealed(request)

    # Handles and pulls.

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
            return self._handles.open(handle)

    def close_pull(self, pull: int) -> bool:
        """Ends a pull; False when it is not open (closed or expired before)."""
        with self._changing():
            sequence = self._handles.close(pull)
            if sequence is not None:
                self._drop_if_over(sequence)
            return sequence is not None

    # The cache as a whole.

    def reset(self) -> None:
        """Detaches every block and snapshot that nobody holds, on the device and on the host."""
        with self._changing():
            for window in self._windows:
                window.reset()

    def fits(self, num_tokens: int, num_snapshots: int) -> bool:
        """Whether a prompt of this length with this many planned snapshots fits an empty cache."""
        return all(window.sustains(num_tokens, num_snapshots) for window in self._windows)

    @property
    def released(self) -> int:
        """How many operations have left more pages or slots free or reclaimable, and not promised, than there were
        before them."""
        return self._released

    def gauges(self) -> CacheGauges:
        with self._mutex:
            return take_gauges(self._attention, self._recurrent, self._unsealed, self._handles)

    def check(self) -> None:
        """Raises CacheCorrupt when the bookkeeping contradicts itself anywhere. O(everything): for tests and
        diagnosis."""
        with self._mutex:
            sequences = self._handles.sequences()
            for window in self._windows:
                check_window(window, sequences)
            self._handles.check()
            if {sequence for sequence in sequences if not sequence.sealed} != {*self._unsealed}:
                raise CacheCorrupt("the unsealed requests are not those whose handles are not sealed")

    @contextmanager
    def _changing(self) -> Generator[None]:
        """The mutex, and one more on `released` if the slack of any window grew."""
        with self._mutex:
            before = self._slacks()
            yield
            self._count_growth(before)

    def _slacks(self) -> list[int]:
        return [window.slack for window in self._windows]

    def _count_growth(self, before: list[int]) -> bool:
        grew = any(window.slack > was for window, was in zip(self._windows, before, strict=True))
        self._released += grew
        return grew

    def _require(self, sequence: Sequence, computed: int) -> None:
        if not all(window.covers(sequence, computed) for window in self._windows):
            raise WrongPhase(f"request {sequence.request} is not materialised up to {computed} tokens")

    def _drop_unsealed(self, request: int) -> None:
        sequence = self._unsealed.pop(request)
        if sequence is not None:
            self._drop(sequence)

    def _drop_if_over(self, sequence: Sequence) -> None:
        if is_over(sequence):
            self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        self._handles.remove(sequence)
        escrow.give_back(self._windows, sequence)
        for window in self._windows:
            window.release(sequence)
