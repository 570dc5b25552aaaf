"""Rank 0's side of admission: takes submissions, holds the rounds, and says what every rank does."""

from collections.abc import Sequence
from itertools import count

from .cadence import Cadence
from .capacity import GroupCapacity
from .config import AdmissionConfig
from .effects import Admitted, Completed, Effect, Ended, Progressed, Refusal, Reuse, StopPlanning
from .errors import RoundError
from .handles import HandleInfo, HandleRegistry
from .lease_policy import LeasePolicy
from .line import Urgency, first_come_first_served
from .lockstep import Lockstep
from .messages import FirstToken, Gauges, Hello, RoundDown, RoundUp
from .outbox import Outbox
from .policy import AdmissionPolicy, Keys
from .rank_board import RankBoard
from .request import Request, Sampling
from .table import Entry, RequestTable, State

_CANCELLED = "the request was cancelled"


class Leader:
    """Messages and time go in, rounds (`next_round`) and effects (`take_effects`) come out; take both after every
    input. Owner: rank 0's WAVE thread. `now` is in seconds on any clock that does not step back.

    Raises RoundError, which ends the epoch, when a rank breaks the protocol.
    """

    def __init__(
        self,
        config: AdmissionConfig,
        epoch: int,
        ranks: Sequence[Hello],
        block_size: int,
        wave_tokens: int,
        keys: Keys,
        urgency: Urgency = first_come_first_served,
    ) -> None:
        """`wave_tokens` is the most tokens of one wave (M). `keys` may be shared with rank 0's participant where both
        run on the same thread; lockstep makes no use of it. `urgency`: who is admitted first."""
        if config.snapshot_interval % block_size:
            raise ValueError(
                f"snapshot_interval {config.snapshot_interval} is not a multiple of the block of {block_size} tokens"
            )
        if [hello.rank for hello in ranks] != list(range(len(ranks))):
            raise ValueError(f"ranks must be given in order, not as {[hello.rank for hello in ranks]}")
        leased = config.admission == "lease"
        self._config, self._epoch = config, epoch
        self._capacity = GroupCapacity(ranks, block_size)
        self._table = RequestTable()
        self._handles = HandleRegistry(config.max_tombstones)
        self._outbox = Outbox()
        self._cadence = Cadence(config.round_interval_s, config.busy_round_interval_s)
        self._board = RankBoard(
            len(ranks), epoch, config.rank_silence_s, config.wave_timeout_s, answers_in_waves=leased
        )
        shared = (config, self._capacity, self._table, self._outbox, self._board)
        self._policy: AdmissionPolicy = (
            LeasePolicy(*shared, wave_tokens, keys, urgency) if leased else Lockstep(*shared, urgency)
        )
        self._effects: list[Effect] = []
        self._ids = count(1)
        self._round = 0

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt, in tokens, that the cache of every rank can hold."""
        return self._capacity.max_prompt_tokens

    @property
    def queued(self) -> int:
        """Requests that are not admitted yet, those being admitted included."""
        return self._table.queued

    @property
    def running(self) -> int:
        """Requests admitted and not finished."""
        return self._table.running

    @property
    def installing(self) -> bool:
        """Whether a request is being admitted just now, and its tokens may be there to be planned very soon."""
        return self._policy.installing

    @property
    def handles(self) -> int:
        return len(self._handles)

    @property
    def gauges(self) -> tuple[Gauges, ...]:
        """What each rank last reported."""
        return self._board.gauges

    # Requests.

    def submit(
        self,
        name: str,
        tokens: bytes,
        sampling: Sampling,
        salt: str,
        adapter: str,
        ttl_s: float,
        handle: str,
        now: float,
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Refusal | None:
        """Queues a prompt (`tokens` int32 little-endian); None when it is taken. A name is taken until its request
        has ended, or, when it finished, until its handle has. `deadline` is on the clock of `now`."""
        request = Request(next(self._ids), name, tokens, handle, sampling, salt, adapter)
        if not tokens or len(tokens) % 4:
            return Refusal("internal", f"{len(tokens)} bytes are not a prompt of one or more four-byte tokens")
        too_long = self._capacity.refuses(request)
        if too_long:
            return Refusal("too_long", too_long)
        if self._table.named(name) is not None or self._handles.named(name) is not None:
            return Refusal("duplicate", f"there is a request named {name!r} already")
        if self._table.queued >= self._config.max_queue:
            return Refusal("queue_full", f"{self._table.queued} requests are waiting, which is the most that may")
        entry = Entry(request, min(ttl_s, self._config.max_ttl_s), now, priority, deadline)
        self._table.add(entry)
        self._outbox.announce(request)
        self._policy.add(entry)
        self._advance(now)
        return None

    def cancel(self, name: str, now: float) -> None:
        """The request is no longer wanted; when it has finished, its handle is released. Unknown names are ignored."""
        entry = self._table.named(name)
        if entry is None:
            handle = self._handles.named(name)
            if handle is not None:
                self._end_handle(handle)
        elif entry.state is State.RUNNING:
            entry.state = State.STOPPING
            self._policy.stopping(entry)
            self._effects.append(StopPlanning(entry.request.id))
        elif not entry.state.admitted:
            self._policy.drop(entry)
            self._outbox.cancel(entry.request)
            self._end(entry, "cancelled", _CANCELLED)
        self._advance(now)

    def on_stopped(self, request: int, after_wave: int, now: float) -> None:
        """LOOP plans no more of the request; wave `after_wave` was the last to name it (-1: none did)."""
        entry = self._table.get(request)
        if entry is None or entry.state is not State.STOPPING:
            return
        self._outbox.cancel(entry.request, after_wave)
        self._end(entry, "cancelled", _CANCELLED)
        self._advance(now)

    def on_published(self, request: int, computed: int, now: float) -> None:
        """Every rank has run the chunks up to `computed` tokens of the request, and published what is whole of them. To
        be told of finished and of cancelled requests too: what the last of it leaves may be room for others."""
        entry = self._table.get(request)
        if entry is None:
            self._policy.room_may_have_come()
        elif entry.state.admitted and computed > entry.computed:
            entry.computed = computed
            self._policy.published(entry)
            if entry.state is State.RUNNING:
                self._effects.append(Progressed(entry.request.name, "prefill", computed, entry.request.num_tokens))
        self._advance(now)

    def on_first_token(self, token: FirstToken, now: float) -> None:
        """The last rank has sampled the request's first token: it is finished, and its handle begins to live."""
        entry = self._table.get(token.request)
        if entry is None:  # Cancelled: the decision that told every rank covers a finished request too.
            return
        if not entry.state.admitted:
            raise RoundError(f"a first token for request {token.request}, which is {entry.state}")
        if entry.state is State.STOPPING:
            self._outbox.end_handle(entry.request.handle)
            self._end(entry, "cancelled", _CANCELLED)
        elif token.error:
            self._outbox.end_handle(entry.request.handle)
            self._end(entry, "internal", token.error)
        else:
            self._complete(entry, token, now)
        self._advance(now)

    # Handles. Errors are `unknown_handle`, `expired_handle` (released ones included) and `not_finished`.

    def handle_info(self, handle: str, now: float) -> HandleInfo | str:
        """The live handle, or an error code."""
        self.tick(now)
        return self._handles.find(handle) or self._handle_error(handle)

    def renew_handle(self, handle: str, ttl_s: float, now: float) -> str:
        """Lets it live for `ttl_s` seconds from now at least; an error code, or empty."""
        self.tick(now)
        if self._handles.find(handle) is None:
            return self._handle_error(handle)
        self._handles.renew(handle, now + min(ttl_s, self._config.max_ttl_s))
        return ""

    def release_handle(self, handle: str, now: float) -> str:
        """Its holder is done with it; an error code, or empty."""
        self.tick(now)
        if self._handles.find(handle) is None:
            return self._handle_error(handle)
        self._end_handle(handle)
        self._advance(now)
        return ""

    # Rounds.

    def on_round_up(self, up: RoundUp, now: float) -> None:
        """One rank's answer; of one rank in the order they were sent, of several in any."""
        self._board.hear(up, now)
        for hint in up.hints:
            self._policy.on_hint(up.rank, hint)
        for vote in up.votes:
            self._policy.on_vote(up.rank, vote)
        self._advance(now)

    def next_round(self, now: float) -> RoundDown | None:
        """The round to broadcast, rank 0 included; None when there is nothing to say, to repeat or to hear."""
        repeat = not self._outbox
        if repeat:
            due = self._round_due()
            if due is None or now < due:
                return None
            self._policy.repeat()
        self._round += 1
        self._cadence.sent(now, repeat=repeat)
        self._board.sent(self._round, now)
        return self._outbox.take(self._epoch, self._round)

    def reset(self, now: float) -> int:
        """Every rank drops what is reusable and referenced by nothing; returns the round that tells them."""
        self._outbox.reset()
        # What is not there any more need not be held beside the rest: that may be the room that somebody lacked.
        self._policy.room_may_have_come()
        self._advance(now)
        return self._round + 1

    def request_report(self) -> int:
        """Has every rank report afresh; returns the round that asks them."""
        self._outbox.report()
        return self._round + 1

    def all_answered(self, number: int) -> bool:
        """Whether every rank has applied round `number`, and `gauges` is as new as that."""
        return self._board.all_answered(number)

    # Time.

    def tick(self, now: float) -> None:
        """Ends the handles and the waits whose time is up."""
        expired = self._handles.expire(now)
        for handle in expired:
            self._outbox.end_handle(handle)
        if expired:
            self._policy.room_may_have_come()
        due = self._policy.next_deadline()
        if expired or (due is not None and due <= now):
            self._advance(now)

    def next_deadline(self) -> float | None:
        """When to call `tick`, `silent_ranks` and `next_round` again, if nothing happens before."""
        if self._outbox:
            return self._cadence.sent_at
        due = (
            self._round_due(),
            self._handles.next_expiry(),
            self._policy.next_deadline(),
            self._board.silence_at(),
        )
        return min((at for at in due if at is not None), default=None)

    def silent_ranks(self, now: float) -> tuple[int, ...]:
        """Ranks that have owed an answer, or the end of a wave, for longer than the config allows."""
        return self._board.silent(now)

    def heard(self, rank: int, now: float, *, in_wave: bool = False) -> None:
        """A sign of life that is not an answer: the rank has begun a wave, or finished one."""
        self._board.alive(rank, now, in_wave)

    def take_effects(self) -> list[Effect]:
        """What to carry out, in order; each is handed out once."""
        effects, self._effects = self._effects, []
        return effects

    def _advance(self, now: float) -> None:
        for entry in self._policy.advance(now):
            request = entry.request
            entry.admitted_at, entry.computed = now, entry.endpoint
            self._effects.append(
                Admitted(
                    request,
                    entry.attempt,
                    entry.endpoint,
                    request.num_tokens,
                    entry.priority,
                    entry.deadline,
                    entry.submitted_at,
                )
            )
            self._effects.append(Progressed(request.name, "admitted", entry.endpoint, request.num_tokens))

    def _complete(self, entry: Entry, token: FirstToken, now: float) -> None:
        request = entry.request
        self._handles.add(HandleInfo(request.handle, request.name, request.num_tokens, token.token, now + entry.ttl_s))
        self._forget(entry)
        self._effects.append(
            Completed(
                name=request.name,
                handle=request.handle,
                token=token,
                prompt_tokens=request.num_tokens,
                cached_tokens=entry.endpoint,
                queue_s=entry.started_at - entry.submitted_at,
                admit_s=entry.admitted_at - entry.started_at,
                prefill_s=now - entry.admitted_at,
                ttl_s=entry.ttl_s,
                reuse=Reuse(entry.hinted, entry.leased, entry.endpoint, entry.limited_by, entry.held_s),
                deadline_met=None if entry.deadline is None else now <= entry.deadline,
            )
        )

    def _end(self, entry: Entry, code: str, message: str) -> None:
        self._forget(entry)
        self._effects.append(Ended(entry.request.name, code, message))

    def _forget(self, entry: Entry) -> None:
        self._table.remove(entry)
        if entry.state.admitted:
            self._policy.ended(entry)

    def _end_handle(self, handle: str) -> None:
        self._handles.end(handle)
        self._outbox.end_handle(handle)
        self._policy.room_may_have_come()

    def _handle_error(self, handle: str) -> str:
        if self._table.holds_handle(handle):
            return "not_finished"
        return "expired_handle" if self._handles.ended(handle) else "unknown_handle"

    def _round_due(self) -> float | None:
        return self._cadence.due(busy=self._policy.busy, owing=self._board.owing)
