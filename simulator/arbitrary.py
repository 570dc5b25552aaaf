"""Sizes, settings and prompts, drawn at random."""

from __future__ import annotations

import random

from ..admission.config import AdmissionConfig
from ..admission.limiter import floors
from ..scheduler.config import SchedulerConfig
from .group import Group
from .rank import RankSpec
from .unowned import Unowned

BLOCK = 4
_KINDS = [(True, False), (False, True), (True, True), (True, True), (False, False)]


def some_group(pick: random.Random, ranks: int, admission: str) -> Group:
    """Small, so that everything runs short."""
    scheduler = SchedulerConfig(
        policy=pick.choice(["static", "static", "mpu"]),
        max_wave_tokens=(most := BLOCK * pick.randint(1, 8)),
        min_wave_tokens=BLOCK * pick.randint(1, most // BLOCK),
        ageing_s=pick.choice([0.3, 2.0, 10.0]),
        lone_wave_wait=pick.choice([None, True]),
    )
    config = AdmissionConfig.model_validate(
        {
            "admission": "lockstep" if admission == "lockstep" else "lease",
            "max_batch": pick.randint(1, 6),
            "max_queue": pick.randint(3, 10),
            "headroom": pick.choice([0.0, 0.2, 1.0]),
            "herd_wait_s": pick.choice([0.0, 2.0, 10.0]),
            "herd_min_tokens": pick.choice([1, 2 * BLOCK]),
            "fork_memory_blocks": pick.choice([0, 40, 10_000]),
            "snapshot_interval": BLOCK * pick.choice([2, 4]),
            "max_snapshots_per_request": pick.choice([0, 1, 2, 3, 5, 5]),
            "default_ttl_s": pick.choice([2.0, 6.0]),
            "max_ttl_s": 20.0,
            "round_interval_s": 4.0,
            "rank_silence_s": 3600.0,
        }
    )
    kinds = [pick.choice(_KINDS) for _ in range(ranks)] if pick.random() < 0.5 else [pick.choice(_KINDS[:3])] * ranks
    if not any(attention or recurrent for attention, recurrent in kinds):
        kinds[0] = (True, True)
    host = pick.random() < 0.7
    specs = [_some_spec(pick, kind, config, 2 * ranks * most, host=host) for kind in kinds]
    group = Group(
        specs,
        BLOCK,
        config,
        scheduler,
        batch=pick.choice([1, 2, 64]),
        seed=pick.randrange(2**30),
        unsafe=Unowned if admission == "unowned" else None,
    )
    for rank in group.ranks:
        rank.interrupted = pick.choice([0, 0.1, 0.5])
    return group


def _some_spec(
    pick: random.Random, kind: tuple[bool, bool], config: AdmissionConfig, fill: int, *, host: bool
) -> RankSpec:
    pages, slots = pick.randint(8, 40), pick.randint(2, 16)
    return RankSpec(
        *kind,
        num_pages=pages,
        num_slots=slots,
        host_pages=pick.choice([0, pick.randint(1, 10), 40]) if host else 0,
        host_slots=pick.choice([0, pick.randint(1, 4), 12]) if host else 0,
        floors=floors(config, pages, slots, BLOCK, fill),
        retention=pick.choice(["lru", "cost"]),
    )


class Wishes:
    """Priorities and deadlines: of many requests, of some, or of none."""

    def __init__(self, pick: random.Random) -> None:
        self._random = pick
        self._urgent, self._late = pick.choice([0, 0.2, 0.8]), pick.choice([0, 0.2, 0.8])

    def next(self, now: float) -> tuple[int, float | None]:
        """A priority and a deadline."""
        pick = self._random
        priority = pick.randint(-2, 2) if pick.random() < self._urgent else 0
        deadline = now + pick.choice([-0.1, 0.0, 0.1, 1.0, 5.0, 30.0]) if pick.random() < self._late else None
        return priority, deadline


class Prompts:
    """Prompts that share beginnings with one another, and now and then one that is tiny, as long as can be, or the same
    as one before."""

    def __init__(self, pick: random.Random, group: Group) -> None:
        self._random, self._group = pick, group
        self.trunks = [self._tokens(pick.randint(8, 48)) for _ in range(3)]

    def herd(self) -> list[list[int]]:
        """One, or some that come at the same time and share most."""
        tokens = self.next()
        if self._random.random() < 0.9:
            return [tokens]
        return [tokens + self._tokens(self._random.choice([0, 0, 3])) for _ in range(self._random.randint(2, 4))]

    def next(self) -> list[int]:
        pick = self._random
        kind = pick.random()
        if kind < 0.06:
            return self._tokens(pick.randint(1, 3))
        if kind < 0.12:
            return self._tokens(min(self._group.leader.max_prompt_tokens, 160) + pick.choice([0, 0, -1, 1]))
        if kind < 0.2 and self._group.prompts:
            tokens = self._group.prompts[pick.choice(list(self._group.prompts)[-6:])]
            return [int.from_bytes(tokens[at : at + 4], "little") for at in range(0, len(tokens), 4)]
        if kind < 0.25:
            self.trunks[pick.randrange(len(self.trunks))] = self._tokens(pick.randint(8, 48))
        trunk = pick.choice(self.trunks)
        tokens = trunk[: pick.randint(0, len(trunk))] if pick.random() < 0.5 else trunk
        return (tokens + self._tokens(pick.choice([0, 1, 3, 4, 9]))) or [1]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(1000) for _ in range(count)]
