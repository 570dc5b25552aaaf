"""How well reusable state survives as requests arrive: a pipeline's cache beside a tensor-parallel group's.

The paper does not state its traffic, only rates, so this is ours: conversations of 32K tokens come up at random, each
asks again after a while (the logarithm of which is normal, with a median of two minutes), every time with the
same first 90% and a new rest, four times on average; requests arrive as a Poisson process. A good hit reuses at least
80% of the prefix that the conversation has sent before, as the paper has it.

What tells the two apart is room: eight tensor-parallel ranks each keep every token's latent, eight stages one eighth of
it; the recurrent heads are divided in both.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..admission.config import AdmissionConfig
from ..scheduler.config import SchedulerConfig
from .clients import Clients
from .cluster import ClusterSpec
from .k3 import INTERVAL, Setting
from .memory import GB300_BYTES, GB300_HOST_BYTES, KIMI_K3
from .paper_k3 import SCHEDULER, STAGES, TENSOR_PARALLEL

RATES = (0.500, 0.625, 0.750, 0.875, 1.000)
PAPER = {0.500: (82, 100), 0.625: (76, 92), 0.750: (73, 91), 0.875: (80, 88), 1.000: (83, 97)}
"""Good hits in percent: TensorRT-LLM TP8, WavePP."""
TOKENS, PREFIX = 32_768, 29_440
GOOD = 0.8
TURNS = 4.0
GAP_S, GAP_SPREAD = 120.0, 1.2


@dataclass(frozen=True, slots=True)
class Turn:
    at: float
    conversation: int
    first: bool


@dataclass(frozen=True, slots=True)
class Retained:
    """`good_hits`: of the requests that continue a conversation."""

    parallelism: str
    requests_per_s: float
    good_hits: float
    continued: int
    p50_s: float
    paper_pct: int


def turns(requests_per_s: float, requests: int, seed: int) -> list[Turn]:
    """In the order of arrival. Conversations begin at such a rate that all their turns together have the wanted one."""
    chance = random.Random(seed)
    due: list[tuple[float, int, int]] = []
    begun, begins = 0, 0.0
    found: list[Turn] = []
    while len(found) < requests:
        while not due or begins <= due[0][0]:
            heapq.heappush(due, (begins, begun, 0))
            begun += 1
            begins += chance.expovariate(requests_per_s / TURNS)
        at, conversation, turn = heapq.heappop(due)
        found.append(Turn(at, conversation, turn == 0))
        if chance.random() < 1 - 1 / TURNS:
            gap = chance.lognormvariate(0.0, GAP_SPREAD) * GAP_S
            heapq.heappush(due, (at + gap, conversation, turn + 1))
    return found


def measure(parallelism: str, requests_per_s: float, requests: int, block_size: int, seed: int = 1) -> Retained:
    """The last four fifths of the requests count: the cache begins empty."""
    plan = turns(requests_per_s, requests, seed)
    clients = Clients(_pipeline(block_size) if parallelism == "pipeline" else _tensor(block_size))
    clients.timed(zip((turn.at for turn in plan), _prompts(plan), strict=True))
    clients.come_to_rest()
    counted = [(turn, seen) for turn, seen in zip(plan, clients.by_sending(), strict=True)][requests // 5 :]
    continued = [seen for turn, seen in counted if not turn.first]
    good = sum(seen.cached_tokens >= GOOD * PREFIX for seen in continued)
    took = sorted(seen.seconds for _, seen in counted)
    paper = PAPER[requests_per_s][parallelism == "pipeline"]
    return Retained(parallelism, requests_per_s, good / len(continued), len(continued), took[len(took) // 2], paper)


def _prompts(plan: list[Turn]) -> Iterator[bytes]:
    chance = random.Random("suffixes")
    for turn in plan:
        prefix = random.Random(f"conversation {turn.conversation}").randbytes(4 * PREFIX)
        yield prefix + chance.randbytes(4 * (TOKENS - PREFIX))


def _pipeline(block_size: int) -> ClusterSpec:
    return Setting(block_size=block_size).cluster("mpu")


def _tensor(block_size: int) -> ClusterSpec:
    """One group that computes as one stage, and whose every rank holds what this one does."""
    return ClusterSpec(
        num_stages=1,
        block_size=block_size,
        profile=TENSOR_PARALLEL,
        memory=KIMI_K3.tensor_parallel_memory(STAGES, GB300_BYTES, GB300_HOST_BYTES, block_size, INTERVAL),
        scheduler=SchedulerConfig.model_validate({"policy": "static", "stage_profile": TENSOR_PARALLEL, **SCHEDULER}),
        admission=AdmissionConfig(snapshot_interval=INTERVAL, wave_timeout_s=3_600, rank_silence_s=3_600),
    )
