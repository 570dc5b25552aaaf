"""The paper's straightforward admission: one request at a time, two walks on every rank, all ranks in step."""

from dataclasses import dataclass, field

from .capacity import GroupCapacity
from .config import AdmissionConfig
from .errors import RoundError
from .messages import Hint, Install, Probe, Verdict, Vote
from .outbox import Outbox
from .rank_board import RankBoard
from .snapshot_plan import plan_snapshots, reuse_limit
from .table import Entry, RequestTable, State


@dataclass(slots=True)
class _Attempt:
    """One try at the head of the queue. `cap` bounds the candidate from above, and only falls; `cap_by` names the
    window that set it."""

    entry: Entry
    cap: int
    cap_by: str
    candidate: int = 0
    hints: dict[int, Hint] = field(default_factory=dict)
    votes: dict[int, Vote] = field(default_factory=dict)


class Lockstep:
    """Walk once to probe, take the minimum as the candidate, walk again to pin it and to reserve the suffix: admitted
    when every rank has done both at the candidate. First come, first served: nothing passes the head of the queue,
    also while it waits for room. Owner: the leader's thread."""

    def __init__(
        self, config: AdmissionConfig, capacity: GroupCapacity, table: RequestTable, outbox: Outbox, board: RankBoard
    ) -> None:
        self._config, self._capacity = config, capacity
        self._table, self._outbox, self._board = table, outbox, board
        self._attempt: _Attempt | None = None
        self._lacking: dict[int, int] = {}
        """The ranks that lacked room for the head, and how often their capacity had grown by then."""
        self._stirred = False

    def on_hint(self, rank: int, hint: Hint) -> None:
        attempt = self._open(hint.request, hint.attempt, State.PROBING)
        if attempt is not None:
            attempt.hints[rank] = hint

    def on_vote(self, rank: int, vote: Vote) -> None:
        attempt = self._open(vote.request, vote.attempt, State.INSTALLING)
        if attempt is None:
            return
        settled = vote.committed or vote.reason
        if vote.endpoint > attempt.candidate or (not settled and vote.endpoint == attempt.candidate):
            raise RoundError(f"rank {rank} votes {vote} on a candidate of {attempt.candidate} tokens")
        attempt.votes[rank] = vote

    def drop(self, entry: Entry) -> None:
        if entry is self._table.head:
            self._lacking = {}
        if self._attempt is not None and self._attempt.entry is entry:
            if entry.state is State.INSTALLING:
                self._outbox.verdict(Verdict(entry.request.id, entry.attempt, 0, False))
            self._attempt = None

    def room_may_have_come(self) -> None:
        self._lacking = {}
        self._stirred = True

    def advance(self, now: float) -> list[Entry]:
        admitted: list[Entry] = []
        attempt = self._attempt
        if attempt is not None and len(attempt.hints) == len(self._board) and attempt.entry.state is State.PROBING:
            self._install(attempt)
        elif attempt is not None and len(attempt.votes) == len(self._board):
            self._attempt = None
            if self._decide(attempt):
                admitted.append(attempt.entry)
        if self._attempt is None and self._may_begin():
            head = self._table.head
            if head is not None:
                head.started_at = now
                self._stirred = False
                self._probe(head, reuse_limit(head.request.num_tokens, self._capacity.block_size), "")
        return admitted

    def _open(self, request: int, attempt: int, state: State) -> _Attempt | None:
        current = self._attempt
        if current is None or current.entry.state is not state:
            return None
        return current if (current.entry.request.id, current.entry.attempt) == (request, attempt) else None

    def _may_begin(self) -> bool:
        if self._table.running >= self._config.max_batch:
            return False
        # Only a rank that lacked room can make a difference; the others gave back what this attempt held, no more.
        if any(self._board.released(rank) <= then for rank, then in self._lacking.items()):
            return False
        self._lacking = {}
        return True

    def _probe(self, entry: Entry, cap: int, cap_by: str) -> None:
        entry.state = State.PROBING
        entry.attempt += 1
        self._attempt = _Attempt(entry, cap, cap_by)
        self._outbox.probe(Probe(entry.request.id, entry.attempt))

    def _install(self, attempt: _Attempt) -> None:
        entry, request = attempt.entry, attempt.entry.request
        rank, hint = min(attempt.hints.items(), key=lambda item: (item[1].endpoint, item[0]))
        attempt.candidate = min(attempt.cap, hint.endpoint)
        if hint.endpoint < attempt.cap:
            entry.limited_by = limit_name(rank, hint.limited_by)
        else:
            entry.limited_by = attempt.cap_by
        entry.state = State.INSTALLING
        self._outbox.install(
            Install(
                request.id, entry.attempt, attempt.candidate, self._snapshots(request.num_tokens, attempt.candidate)
            )
        )

    def _snapshots(self, num_tokens: int, endpoint: int) -> tuple[int, ...]:
        most = self._capacity.snapshots_beyond(endpoint, self._config.max_snapshots_per_request)
        return plan_snapshots(endpoint, num_tokens, self._config.snapshot_interval, self._capacity.block_size, most)

    def _decide(self, attempt: _Attempt) -> bool:
        """All votes are in; True when the request is admitted."""
        entry, votes = attempt.entry, attempt.votes
        if all(vote.committed and vote.endpoint == attempt.candidate for vote in votes.values()):
            entry.state, entry.endpoint = State.RUNNING, attempt.candidate
            self._table.admit(entry)
            self._outbox.verdict(Verdict(entry.request.id, entry.attempt, attempt.candidate, True))
            return True
        self._outbox.verdict(Verdict(entry.request.id, entry.attempt, 0, False))
        self._lacking = {rank: vote.released for rank, vote in votes.items() if not vote.committed and vote.reason}
        if not self._lacking:
            rank, lowest = min(votes.items(), key=lambda item: (item[1].endpoint, item[0]))
            self._probe(entry, lowest.endpoint, limit_name(rank, lowest.limited_by))
            return False
        entry.state = State.QUEUED
        if self._stirred:
            self._lacking = {}
        return False


def limit_name(rank: int, window: str) -> str:
    return f"rank {rank}: {window}" if window else f"rank {rank}"
