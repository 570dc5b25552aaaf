"""Whatever the order in which messages, waves, cancellations and expiries happen, the group stays consistent."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.cache.errors import CacheError
from wavepp.simulator.group import Group, prompt
from wavepp.simulator.rank import RankSpec

BLOCK = 4
STEPS = 8_000
KINDS = [(True, False), (False, True), (True, True), (False, False)]


class Chaos:
    """A seeded scheduler: each step one thing that could happen next does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        kinds = [self.random.choice(KINDS) for _ in range(self.random.randint(2, 4))]
        if not any(attention or recurrent for attention, recurrent in kinds):
            kinds[0] = (True, True)
        self.group = Group(
            [RankSpec(*kind, self.random.randint(10, 40), self.random.randint(3, 12)) for kind in kinds],
            BLOCK,
            AdmissionConfig(
                max_batch=self.random.randint(1, 6),
                max_queue=8,
                snapshot_interval=2 * BLOCK,
                max_snapshots_per_request=self.random.randint(0, 5),
                default_ttl_s=6.0,
                max_ttl_s=20.0,
            ),
        )
        self.trunks = [self.tokens(40) for _ in range(3)]
        self.names = 0
        self.refused: dict[str, int] = {}
        self.pulls: list[tuple[int, int]] = []

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1000) for _ in range(count)]

    def submit(self) -> None:
        trunk = self.random.choice(self.trunks)
        tokens = trunk[: self.random.randint(0, len(trunk))] + self.tokens(self.random.choice([0, 1, 3, 4, 9]))
        if self.random.random() < 0.02:
            tokens = self.tokens(200)
        name = f"r{self.names}"
        self.names += 1
        refusal = self.group.submit(name, prompt(tokens or [1]))
        if refusal is not None:
            self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1

    def cancel(self) -> None:
        group = self.group
        known = [*group.waiting, *(name for name in group.admitted if name not in group.ended)]
        if known:
            # The newest are where something is still going on.
            group.cancel(self.random.choice(known[-6:]))

    def release(self) -> None:
        if self.group.completed:
            name = self.random.choice(list(self.group.completed)[-8:])
            assert self.group.release(f"handle-{name}") in ("", "expired_handle")

    def renew(self) -> None:
        if self.group.completed:
            name = self.random.choice(list(self.group.completed)[-8:])
            assert self.group.leader.renew_handle(f"handle-{name}", 5.0, self.group.now) in ("", "expired_handle")

    def pull(self) -> None:
        if self.pulls and self.random.random() < 0.6:
            number, pull = self.pulls.pop(self.random.randrange(len(self.pulls)))
            assert self.group.ranks[number].cache.close_pull(pull)
            self.dirty(number)
        elif self.group.completed:
            name = self.random.choice(list(self.group.completed)[-4:])
            number = self.random.randrange(len(self.group.ranks))
            try:
                pull = self.group.ranks[number].check_handle(f"handle-{name}", self.group.prompts[name])
            except CacheError:
                return
            self.pulls.append((number, pull))

    def round(self) -> None:
        if self.group.broadcast() and self.random.random() < 0.5:
            self.some_rank(lambda number: len(self.group.ranks[number].rounds), self.apply)

    def apply(self, number: int) -> None:
        self.group.ranks[number].apply()

    def some_rank(self, has: Callable[[int], int], act: Callable[[int], None]) -> None:
        ready = [number for number in range(len(self.group.ranks)) if has(number)]
        if ready:
            number = self.random.choice(ready)
            act(number)
            self.dirty(number)

    def dirty(self, number: int) -> None:
        self.group.ranks[number].cache.check()

    def step(self) -> None:
        group, ranks = self.group, self.group.ranks
        match self.random.choices(range(13), [3, 2, 3, 1, 3, 14, 22, 26, 8, 16, 10, 3, 14])[0]:
            case 0:
                self.submit()
            case 1:
                self.cancel()
            case 2:
                self.release()
            case 3:
                self.renew()
            case 4:
                self.pull()
            case 5:
                self.round()
            case 6:
                self.some_rank(lambda n: len(ranks[n].rounds), self.apply)
            case 7:
                self.some_rank(lambda n: len(ranks[n].answers), group.hear)
            case 8:
                if group.commands:
                    group.take_command()
            case 9:
                self.some_rank(lambda n: len(ranks[n].waves), group.forward)
            case 10:
                group.plan(BLOCK * self.random.randint(1, 8))
                self.random.choice(ranks).report()
            case 11:
                if self.random.random() < 0.2:
                    group.leader.reset(group.now)
                group.pass_time(self.random.random())
            case 12:
                self.some_rank(lambda n: len(ranks[n].unsettled), lambda n: ranks[n].settle())

    def drain(self) -> None:
        """No more submissions: everything in the queue must come to its end, and wait only for what is held."""
        group = self.group
        for number, pull in self.pulls:
            group.ranks[number].cache.close_pull(pull)
        group.settle()
        while group.leader.handles:
            if group.leader.queued:
                assert group.head_lacks_room(), "the head of the queue waits for what it could have"
            deadline = group.leader.next_deadline()
            assert deadline is not None and deadline > group.now
            group.pass_time(deadline - group.now)
            group.settle()
        assert (group.leader.queued, group.leader.running) == (0, 0), "something waits for nothing"


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_events_leaves_every_rank_agreed_and_nothing_behind(seed: int) -> None:
    chaos = Chaos(seed)
    print(f"seed {seed}: {[rank.spec for rank in chaos.group.ranks]}, {chaos.group.config}")
    for _ in range(STEPS):
        chaos.step()
    chaos.drain()
    group = chaos.group
    assert set(group.prompts) == set(group.completed) | set(group.ended)
    assert {ended.code for ended in group.ended.values()} <= {"cancelled"}
    assert len(group.completed) > 15 and len(group.ended) > 5
    for rank in group.ranks:
        rank.cache.check()
        gauges = rank.cache.gauges()
        assert (gauges.leases, gauges.handles, gauges.pulls) == (0, 0, 0)
        assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
        assert (rank.participant.known, rank.participant.sealed) == (0, 0)
    number = group.leader.reset(group.now)
    group.settle()
    assert group.leader.all_answered(number)
    for gauges in group.leader.gauges:
        assert (gauges.pages_free, gauges.slots_free) == (gauges.pages_total, gauges.slots_total)
