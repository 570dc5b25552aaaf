"""A whole stage group in one process, in which the caller chooses what happens next, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..admission.capacity import GroupCapacity
from ..admission.config import AdmissionConfig
from ..admission.effects import Admitted, Completed, Ended, Progressed, Refusal, StopPlanning
from ..admission.leader import Leader
from ..admission.messages import FirstToken, Install, RoundDown, RoundUp
from ..admission.request import Sampling
from ..admission.snapshot_plan import plan_snapshots, reuse_limit
from ..cache.answers import NoRoom, Short
from .rank import Piece, Rank, RankSpec, wire


@dataclass
class Lane:
    admitted: Admitted
    position: int
    last_wave: int = -1


def prompt(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


class Group:
    """A real leader, participants and stage caches; LOOP's planner is a list of lanes, and the wires are queues.

    What must always hold is checked as it happens: admissions come first come, first served, once each, and every rank
    then holds the same attempt, endpoint and snapshots.
    """

    def __init__(self, specs: Sequence[RankSpec], block_size: int, config: AdmissionConfig) -> None:
        self.block_size, self.config = block_size, config
        self.ranks = [Rank(number, spec, block_size) for number, spec in enumerate(specs)]
        self.leader = Leader(config, 1, [rank.hello() for rank in self.ranks], block_size)
        self.now = 0.0
        self.commands: deque[Admitted | StopPlanning] = deque()
        self.lanes: dict[int, Lane] = {}
        self.in_flight: deque[int] = deque()
        self.sent: list[RoundDown] = []
        self.prompts: dict[str, bytes] = {}
        self.waiting: list[str] = []
        """Names submitted and neither admitted nor ended, in order."""
        self.admitted: dict[str, Admitted] = {}
        self.completed: dict[str, Completed] = {}
        self.ended: dict[str, Ended] = {}
        self.progress: list[Progressed] = []
        self._last_wave: dict[int, int] = {}
        self._waves = 0

    @property
    def installs(self) -> list[Install]:
        return [install for down in self.sent for install in down.installs]

    # Front end.

    def submit(self, name: str, tokens: bytes, ttl_s: float | None = None) -> Refusal | None:
        life = self.config.default_ttl_s if ttl_s is None else ttl_s
        refusal = self.leader.submit(name, tokens, Sampling(), "", "", life, f"handle-{name}", self.now)
        if refusal is None:
            self.prompts[name] = tokens
            self.waiting.append(name)
        self.carry_out()
        return refusal

    def cancel(self, name: str) -> None:
        self.leader.cancel(name, self.now)
        self.carry_out()

    def release(self, handle: str) -> str:
        error = self.leader.release_handle(handle, self.now)
        self.carry_out()
        return error

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.leader.tick(self.now)
        self.carry_out()

    # Rounds.

    def broadcast(self) -> bool:
        down = self.leader.next_round(self.now)
        if down is None:
            return False
        received = wire(down)
        assert received == down
        self.sent.append(down)
        for rank in self.ranks:
            rank.rounds.append(down)
        return True

    def hear(self, number: int) -> None:
        up = wire(self.ranks[number].answers.popleft())
        assert isinstance(up, RoundUp)
        self.leader.on_round_up(up, self.now)
        self.carry_out()

    # LOOP of rank 0.

    def take_command(self) -> None:
        command = self.commands.popleft()
        match command:
            case Admitted():
                self.lanes[command.request.id] = Lane(command, command.endpoint)
            case StopPlanning():
                lane = self.lanes.pop(command.request, None)
                last = lane.last_wave if lane is not None else self._last_wave.get(command.request, -1)
                self.leader.on_stopped(command.request, last, self.now)
                self.carry_out()

    def plan(self, budget: int) -> bool:
        """One wave of at most `budget` tokens (a multiple of the block), if there is room in the ring."""
        if not self.lanes or len(self.in_flight) >= 2 * len(self.ranks):
            return False
        spans: list[Piece] = []
        for request, lane in list(self.lanes.items()):
            if budget <= 0:
                break
            known = lane.admitted
            end = min(lane.position + budget, known.num_tokens)
            last = end == known.num_tokens
            spans.append(Piece(request, known.attempt, known.endpoint, lane.position, end, last))
            budget -= end - lane.position
            lane.position, lane.last_wave = end, self._waves
            if last:
                del self.lanes[request]
                self._last_wave[request] = self._waves
        self.ranks[0].waves.append((self._waves, tuple(spans)))
        self.in_flight.append(self._waves)
        self._waves += 1
        return True

    # Any rank.

    def forward(self, number: int) -> None:
        wave, spans = self.ranks[number].forward()
        if number + 1 < len(self.ranks):
            self.ranks[number + 1].waves.append((wave, spans))
            return
        assert self.in_flight.popleft() == wave
        for span in spans:
            self.leader.on_progress(span.request, span.end)
            if span.last:
                self.leader.on_first_token(FirstToken(span.request, 7, -0.5), self.now)
        self.carry_out()

    def carry_out(self) -> None:
        for effect in self.leader.take_effects():
            match effect:
                case Admitted():
                    self._check_admission(effect)
                    self.commands.append(effect)
                case StopPlanning():
                    self.commands.append(effect)
                case Completed():
                    assert effect.name in self.admitted
                    self._end(effect.name)
                    self.completed[effect.name] = effect
                case Ended():
                    self._end(effect.name)
                    self.ended[effect.name] = effect
                case Progressed():
                    self.progress.append(effect)
        assert self.leader.running <= self.config.max_batch
        assert self.leader.queued == len(self.waiting)

    def settle(self, budget: int = 16) -> None:
        """Lets everything happen that can, time standing still."""
        moved = True
        while moved:
            moved = self.broadcast()
            for number, rank in enumerate(self.ranks):
                for _ in range(len(rank.rounds)):
                    rank.apply()
                    moved = True
                for _ in range(len(rank.waves)):
                    self.forward(number)
                for _ in range(len(rank.unsettled)):
                    rank.settle()
                    moved = True
                rank.report()
                for _ in range(len(rank.answers)):
                    self.hear(number)
                    moved = True
            while self.commands:
                self.take_command()
                moved = True
            moved = self.plan(budget) or moved

    def head_lacks_room(self) -> bool:
        """Whether the head of the queue would be turned away if it were tried again now."""
        tokens = self.prompts[self.waiting[0]]
        num_tokens = len(tokens) // 4
        capacity = GroupCapacity([rank.hello() for rank in self.ranks], self.block_size)
        endpoint = reuse_limit(num_tokens, self.block_size)
        while True:
            most = capacity.snapshots_beyond(endpoint, self.config.max_snapshots_per_request)
            snapshots = plan_snapshots(endpoint, num_tokens, self.config.snapshot_interval, self.block_size, most)
            answers = [rank.try_claim(tokens, endpoint, snapshots) for rank in self.ranks]
            short = [answer.endpoint for answer in answers if isinstance(answer, Short)]
            if not short:
                return any(isinstance(answer, NoRoom) for answer in answers)
            endpoint = min(short)

    def _check_admission(self, effect: Admitted) -> None:
        name = effect.request.name
        assert name not in self.admitted, "admitted twice"
        assert self.waiting[0] == name, "passed the head of the queue"
        self.waiting.pop(0)
        self.admitted[name] = effect
        sequences = [rank.cache.sequence(effect.request.id) for rank in self.ranks]
        assert {(s.attempt, s.endpoint) for s in sequences} == {(effect.attempt, effect.endpoint)}
        assert len({s.planned for s in sequences}) == 1

    def _end(self, name: str) -> None:
        assert name not in self.completed and name not in self.ended, "ended twice"
        if name in self.waiting:
            self.waiting.remove(name)
