"""The paper's straightforward admission: one request at a time, two walks on every rank, all ranks in step."""

from dataclasses import dataclass, field

from .attempt import Attempt, Lack, Room, limit_name, lowest
from .capacity import GroupCapacity
from .config import AdmissionConfig
from .line import Line, Urgency
from .messages import Hint, Install, Probe, Vote
from .outbox import Outbox
from .rank_board import RankBoard
from .snapshot_plan import SnapshotPlanner, reuse_limit
from .table import Entry, RequestTable, State


@dataclass(slots=True)
class _Walk:
    """The first walk of a try at the head of the queue. `cap` bounds the candidate from above, and only falls; `cap_by`
    names the window that set it."""

    entry: Entry
    cap: int
    cap_by: str
    stirred: int
    hints: dict[int, Hint] = field(default_factory=dict)


class Lockstep:
    """Walk once to probe, take the minimum as the candidate, walk again to pin it and to reserve the suffix: admitted
    when every rank has done both at the candidate. Nothing passes the head of the queue, also while it waits for room,
    but a request that is more urgent. Owner: the leader's thread."""

    def __init__(
        self,
        config: AdmissionConfig,
        capacity: GroupCapacity,
        table: RequestTable,
        outbox: Outbox,
        board: RankBoard,
        urgency: Urgency,
    ) -> None:
        self._config, self._capacity = config, capacity
        self._table, self._outbox, self._board = table, outbox, board
        self._planner = SnapshotPlanner(config, capacity)
        self._room = Room(board)
        self._line = Line(urgency)
        self._open: _Walk | Attempt | None = None
        self._lack: tuple[Entry, Lack] | None = None
        """Who was turned away last, and why."""

    @property
    def busy(self) -> bool:
        """Never: a rank answers between waves, and repeats would only pile up in front of it."""
        return False

    @property
    def installing(self) -> bool:
        return self._open is not None

    def add(self, entry: Entry) -> None:
        """It is probed when its turn comes."""
        self._line.add(entry)

    def on_hint(self, rank: int, hint: Hint) -> None:
        walk = self._open
        if isinstance(walk, _Walk) and (hint.request, hint.attempt) == (walk.entry.request.id, walk.entry.attempt):
            walk.hints[rank] = hint

    def on_vote(self, rank: int, vote: Vote) -> None:
        attempt = self._open
        if isinstance(attempt, Attempt) and _answers(vote, attempt.entry):
            attempt.take(rank, vote)

    def drop(self, entry: Entry) -> None:
        self._line.discard(entry.request.id)
        if self._open is not None and self._open.entry is entry:
            if isinstance(self._open, Attempt):
                self._outbox.release(entry.request.id, entry.attempt)
            self._open = None

    def published(self, entry: Entry) -> None:
        """Whoever comes next finds it when it is probed."""

    def stopping(self, entry: Entry) -> None:
        """Nobody counts on what it publishes."""

    def ended(self, entry: Entry) -> None:
        self._room.stir()

    def room_may_have_come(self) -> None:
        self._room.stir()

    def advance(self, now: float) -> list[Entry]:
        admitted: list[Entry] = []
        match self._open:
            case _Walk() as walk if len(walk.hints) == len(self._board):
                self._install(walk)
            case Attempt() as attempt if len(attempt.votes) == len(self._board):
                self._open = None
                if self._decide(attempt):
                    admitted.append(attempt.entry)
            case _:
                pass
        self._line.refresh(now)
        head = self._line.first
        if self._open is None and head is not None and self._may_begin(head):
            head.started_at = now
            self._probe(head, reuse_limit(head.request.num_tokens, self._capacity.block_size), "")
        return admitted

    def next_deadline(self) -> float | None:
        return self._line.next_change()

    def repeat(self) -> None:
        """Nothing: see `busy`."""

    def _may_begin(self, head: Entry) -> bool:
        if self._table.running >= self._config.max_batch:
            return False
        if self._lack is not None and self._lack[0] is head:
            if not self._room.may_have_come(self._lack[1]):
                return False
            self._lack = None
        return True

    def _probe(self, entry: Entry, cap: int, cap_by: str) -> None:
        entry.state = State.PROBING
        entry.attempt += 1
        self._open = _Walk(entry, cap, cap_by, self._room.stirred)
        self._outbox.probe(Probe(entry.request.id, entry.attempt))

    def _install(self, walk: _Walk) -> None:
        entry, request = walk.entry, walk.entry.request
        rank, hint = lowest(walk.hints)
        candidate = min(walk.cap, hint.endpoint)
        entry.limited_by = limit_name(rank, hint.limited_by) if hint.endpoint < walk.cap else walk.cap_by
        if not walk.cap_by:
            entry.hinted = entry.leased = candidate
        entry.state = State.INSTALLING
        entry.snapshots = self._planner.plan(request.num_tokens, candidate)
        self._open = Attempt(entry, candidate, walk.stirred)
        self._outbox.install(Install(request.id, entry.attempt, candidate, entry.snapshots))

    def _decide(self, attempt: Attempt) -> bool:
        """All votes are in; True when the request is admitted."""
        entry, request = attempt.entry, attempt.entry.request.id
        if attempt.committed:
            entry.state, entry.endpoint = State.RUNNING, attempt.asked
            self._table.admit(entry)
            self._line.discard(request)
            self._outbox.admit(request, entry.attempt, attempt.asked)
            return True
        self._outbox.release(request, entry.attempt)
        if attempt.refused:
            entry.state, self._lack = State.QUEUED, (entry, self._room.lack(attempt))
        else:
            rank, vote = lowest(attempt.votes)
            if entry.leased == entry.hinted:  # What the ranks pinned at the first try.
                entry.leased = vote.endpoint
            self._probe(entry, vote.endpoint, limit_name(rank, vote.limited_by))
        return False


def _answers(vote: Vote, entry: Entry) -> bool:
    return (vote.request, vote.attempt) == (entry.request.id, entry.attempt)
