"""Whatever ranks may answer, and in whatever order things happen: every request ends, and the protocol is kept."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.effects import Admitted, Completed, Ended, StopPlanning
from wavepp.admission.leader import Leader
from wavepp.admission.messages import FirstToken, RoundUp
from wavepp.admission.request import Sampling

from .arbitrary import ArbitraryRank
from .scripted import BLOCK, BlockKeys, prompt

STEPS = 6_000


@dataclass
class Lane:
    position: int
    num_tokens: int
    last_wave: int = -1


class World:
    """A seeded scheduler: each step one thing that could happen next does. LOOP's planner is a list of lanes."""

    def __init__(self, seed: int, admission: str) -> None:
        self.random = rng = random.Random(seed)
        pages = [rng.randint(24, 60) for _ in range(rng.randint(1, 4))]
        self.config = AdmissionConfig.model_validate(
            {
                "admission": admission,
                "max_batch": rng.choice([1, 3, 8]),
                "max_queue": 12,
                "snapshot_interval": 2 * BLOCK,
                "max_snapshots_per_request": rng.randint(0, 5),
                "max_ttl_s": 200.0,
                "headroom": rng.choice([0.0, 1.0]),
                "herd_wait_s": rng.choice([0.0, 1000.0]),
                "herd_min_tokens": rng.choice([1, 3 * BLOCK]),
                "fork_memory_blocks": rng.choice([0, 40, 1000]),
            }
        )
        floor = rng.choice([0, 5])
        self.ranks = [ArbitraryRank(number, count, floor, rng) for number, count in enumerate(pages)]
        self.keys = BlockKeys(BLOCK)
        hellos = [rank.hello() for rank in self.ranks]
        self.leader = Leader(self.config, 1, hellos, BLOCK, 2 * BLOCK, self.keys)
        self.now = 0.0
        self.heard: deque[RoundUp] = deque(maxlen=30)
        self.commands: deque[Admitted | StopPlanning] = deque()
        self.lanes: dict[int, Lane] = {}
        self.last_waves: dict[int, int] = {}
        self.waves: list[tuple[int, int]] = []
        self.done: list[int] = []
        self.trunks = [[rng.randrange(1000) for _ in range(60)] for _ in range(3)]
        self.live: list[str] = []
        self.submitted: set[str] = set()
        self.admitted: dict[str, Admitted] = {}
        self.completed: dict[str, Completed] = {}
        self.ended: dict[str, Ended] = {}

    # Front end.

    def submit(self) -> None:
        rng, trunk = self.random, self.random.choice(self.trunks)
        tokens = trunk[: rng.randint(0, 60)] + [rng.randrange(1000) for _ in range(rng.choice([0, 1, 4, 9, 30]))]
        name = f"r{len(self.submitted)}"
        refusal = self.leader.submit(
            name, prompt(tokens or [1]), Sampling(), "", "", rng.choice([5.0, 100.0]), f"handle-{name}", self.now
        )
        if refusal is None:
            self.submitted.add(name)
            self.live.append(name)
        else:
            assert refusal.code in ("queue_full", "too_long")

    def cancel(self) -> None:
        if self.live:
            self.leader.cancel(self.random.choice(self.live[-8:]), self.now)

    def release(self) -> None:
        if self.completed:
            name = self.random.choice(list(self.completed)[-8:])
            assert self.leader.release_handle(f"handle-{name}", self.now) in ("", "expired_handle")

    # Ranks.

    def broadcast(self) -> bool:
        down = self.leader.next_round(self.now)
        for rank in self.ranks if down is not None else ():
            assert down is not None
            rank.rounds.append(down)
        return down is not None

    def hear(self, rank: ArbitraryRank) -> None:
        message = rank.outgoing.popleft()
        if isinstance(message, RoundUp):
            self.heard.append(message)
            self.leader.on_round_up(message, self.now)
            if self.random.random() < 0.2:
                self.leader.on_round_up(self.random.choice(self.heard), self.now)
            return
        request, end = self.waves[message.wave]
        self.done[message.wave] += 1
        if self.done[message.wave] == len(self.ranks) and self.random.random() < 0.5:
            self.leader.on_published(request, end, self.now)
            self.done[message.wave] += 1
        if rank is self.ranks[-1] and end == self.tokens_of(request):
            error = "no token" if self.random.random() < 0.05 else ""
            self.leader.on_first_token(FirstToken(request, 7, -0.5, error=error), self.now)
        if self.done[message.wave] == len(self.ranks):
            self.leader.on_published(request, end, self.now)

    def tokens_of(self, request: int) -> int:
        return next(known.num_tokens for known in self.admitted.values() if known.request.id == request)

    def run(self, rank: ArbitraryRank) -> None:
        wave = rank.run_wave()
        if rank is not self.ranks[-1]:
            self.ranks[rank.number + 1].waves.append(wave)

    # LOOP of rank 0.

    def command(self) -> None:
        match self.commands.popleft():
            case Admitted() as known:
                self.lanes[known.request.id] = Lane(known.endpoint, known.num_tokens)
            case StopPlanning(request):
                lane = self.lanes.pop(request, None)
                last = self.last_waves.get(request, -1) if lane is None else lane.last_wave
                self.leader.on_stopped(request, last, self.now)

    def plan(self) -> bool:
        if not self.lanes:
            return False
        request = self.random.choice(list(self.lanes))
        lane = self.lanes[request]
        end = min(lane.num_tokens, lane.position + BLOCK * self.random.randint(1, 8))
        self.ranks[0].waves.append((len(self.waves), request, end))
        lane.position, lane.last_wave = end, len(self.waves)
        self.waves.append((request, end))
        self.done.append(0)
        if end == lane.num_tokens:
            self.last_waves[request] = self.lanes.pop(request).last_wave
        return True

    def carry_out(self) -> None:
        for effect in self.leader.take_effects():
            match effect:
                case Admitted():
                    self.check_admission(effect)
                    self.commands.append(effect)
                case StopPlanning():
                    self.commands.append(effect)
                case Completed():
                    assert effect.name in self.admitted
                    self.end(effect.name)
                    self.completed[effect.name] = effect
                case Ended():
                    self.end(effect.name)
                    self.ended[effect.name] = effect
                case _:
                    pass
        assert self.leader.running <= self.config.max_batch

    def check_admission(self, effect: Admitted) -> None:
        name = effect.request.name
        assert name not in self.admitted and name in self.live
        self.admitted[name] = effect
        held = [rank.held[effect.request.id] for rank in self.ranks]
        assert all(each.committed for each in held)
        assert {(each.attempt, each.endpoint) for each in held} == {(effect.attempt, effect.endpoint)}
        assert len({each.snapshots for each in held}) == 1

    def end(self, name: str) -> None:
        assert name not in self.completed and name not in self.ended
        self.live.remove(name)

    # What happens next.

    def one_of(self, has: Callable[[ArbitraryRank], object], act: Callable[[ArbitraryRank], None]) -> None:
        ready = [rank for rank in self.ranks if has(rank)]
        if ready:
            act(self.random.choice(ready))

    def step(self) -> None:
        match self.random.choices(range(11), [4, 1, 2, 16, 24, 30, 12, 14, 10, 2, 2])[0]:
            case 0:
                self.submit()
            case 1:
                self.cancel()
            case 2:
                self.release()
            case 3:
                self.broadcast()
            case 4:
                self.one_of(lambda rank: rank.rounds, lambda rank: rank.apply())
            case 5:
                self.one_of(lambda rank: rank.outgoing, self.hear)
            case 6:
                if self.commands:
                    self.command()
            case 7:
                self.one_of(lambda rank: rank.waves, self.run)
            case 8:
                self.plan()
            case 9:
                self.now += self.random.random()
                self.leader.tick(self.now)
            case _:
                rank = self.random.choice(self.ranks)
                rank.give_back()
                rank.report()
        self.carry_out()

    def settle(self) -> None:
        """Everything that can happen does, time standing still."""
        moved = True
        while moved:
            moved = self.broadcast()
            for rank in self.ranks:
                rank.give_back()
                while rank.rounds:
                    rank.apply()
                while rank.waves:
                    self.run(rank)
                rank.report()
                while rank.outgoing:
                    self.hear(rank)
                    self.carry_out()
                    moved = True
            while self.commands:
                self.command()
                self.carry_out()
                moved = True
            moved = self.plan() or moved

    def drain(self) -> None:
        """No more submissions: everything in the queue comes to its end, and waits only for what is held."""
        self.settle()
        while self.leader.handles:
            assert not self.leader.queued or self.lacks_room(self.live[0]), "it waits for what it could have"
            for name in self.completed:
                self.leader.release_handle(f"handle-{name}", self.now)
            self.carry_out()
            self.settle()
        assert (self.leader.queued, self.leader.running) == (0, 0), "something waits for nothing"

    def lacks_room(self, name: str) -> bool:
        """Whether some rank cannot hold all of it: nothing runs, and only handles are left."""
        request = next(known for known in self.ranks[0].requests.values() if known.name == name)
        free = [rank.pages - sum(held.pages for held in rank.held.values()) for rank in self.ranks]
        return any(pages < -(-request.num_tokens // BLOCK) for pages in free)


@pytest.mark.parametrize("admission", ["lease", "lockstep"])
@pytest.mark.parametrize("seed", range(12))
def test_every_request_ends_and_nothing_is_left_behind(seed: int, admission: str) -> None:
    world = World(seed, admission)
    for _ in range(STEPS):
        world.step()
    world.drain()
    assert world.submitted == set(world.completed) | set(world.ended)
    assert len(world.completed) > 15 and len(world.ended) > 5
    assert all(rank.idle for rank in world.ranks)
    assert not world.keys.memo
