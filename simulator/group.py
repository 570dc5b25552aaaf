"""A whole stage group in one process, in which the caller chooses what happens next."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from ..admission.capacity import GroupCapacity
from ..admission.config import AdmissionConfig
from ..admission.effects import Admitted, Completed, Effect, Ended, Refusal
from ..admission.leader import Leader
from ..admission.messages import RoundDown, RoundUp
from ..admission.prompt_keys import PromptKeys
from ..admission.request import Sampling
from ..admission.snapshot_plan import SnapshotPlanner
from ..cache.answers import Pull
from ..scheduler.config import SchedulerConfig
from ..scheduler.planner import Planner
from ..scheduler.urgency import Ageing
from .leading import Leading
from .loop import Wave
from .rank import KEYS, Rank, RankSpec, encode, heard_from
from .unowned import Unowned
from .witness import Witness, entry_of

EPOCH = 1
Event = tuple[str, int, Callable[[], object]]
"""What may happen, on which rank, and how to let it."""


def prompt(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


class Group:
    """A real leader, planner, participants, claims and stage caches. The links between them are queues, and so is what
    WAVE and LOOP of a rank have for each other: `events` lists what may happen next, in any order.

    `witness` checks what must always hold, as it happens.
    """

    def __init__(
        self,
        specs: Sequence[RankSpec],
        block_size: int,
        config: AdmissionConfig,
        scheduler: SchedulerConfig,
        *,
        batch: int = 64,
        seed: int = 0,
        unsafe: type[Unowned] | None = None,
    ) -> None:
        """`batch`: at most so many pages and slots are brought from the host in one step between waves. `unsafe` ranks
        own nothing of what they agree to."""
        self.block_size, self.config, self.now = block_size, config, 0.0
        leased = config.admission == "lease"
        chance = random.Random(seed)
        self.ranks = [
            (unsafe or Rank)(
                number,
                len(specs),
                spec,
                block_size,
                leased=leased,
                planner=None if number else Planner(scheduler, block_size, len(specs)),
                batch=batch,
                chance=chance,
                send=self._sender(number + 1),
                epoch=EPOCH,
            )
            for number, spec in enumerate(specs)
        ]
        hellos = [rank.hello() for rank in self.ranks]
        keys = self.ranks[0].keys if leased else PromptKeys(KEYS, block_size)
        urgency = Ageing(scheduler.ageing_s).urgency
        self.leader = Leader(config, EPOCH, hellos, block_size, scheduler.max_wave_tokens, keys, urgency)
        self.capacity = GroupCapacity(hellos, block_size)
        self.keys = keys
        self.witness = Witness(self.leader, self.ranks, config, scheduler.ageing_s, lambda: self.now)
        self.prompts: dict[str, bytes] = {}
        self.sent: list[RoundDown] = []
        self.keep_sent = False
        """Whether `sent` is to be filled with every round."""
        self._leading = Leading(self.leader, self.ranks[0].loop, len(specs), self._see, self.witness.look)

    # Front end.

    def submit(
        self,
        name: str,
        tokens: bytes,
        ttl_s: float | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Refusal | None:
        """`deadline` is on the clock of `now`."""
        life, handle = self.config.default_ttl_s if ttl_s is None else ttl_s, f"handle-{name}"
        refusal = self.leader.submit(
            name, tokens, Sampling(), "", "", life, handle, self.now, priority=priority, deadline=deadline
        )
        if refusal is None:
            self.prompts[name] = tokens
            self.witness.taken(name, priority, deadline)
        self.carry_out()
        return refusal

    def cancel(self, name: str) -> None:
        self.witness.cancelled(name)
        self.leader.cancel(name, self.now)
        self.carry_out()

    def release(self, name: str) -> str:
        """Its handle; an error code, or empty."""
        error = self.leader.release_handle(f"handle-{name}", self.now)
        self.carry_out()
        return error

    def renew(self, name: str, ttl_s: float) -> str:
        error = self.leader.renew_handle(f"handle-{name}", ttl_s, self.now)
        self.carry_out()
        return error

    def open_pull(self, number: int, name: str) -> Pull:
        """Reads all of it. Raises what the cache raises."""
        pull = self.ranks[number].cache.open_pull(f"handle-{name}")
        self.check_pull(number, name, pull)
        return pull

    def close_pull(self, number: int, name: str, pull: Pull) -> None:
        """What was read must still be there."""
        self.check_pull(number, name, pull)
        rank = self.ranks[number]
        assert rank.cache.close_pull(pull.id)
        rank.grew()

    def check_pull(self, number: int, name: str, pull: Pull) -> None:
        assert pull.num_tokens == len(self.prompts[name]) // 4
        self.ranks[number].storage.check_state(pull.pages, pull.slot, self.prompts[name])

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.leader.tick(self.now)
        self.carry_out()

    # What may happen by itself.

    def events(self) -> Iterator[Event]:
        """All of it but for a round, of which only `broadcast` knows whether it is due."""
        for number, rank in enumerate(self.ranks):
            loop = rank.loop
            if rank.down:
                yield "receive", number, rank.receive
            if rank.up:
                yield "hear", number, lambda number=number: self.hear(number)
            if loop.mails:
                yield "post", number, (rank.post if number else self._post_first)
            for kind, act in loop.acts():
                yield kind, number, act
            if loop.can_plan and not loop.busy:
                yield "plan", number, lambda loop=loop: loop.plan(self.now)

    def broadcast(self) -> bool:
        """Sends the next round, if one is due."""
        down = self.leader.next_round(self.now)
        if down is None:
            return False
        self.witness.sent(down)
        if self.keep_sent:
            self.sent.append(down)
        frame = encode(down)
        for rank in self.ranks[1:]:
            rank.down.append(frame)
        self._take(self.ranks[0].apply(down))
        return True

    def hear(self, number: int, again: int | None = None) -> None:
        """The next frame of the rank's up link; or, with `again`, an answer that came before."""
        rank = self.ranks[number]
        if again is not None:
            self._take(heard_from(rank.went_up[again]))
            return
        frame = rank.up.popleft()
        message = heard_from(frame)
        if isinstance(message, RoundUp):
            rank.went_up.append(frame)
        self._take(message)

    def settle(self, steps: int = 100_000) -> None:
        """Lets everything happen that can, each in its turn, time standing still."""
        while steps:
            for _, _, act in list(self.events()):
                act()
                steps -= 1
                break
            else:
                if not self.broadcast():
                    return
        raise AssertionError("it does not come to rest")

    def carry_out(self) -> None:
        self._leading.carry_out()

    def lacks_room(self, name: str) -> bool:
        """Whether a request that waits would be turned away if it were tried again now, with nothing else going on."""
        entry = entry_of(self.leader, name)
        assert entry is not None
        tokens, forks = self.prompts[name], ()
        if entry.keys:
            forks = [blocks * self.block_size for blocks in self.leader._policy._forks.forks(entry.keys)]  # pyright: ignore
        limit = (len(tokens) // 4 - 1) // self.block_size * self.block_size
        keys = KEYS.block_keys(tokens, self.block_size)
        endpoint = min(rank.cache.probe(keys, limit).endpoint for rank in self.ranks)
        while True:
            snapshots = SnapshotPlanner(self.config, self.capacity).plan(len(tokens) // 4, endpoint, forks)
            reached = [rank.trial(_TRIAL, tokens, endpoint, snapshots) for rank in self.ranks]
            for rank in self.ranks:
                rank.cache.withdraw(_TRIAL)
            if None in reached:
                return True
            lowest = min(reach for reach in reached if reach is not None)
            if lowest == endpoint:
                return False
            endpoint = lowest

    def _sender(self, to: int) -> Callable[[Wave], None]:
        def send(wave: Wave) -> None:
            if to < len(self.ranks):
                self.ranks[to].loop.arrive(wave)

        return send

    def _post_first(self) -> None:
        """What LOOP of rank 0 has left for the leader."""
        rank = self.ranks[0]
        self._take(rank.loop.mails.popleft())
        self._take(rank.report())

    def _take(self, message: object) -> None:
        if isinstance(message, RoundUp):
            self.witness.heard(message)
        self._leading.take(message, self.now)

    def _see(self, effect: Effect) -> None:
        match effect:
            case Admitted():
                self.witness.admits(effect)
            case Completed():
                self.witness.completes(effect)
            case Ended():
                self.witness.ends(effect)
            case _:
                pass


_TRIAL = 2_000_000_000
