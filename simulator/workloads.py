"""The paper's workloads: cold prompts, prompts of which 90% are cached, and a mixture."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Family = Literal["cold", "reuse", "mixed"]
REUSED = 0.9
WARM_TOKENS, COLD_TOKENS = 131_072, 262_144
"""Of the mixture: three warm requests and one cold, over and over."""


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt of which the first `endpoint` tokens are reused."""

    num_tokens: int
    endpoint: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: `concurrency` clients, each of which sends its next request when the last one has completed.
    `input_tokens` is 0 for the mixture."""

    family: Family
    input_tokens: int
    concurrency: int

    def __str__(self) -> str:
        size = f" {self.input_tokens // 1_024}K" if self.input_tokens else ""
        return f"{self.family}{size} c={self.concurrency}"

    def jobs(self, count: int, block_size: int, shuffle: int | None = None) -> list[Job]:
        """The requests in the order in which they are sent: of the mixture every fourth is cold, or the same in an
        order drawn by the seed `shuffle`. What is reused ends on a block boundary."""
        warm = Job(WARM_TOKENS, _aligned(WARM_TOKENS, block_size))
        match self.family:
            case "cold":
                kinds: Sequence[Job] = [Job(self.input_tokens, 0)]
            case "reuse":
                kinds = [Job(self.input_tokens, _aligned(self.input_tokens, block_size))]
            case "mixed":
                kinds = [warm, warm, warm, Job(COLD_TOKENS, 0)]
        jobs = [kinds[number % len(kinds)] for number in range(count)]
        if shuffle is not None:
            random.Random(shuffle).shuffle(jobs)
        return jobs


def _aligned(num_tokens: int, block_size: int) -> int:
    reused = int(num_tokens * REUSED)
    return reused - reused % block_size
