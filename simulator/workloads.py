"""The paper's workloads, for the simulator and for load against a live server alike: cold prompts, prompts of which 90%
are cached, and a mixture.

Of the four-stage runs (GLM-5.2, MiniMax-M2.7) the paper names the families but not the sizes, so they are not here."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    """Requests of one length; of warm ones 90% of the prompt was sent before."""

    num_tokens: int
    warm: bool

    def job(self, block_size: int) -> Job:
        """What is reused ends on a block boundary, of short prompts at the last one before the end."""
        reused = int(self.num_tokens * REUSED) if self.warm else 0
        return Job(self.num_tokens, reused - reused % block_size)

    def scaled(self, factor: float, block_size: int) -> Kind:
        tokens = int(self.num_tokens / factor)
        return replace(self, num_tokens=max(2 * block_size, tokens - tokens % block_size))


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
        """For small models: lengths divided by `factor`, down to whole blocks and to two of them at least. Raises
        `ValueError` unless the factor is 1 or more."""
        if not factor >= 1:
            raise ValueError(f"a workload is scaled down by 1 or more, not by {factor:g}")
        if factor == 1:
            return self
        kinds = tuple(kind.scaled(factor, block_size) for kind in self.kinds)
        return Workload(f"{self.name}/{factor:g}", kinds)


def workload_of(family: Family, input_tokens: int) -> Workload:
    """`input_tokens` says nothing of the mixture."""
    size = f"{input_tokens // 1_000}k"
    match family:
        case "cold":
            return Workload(f"cold-{size}", (Kind(input_tokens, warm=False),))
        case "reuse":
            return Workload(f"reuse-{size}", (Kind(input_tokens, warm=True),))
        case "mixed":
            warm, cold = Kind(WARM_TOKENS, warm=True), Kind(COLD_TOKENS, warm=False)
            return Workload("mixed", (warm, warm, warm, cold))


WORKLOADS = {
    workload.name.replace("65k", "64k"): replace(workload, name=workload.name.replace("65k", "64k"))
    for workload in (
        workload_of("cold", 65_536),
        workload_of("cold", 131_072),
        workload_of("cold", 262_144),
        workload_of("reuse", 131_072),
        workload_of("reuse", 262_144),
        workload_of("mixed", 0),
    )
}


def named(name: str) -> Workload:
    """Raises `ValueError`, with the names that there are."""
    if name not in WORKLOADS:
        raise ValueError(f"no workload is named {name!r}; there are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
