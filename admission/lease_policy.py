"""The paper's leased admission: hints for all that wait, leases and escrow for those whose turn has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from .attempt import Attempt, Lack, Room, limit_name, lowest
from .capacity import GroupCapacity
from .config import AdmissionConfig
from .forks import ForkMemory
from .herd import Herd, Hold
from .limiter import Limiter
from .line import Line, Urgency
from .messages import Hint, Install, Probe, Trim, Vote
from .outbox import Outbox
from .policy import Keys
from .rank_board import RankBoard
from .snapshot_plan import SnapshotPlanner, reuse_limit
from .table import Entry, RequestTable, State


@dataclass(slots=True, eq=False)
class _Queued:
    """A request in the queue. `limit` bounds its reuse, and `shared` what others can add to it, both in tokens."""

    entry: Entry
    limit: int
    shared: int
    hints: dict[int, Hint] = field(default_factory=dict)
    probed_at: int = 0
    """How many publications there had been when it was last probed."""
    stirred: int = 0
    """How often the room had been stirred then."""
    must_probe: bool = False
    """Its hints are from before it was held or turned away."""
    refreshed: bool = False
    """It has been probed again since its turn came; it has kept its place in the line meanwhile."""
    candidate: int = 0
    lack: Lack | None = None
    alone: bool = False
    """It was turned away. Nobody behind it is installed beside it any more: where its endpoint falls, it needs more
    room, and what they had been given could be what it lacks, again and again."""
    attempt: Attempt | None = None
    """What is open at the ranks while it is being installed."""


class LeasePolicy:
    """Every queued request is probed at once, and owns nothing by that. Once their hints are in, requests are installed
    by urgency, and within the limiter's bounds: any number of them in one round, and more while others are still being
    agreed on. Where endpoints differ, they are lowered step by step until all ranks agree.

    The first that may not go on stops all behind it; one that is held by the herd rule does not. Whoever is more urgent
    goes before it, if it comes later too; but what is being installed is never given up for that. Owner: the leader's
    thread.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        capacity: GroupCapacity,
        table: RequestTable,
        outbox: Outbox,
        board: RankBoard,
        wave_tokens: int,
        keys: Keys,
        urgency: Urgency,
    ) -> None:
        self._table, self._outbox, self._keys = table, outbox, keys
        self._ranks, self._block_size = len(board), capacity.block_size
        self._limiter = Limiter(config, capacity, 2 * len(board) * wave_tokens)
        self._planner = SnapshotPlanner(config, capacity)
        self._forks = ForkMemory(config.fork_memory_blocks)
        self._herd = Herd(config, capacity)
        self._room = Room(board)
        self._queued: dict[int, _Queued] = {}
        self._probing: set[int] = set()
        self._line = Line(urgency)
        """Those whose hints are in, or were when their turn came."""
        self._open: dict[int, _Queued] = {}
        """Those being installed, in the order in which that began."""
        self._ended_waits: list[Hold] = []
        """Of the herd rule, since the last `advance`."""
        self._published = 0

    @property
    def busy(self) -> bool:
        return bool(self._probing) or any(not self._voted(queued) for queued in self._open.values())

    @property
    def installing(self) -> bool:
        return bool(self._open)

    # What the leader is told.

    def add(self, entry: Entry) -> None:
        request = entry.request
        entry.keys = self._keys.of(request)
        limit = reuse_limit(request.num_tokens, self._block_size)
        shared = min(limit, self._forks.remember(entry.keys) * self._block_size)
        queued = self._queued[request.id] = _Queued(entry, limit, shared)
        self._probe(queued)

    def on_hint(self, rank: int, hint: Hint) -> None:
        if hint.request not in self._probing:
            return
        queued = self._queued[hint.request]
        if queued.entry.attempt != hint.attempt:
            return
        queued.hints[rank] = hint
        if len(queued.hints) == self._ranks:
            self._probing.remove(hint.request)
            queued.entry.state = State.QUEUED
            queued.candidate = min(queued.limit, lowest(queued.hints)[1].endpoint)
            if not queued.refreshed:
                self._line.add(queued.entry)

    def on_vote(self, rank: int, vote: Vote) -> None:
        queued = self._open.get(vote.request)
        if queued is None or queued.attempt is None or queued.entry.attempt != vote.attempt:
            return
        queued.attempt.take(rank, vote)
        if not self._voted(queued):
            return
        if queued.attempt.refused:
            self._turn_away(queued, self._room.lack(queued.attempt))
        elif not queued.attempt.committed:
            self._lower(queued, queued.attempt)

    def drop(self, entry: Entry) -> None:
        request = entry.request.id
        if self._open.pop(request, None) is not None:
            self._outbox.release(request, entry.attempt)
            self._leave(entry)
        self._probing.discard(request)
        self._line.discard(request)
        self._forget(request)
        self._keys.forget(request)

    def published(self, entry: Entry) -> None:
        self._published += 1
        self._ended_waits += self._herd.published(entry)

    def stopping(self, entry: Entry) -> None:
        self._ended_waits += self._herd.leave(entry)

    def ended(self, entry: Entry) -> None:
        self._leave(entry)
        self._keys.forget(entry.request.id)
        self._room.stir()

    def room_may_have_come(self) -> None:
        self._room.stir()

    def advance(self, now: float) -> list[Entry]:
        self._ended_waits += self._herd.overdue(now)
        admitted = self._admit()
        self._end_waits(now)
        self._line.refresh(now)
        self._walk_line(now)
        return admitted

    def next_deadline(self) -> float | None:
        due = (self._herd.next_deadline(), self._line.next_change())
        return min((at for at in due if at is not None), default=None)

    def repeat(self) -> None:
        for queued in self._open.values():
            if not self._voted(queued):
                self._ask(queued)

    # The line.

    def _probe(self, queued: _Queued) -> None:
        entry = queued.entry
        entry.state = State.PROBING
        queued.hints, queued.must_probe = {}, False
        queued.probed_at, queued.stirred = self._published, self._room.stirred
        self._probing.add(entry.request.id)
        self._outbox.probe(Probe(entry.request.id, entry.attempt))

    def _refresh(self, queued: _Queued) -> None:
        queued.refreshed = True
        queued.entry.attempt += 1
        self._probe(queued)

    def _is_stale(self, queued: _Queued) -> bool:
        """Whether others may have published more of its prefix since it was probed."""
        published = queued.probed_at != self._published
        return published and not queued.refreshed and queued.shared > queued.candidate

    def _end_waits(self, now: float) -> None:
        ended, self._ended_waits = self._ended_waits, []
        for hold in ended:
            if self._herd.waits(hold):
                self._herd.let_go(hold.request)
                queued = self._queued[hold.request]
                queued.entry.held_s += now - hold.since
                self._line_up(queued)

    def _line_up(self, queued: _Queued) -> None:
        """Into the line again, with hints that are too old."""
        queued.entry.state = State.QUEUED
        queued.must_probe, queued.refreshed = True, False
        self._line.add(queued.entry)

    def _walk_line(self, now: float) -> None:
        """Installs what may be installed. Behind one whose hints are being refreshed nobody is, but those that come
        next have theirs refreshed too."""
        place, places = 0, self._limiter.places
        stopped = any(queued.alone for queued in self._open.values())
        while place < min(places, len(self._line)):
            queued = self._queued[self._line[place]]
            entry = queued.entry
            if queued.lack is not None:
                if not self._room.may_have_come(queued.lack):
                    return
                queued.lack = None
            if entry.state is State.PROBING:
                stopped = True
            elif queued.must_probe:
                self._refresh(queued)
                stopped = True
            elif not stopped and self._herd.hold(entry, queued.candidate, now):
                entry.state = State.HELD
                self._line.discard(entry.request.id)
                continue
            elif self._is_stale(queued):
                self._refresh(queued)
                stopped = True
            elif not stopped:
                if not self._limiter.allows(entry.request.num_tokens - queued.candidate):
                    return
                self._line.discard(entry.request.id)
                places -= 1
                self._begin(queued, now)
                stopped = queued.alone
                continue
            place += 1

    # Installing.

    def _begin(self, queued: _Queued, now: float) -> None:
        entry, candidate = queued.entry, queued.candidate
        rank, hint = lowest(queued.hints)
        entry.limited_by = limit_name(rank, hint.limited_by) if candidate < queued.limit else ""
        entry.hinted = entry.leased = candidate
        entry.state, entry.started_at = State.INSTALLING, now
        self._open[entry.request.id] = queued
        self._install(queued, candidate)

    def _install(self, queued: _Queued, candidate: int) -> None:
        queued.entry.attempt += 1
        self._put(queued, Attempt(queued.entry, candidate, queued.stirred))

    def _put(self, queued: _Queued, attempt: Attempt) -> None:
        """Asks the ranks for what the attempt asks, with the snapshots that suit it."""
        queued.attempt, entry = attempt, queued.entry
        request = entry.request
        forks = [blocks * self._block_size for blocks in self._forks.forks(entry.keys)]
        entry.snapshots = self._planner.plan(request.num_tokens, attempt.asked, forks)
        entry.endpoint = entry.computed = attempt.asked
        self._limiter.take(request.id, request.num_tokens - attempt.asked)
        self._ended_waits += self._herd.join(entry)
        self._ask(queued)

    def _ask(self, queued: _Queued) -> None:
        entry, attempt = queued.entry, queued.attempt
        assert attempt is not None, "only what is open is asked"
        question = (entry.request.id, entry.attempt, attempt.asked, entry.snapshots)
        if attempt.trimmed:
            self._outbox.trim(Trim(*question))
        else:
            self._outbox.install(Install(*question))

    def _voted(self, queued: _Queued) -> bool:
        return queued.attempt is not None and len(queued.attempt.votes) == self._ranks

    def _lower(self, queued: _Queued, attempt: Attempt) -> None:
        """The ranks have pinned prefixes of different lengths: all go down to the shortest."""
        entry = queued.entry
        rank, vote = lowest(attempt.votes)
        if entry.leased == entry.hinted:
            entry.leased = vote.endpoint
        entry.limited_by = limit_name(rank, vote.limited_by)
        if any(vote.committed for vote in attempt.votes.values()):
            self._outbox.release(entry.request.id, entry.attempt)
            self._install(queued, vote.endpoint)
        else:
            self._put(queued, Attempt(entry, vote.endpoint, queued.stirred, trimmed=True))

    def _turn_away(self, refused: _Queued, lack: Lack) -> None:
        """It waits for room, and nobody who began behind it may take that room away; whoever is more urgent may."""
        opened = list(self._open.values())
        for queued in opened[opened.index(refused) :]:
            request = queued.entry.request.id
            del self._open[request]
            self._outbox.release(request, queued.entry.attempt)
            self._leave(queued.entry)
            queued.attempt = None
            self._line_up(queued)
        refused.lack, refused.alone = lack, True

    def _admit(self) -> list[Entry]:
        admitted: list[Entry] = []
        for queued in list(self._open.values()):
            attempt, entry = queued.attempt, queued.entry
            if attempt is None or not self._voted(queued):
                break
            request = entry.request.id
            entry.state = State.RUNNING
            self._table.admit(entry)
            self._outbox.admit(request, entry.attempt, attempt.asked)
            self._forget(request)
            admitted.append(entry)
        return admitted

    def _leave(self, entry: Entry) -> None:
        self._limiter.give(entry.request.id)
        self._ended_waits += self._herd.leave(entry)

    def _forget(self, request: int) -> None:
        del self._queued[request]
        self._open.pop(request, None)
        self._herd.forget(request)
