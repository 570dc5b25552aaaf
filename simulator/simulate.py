"""`wavepp simulate`: a workload on a simulated cluster, in virtual time.

The cluster's leader, participants, caches and planner are those that serve; a stage only takes the time that its
profile says. The cache is sized like Kimi K3's on GB300 unless pages and slots are given.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Self

from pydantic import Field, field_validator, model_validator
from tqdm import tqdm

from ..admission.config import AdmissionConfig
from ..cache.errors import CapacityError
from ..cache.eviction import Retention
from ..engine.flags import ConfigError, add_config_flags, config_from_args
from ..scheduler.config import SchedulerConfig, check_block_alignment
from ..scheduler.cost_model import StageProfile
from ..scheduler.profiles import Profile
from .clients import Clients
from .closed_loop import Outcome
from .cluster import ClusterSpec, NoRoomError, RefusedError
from .costs import PlaneCosts
from .k3 import VOCABULARY, warm_up
from .memory import GB300_BYTES, GB300_HOST_BYTES, KIMI_K3, StageMemory
from .paper_k3 import SCHEDULER
from .traffic_config import TrafficConfig
from .workloads import named, prompts

VARIABLES = "WAVEPP_SIMULATE_"


class SimulateConfig(TrafficConfig):
    """What is simulated, and what is sent to it."""

    profile: Profile | None = Field(
        default=None, description="what stages take: a name, a JSON object or a file of it; stage_profile if unset"
    )
    pp: int = Field(default=8, ge=1, le=64, description="pipeline stages")
    slow_stage: str | None = Field(
        default=None, description="RANK:FACTOR, a stage that takes so much longer than the planner is told"
    )
    jitter: float = Field(default=0.0, ge=0, le=2, description="standard deviation of the logarithm of stage times")
    block_size: int = Field(default=64, ge=1, le=1_024, description="tokens in a block (B)")
    num_pages: int | None = Field(default=None, ge=2, description="attention pages of a stage")
    num_slots: int | None = Field(
        default=None, ge=3, description="recurrent slots of a stage; 0 pages or slots need both"
    )
    host_pages: int = Field(default=0, ge=0, description="pages of a stage's host tier, where num_pages is given")
    host_slots: int = Field(default=0, ge=0, description="snapshots of a stage's host tier, where num_slots is given")
    snapshot_retention: Retention = Field(default="lru", description="which snapshots go first")

    @field_validator("slow_stage")
    @classmethod
    def _is_rank_and_factor(cls, text: str | None) -> str | None:
        if text is not None:
            rank, _, factor = text.partition(":")
            if not rank.isdecimal() or not factor or not 0.1 <= float(factor) <= 100:
                raise ValueError("must be a rank and a factor from 0.1 to 100, as 3:1.2")
        return text

    @model_validator(mode="after")
    def _slow_stage_is_there(self) -> Self:
        if self.slow_stage is not None and int(self.slow_stage.partition(":")[0]) >= self.pp:
            raise ValueError(f"slow_stage names rank {self.slow_stage.partition(':')[0]} of {self.pp} stages")
        return self

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.num_pages is None) != (self.num_slots is None):
            raise ValueError("num_pages and num_slots are given together or not at all")
        return self


def add_simulate_flags(parser: argparse.ArgumentParser) -> None:
    for config in (SimulateConfig, SchedulerConfig, AdmissionConfig):
        add_config_flags(parser, config, variables=VARIABLES)
    add_config_flags(parser, PlaneCosts, prefix="cost_of_", variables=VARIABLES)
    parser.add_argument("-c", dest="concurrency", metavar="N", help="short for --concurrency")
    parser.add_argument(
        "--as-in-paper", action="store_true", help="mpu as the paper's K3 runs had it: M or M/2 for one pipeline fill"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_simulate(args: argparse.Namespace) -> int:
    """Raises ConfigError."""
    config = config_from_args(SimulateConfig, args, variables=VARIABLES)
    spec = cluster_of(config, args)
    workload = named(config.workload).scaled(config.scale, config.block_size)
    jobs = workload.jobs(config.count, config.block_size, config.shuffle)
    sent = prompts(jobs, config.seed, vocab_size=VOCABULARY, prefixes=config.num_prefixes)
    clients = Clients(spec)
    began = time.monotonic()
    try:
        warm_up(clients, sent)
        with tqdm(sent, unit="request", disable=None) as shown:
            tokens = (prompt.tobytes() for prompt in shown)
            if config.rate is None:
                outcome = clients.closed_loop(tokens, config.concurrency)
            else:
                outcome = clients.timed(zip(poisson(config.rate, config.seed), tokens, strict=False))
        clients.come_to_rest()
    except (RefusedError, NoRoomError) as error:
        raise ConfigError(f"the cluster cannot serve {workload.name}: {error}") from None
    found = {
        **asdict(outcome),
        "cached": clients.cached_tokens / sum(job.num_tokens for job in jobs),
        "simulated_in_s": time.monotonic() - began,
    }
    if args.json:
        settings = {"simulate": config, "scheduler": spec.scheduler, "admission": spec.admission}
        dumped = {name: value.model_dump(mode="json") for name, value in settings.items()}
        print(json.dumps({"workload": workload.name, **found, "profile": spec.profile.model_dump(), **dumped}))
    else:
        print(_told(config, spec, workload.name, outcome, found))
    return 0


def cluster_of(config: SimulateConfig, args: argparse.Namespace) -> ClusterSpec:
    """Raises ConfigError."""
    paper = dict(SCHEDULER) if args.as_in_paper else {}
    scheduler = config_from_args(SchedulerConfig, args, variables=VARIABLES, defaults=paper)
    profile = config.profile or scheduler.profile
    if args.stage_profile is None:
        scheduler = scheduler.model_copy(update={"stage_profile": profile})
    admission = config_from_args(AdmissionConfig, args, variables=VARIABLES, defaults={"rank_silence_s": 3_600.0})
    try:
        check_block_alignment(scheduler, config.block_size)
        profile = _slowed(profile, config)
        return ClusterSpec(
            num_stages=config.pp,
            block_size=config.block_size,
            profile=profile,
            memory=_memory(config, admission.snapshot_interval),
            scheduler=scheduler,
            admission=admission,
            costs=config_from_args(PlaneCosts, args, prefix="cost_of_", variables=VARIABLES),
            jitter=config.jitter,
            seed=config.seed,
        )
    except (CapacityError, ValueError) as error:
        raise ConfigError(str(error)) from None


def poisson(rate: float, seed: int) -> Iterator[float]:
    """The times of a Poisson process."""
    chance, at = random.Random(seed), 0.0
    while True:
        at += chance.expovariate(rate)
        yield at


def _slowed(profile: StageProfile, config: SimulateConfig) -> StageProfile:
    profile = profile.at(config.pp)
    if config.slow_stage is None:
        return profile
    rank, factor = config.slow_stage.split(":")
    return profile.slowed(config.pp, int(rank), float(factor))


def _memory(config: SimulateConfig, snapshot_interval: int) -> StageMemory:
    if config.num_pages is None or config.num_slots is None:
        memory = KIMI_K3.stage_memory(config.pp, GB300_BYTES, GB300_HOST_BYTES, config.block_size, snapshot_interval)
        return replace(memory, retention=config.snapshot_retention)
    return StageMemory(
        config.num_pages, config.num_slots, config.host_pages, config.host_slots, config.snapshot_retention
    )


def _told(
    config: SimulateConfig, spec: ClusterSpec, workload: str, outcome: Outcome, found: Mapping[str, float]
) -> str:
    load = f"{config.concurrency} clients" if config.rate is None else f"{config.rate:g} requests a second"
    memory = spec.memory
    return "\n".join(
        (
            f"{workload}, {outcome.requests} requests, {load}; {config.pp} stages of {spec.profile}, "
            f"policy {spec.scheduler.policy}, admission {spec.admission.admission}",
            f"caches of a stage: {memory.num_pages:,} pages of {spec.block_size} tokens and {memory.num_slots:,} "
            f"snapshots, {memory.host_pages:,} and {memory.host_slots:,} more on its host",
            "",
            f"throughput  {outcome.tokens_s:12,.0f} input tokens a second ({found['cached']:.1%} of them cached)",
            f"completion  {outcome.p50_s:12.3f} s p50, {outcome.p95_s:.3f} s p95, {outcome.mean_s:.3f} s mean",
            f"bubble      {outcome.bubble:12.1%} of the stages' time",
            f"waves       {outcome.waves:12,} in {outcome.wall_s:,.1f} s of virtual time, "
            f"simulated in {found['simulated_in_s']:.1f} s",
        )
    )
