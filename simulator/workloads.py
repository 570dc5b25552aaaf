"""The paper's workloads, for the simulator and for load against a live server alike: cold prompts, prompts of which 90%
are cached, and a mixture.

Of the four-stage runs (GLM-5.2, MiniMax-M2.7) the paper names the families but not their sizes: they are not here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Family = Literal["cold", "reuse", "mixed"]
Tokens = npt.NDArray[np.int32]
REUSED = 0.9
WARM_TOKENS, COLD_TOKENS = 131_072, 262_144
"""Of the mixture: three warm requests and one cold, over and over."""


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt of which the first `endpoint` tokens are reused."""

    num_tokens: int
    endpoint: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one length; of warm ones 90% was sent before."""

    num_tokens: int
    warm: bool

    def job(self, block_size: int) -> Job:
        """What is reused ends on a block boundary."""
        return Job(self.num_tokens, _aligned(int(self.num_tokens * REUSED), block_size) if self.warm else 0)

    def scaled(self, factor: float, block_size: int) -> Kind:
        return Kind(max(2 * block_size, _aligned(int(self.num_tokens / factor), block_size)), self.warm)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of the `kinds` in turn, over and over."""

    name: str
    kinds: tuple[Kind, ...]

    def jobs(self, count: int, block_size: int, shuffle: int | None = None) -> list[Job]:
        """The requests in the order in which they are sent: of the mixture every fourth is cold, or the same in an
        order drawn by the seed `shuffle`."""
        jobs = [self.kinds[number % len(self.kinds)].job(block_size) for number in range(count)]
        if shuffle is not None:
            random.Random(shuffle).shuffle(jobs)
        return jobs

    def scaled(self, factor: float, block_size: int = 64) -> Workload:
        """For small models: lengths divided by `factor`, down to whole blocks, of which two are left at least. Raises
        `ValueError` unless the factor is 1 or more."""
        if not factor >= 1:
            raise ValueError(f"a workload is scaled down by 1 or more, not by {factor:g}")
        if factor == 1:
            return self
        return Workload(f"{self.name}/{factor:g}", tuple(kind.scaled(factor, block_size) for kind in self.kinds))


def kinds_of(family: Family, input_tokens: int) -> tuple[Kind, ...]:
    """`input_tokens` says nothing of the mixture."""
    match family:
        case "cold":
            return (Kind(input_tokens, warm=False),)
        case "reuse":
            return (Kind(input_tokens, warm=True),)
        case "mixed":
            return (*3 * (Kind(WARM_TOKENS, warm=True),), Kind(COLD_TOKENS, warm=False))


CELLS: dict[str, tuple[Family, int]] = {
    "cold-64k": ("cold", 65_536),
    "cold-131k": ("cold", 131_072),
    "cold-262k": ("cold", 262_144),
    "reuse-131k": ("reuse", 131_072),
    "reuse-262k": ("reuse", 262_144),
    "mixed": ("mixed", 0),
}
"""By the workload's name: what a `Cell` of it begins with."""


def named(name: str) -> Workload:
    """Raises `ValueError`, with the names that there are."""
    if name not in CELLS:
        raise ValueError(f"no workload is named {name!r}; there are {', '.join(CELLS)}")
    return Workload(name, kinds_of(*CELLS[name]))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: `concurrency` clients, each of which sends its next request when the last one has completed.
    `input_tokens` is 0 for the mixture."""

    family: Family
    input_tokens: int
    concurrency: int

    def __str__(self) -> str:
        size = f" {self.input_tokens // 1_000}K" if self.input_tokens else ""
        return f"{self.family}{size} c={self.concurrency}"

    def jobs(self, count: int, block_size: int, shuffle: int | None = None) -> list[Job]:
        """As `Workload.jobs`."""
        return Workload(self.family, kinds_of(self.family, self.input_tokens)).jobs(count, block_size, shuffle)


class Prompts:
    """The token ids of jobs, in their order: int32, each made when it is asked for and always the same.

    There are `prefixes` distinct prefixes, or as many as there are warm jobs if those are fewer, and the warm jobs take
    them in turn; everything after a prefix, and every cold prompt, is a prompt's own. The paper does not say how many
    there were; one a client is what we take, so that no two requests in flight share one."""

    def __init__(self, jobs: Sequence[Job], seed: int, vocab_size: int, prefixes: int = 1) -> None:
        """Token ids are below `vocab_size`. Raises `ValueError` where a number is too small."""
        if seed < 0 or vocab_size < 2 or prefixes < 1:
            raise ValueError("a seed is 0 or more, a vocabulary 2 or more, and prefixes are 1 or more")
        self._jobs, self._seed, self._vocab_size = list(jobs), seed, vocab_size
        warm = [number for number, job in enumerate(self._jobs) if job.endpoint]
        self._prefix_of = {number: place % prefixes for place, number in enumerate(warm)}
        longest = max((job.endpoint for job in self._jobs), default=0)
        self._prefixes = [self._draw(longest, "prefix", place) for place in range(min(prefixes, len(warm)))]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Tokens]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Tokens:
        job = self._jobs[number]
        own = self._draw(job.num_tokens - job.endpoint, "own", number)
        return np.concatenate([self._prefixes[self._prefix_of[number]][: job.endpoint], own]) if job.endpoint else own

    @property
    def num_prefixes(self) -> int:
        return len(self._prefixes)

    def warm_up(self) -> Iterator[Tokens]:
        """Prompts to be sent, and to complete, before all others: each prefix and one token more, since a prompt leaves
        its last snapshot at its last block boundary before its last token, which is then exactly where the prefix ends.
        Of prefixes that are reused to different lengths there is one for each length, the shortest first."""
        wanted = sorted({(self._jobs[number].endpoint, place) for number, place in self._prefix_of.items()})
        for endpoint, place in wanted:
            yield np.concatenate([self._prefixes[place][:endpoint], self._draw(1, "end", place)])

    def _draw(self, count: int, what: Literal["prefix", "own", "end"], number: int) -> Tokens:
        generator = np.random.default_rng([self._seed, ("prefix", "own", "end").index(what), number])
        return generator.integers(0, self._vocab_size, count, dtype=np.int32)


def prompts(jobs: Sequence[Job], seed: int, vocab_size: int, prefixes: int = 1) -> Prompts:
    """The token ids of each job, and what must be sent first: see `Prompts`."""
    return Prompts(jobs, seed, vocab_size, prefixes)


def _aligned(num_tokens: int, block_size: int) -> int:
    return num_tokens - num_tokens % block_size
