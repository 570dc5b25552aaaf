"""Made-up traffic in which prompts share what those of real services share: whole conversations, and system prompts."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..admission.forks import ForkMemory
from ..admission.snapshot_plan import reuse_limit
from .full_cache import BLOCK, Keys

TURN, CONTINUATION, DOCUMENT = "turn", "continuation", "document"
SYSTEM_PROMPTS = 8
PAUSE_S = 60.0
"""Mean time from one turn of a conversation to the next; requests come once a second."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How many requests of a hundred are turns of conversations, short continuations of shared system prompts, and long
    documents that nobody asks about again."""

    name: str
    turns: int
    continuations: int
    documents: int


MIXES = (
    Mix("mixed", 50, 30, 20),
    Mix("conversations", 100, 0, 0),
    Mix("conversations and documents", 70, 0, 30),
    Mix("continuations and documents", 0, 70, 30),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`seen`: tokens of the longest prefix, in whole blocks, that an earlier prompt had and that may be reused.
    `forks`: where earlier prompts left this one, in tokens."""

    kind: str
    keys: Keys
    num_tokens: int
    seen: int = 0
    forks: tuple[int, ...] = ()


class _Text:
    """Tokens that grow, known by the keys of their full blocks."""

    def __init__(self, rng: random.Random, start: _Text | None = None) -> None:
        self._rng = rng
        self._length = start._length if start else 0
        self._keys = list(start._keys) if start else []

    def grow(self, tokens: int) -> _Text:
        self._length += tokens
        while len(self._keys) < self._length // BLOCK:
            self._keys.append(self._rng.randbytes(16))
        return self

    def prompt(self, kind: str) -> Prompt:
        return Prompt(kind, tuple(self._keys), self._length)


def trace(mix: Mix, requests: int, seed: int) -> list[Prompt]:
    """So many prompts in the order in which they come, the same for the same seed."""
    rng = random.Random(seed)
    system = [_Text(rng).grow(_about(rng, 6_000, 0.8)) for _ in range(SYSTEM_PROMPTS)]
    # A few of them are asked for much more often than the rest.
    popularity = [1 / (rank + 1) for rank in range(SYSTEM_PROMPTS)]

    def shared() -> _Text:
        return _Text(rng, rng.choices(system, popularity)[0])

    turns = _Turns(rng, shared, live=max(1.0, PAUSE_S * mix.turns / 100))
    prompts: list[Prompt] = []
    memory = ForkMemory(2**62)
    for now in range(requests):
        kind = rng.choices((TURN, CONTINUATION, DOCUMENT), (mix.turns, mix.continuations, mix.documents))[0]
        if kind == TURN:
            prompt = turns.next(now)
        elif kind == CONTINUATION:
            prompt = shared().grow(_about(rng, 200, 0.8)).prompt(kind)
        else:
            prompt = _Text(rng).grow(_about(rng, 48_000, 0.7)).prompt(kind)
        prompts.append(_placed(prompt, memory))
    return prompts


def _placed(prompt: Prompt, memory: ForkMemory) -> Prompt:
    shared = memory.remember(prompt.keys) * BLOCK
    forks = tuple(blocks * BLOCK for blocks in memory.forks(prompt.keys))
    return replace(prompt, seen=min(shared, reuse_limit(prompt.num_tokens, BLOCK)), forks=forks)


class _Turns:
    """Conversations under way, about `live` of them; each ends after eight turns on average, and another one begins."""

    def __init__(self, rng: random.Random, shared: Callable[[], _Text], live: float) -> None:
        self._rng, self._shared = rng, shared
        self._begun = 0
        self._waiting: list[tuple[float, int, _Text]] = []
        for _ in range(round(live)):
            self._begin(rng.uniform(0, PAUSE_S))

    def next(self, now: float) -> Prompt:
        """The turn that has waited the longest."""
        rng = self._rng
        due, number, text = heapq.heappop(self._waiting)
        prompt = text.grow(_about(rng, 800, 1.0)).prompt(TURN)
        if rng.random() < 1 / 8:
            self._begin(max(now, due) + rng.expovariate(1 / PAUSE_S))
        else:
            text.grow(_about(rng, 400, 0.8))
            heapq.heappush(self._waiting, (max(now, due) + rng.expovariate(1 / PAUSE_S), number, text))
        return prompt

    def _begin(self, due: float) -> None:
        heapq.heappush(self._waiting, (due, self._begun, self._shared()))
        self._begun += 1


def _about(rng: random.Random, median: int, spread: float) -> int:
    """Log-normal, as lengths of prompts are; at most 200K tokens."""
    return max(1, min(200_000, round(rng.lognormvariate(math.log(median), spread))))
