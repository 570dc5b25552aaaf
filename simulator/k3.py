"""The paper's Kimi K3 runs, set up on the simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..admission.config import AdmissionConfig
from ..scheduler.config import SchedulerConfig
from ..scheduler.cost_model import StageProfile
from ..scheduler.profiles import KIMI_K3_GB300
from .clients import Clients
from .closed_loop import Outcome
from .cluster import ClusterSpec
from .costs import PlaneCosts
from .memory import GB300_BYTES, GB300_HOST_BYTES, KIMI_K3
from .paper_k3 import SCHEDULER, STAGES
from .rungs import LEASED, Rung
from .workloads import Cell, Prompts, prompts

BLOCK = 64
INTERVAL = 8_192
"""Tokens between snapshots."""
VOCABULARY = 163_840


@dataclass(frozen=True)
class Setting:
    """What may differ from the paper's K3 runs. `believed`: what the planner takes for the profile, where that is not
    the profile itself. `max_batch` is not stated for these runs."""

    num_stages: int = STAGES
    profile: StageProfile = KIMI_K3_GB300
    believed: StageProfile | None = None
    block_size: int = BLOCK
    max_batch: int = 128
    rung: Rung = LEASED
    costs: PlaneCosts = field(default_factory=PlaneCosts)

    def cluster(self, policy: str) -> ClusterSpec:
        scheduler = {"policy": policy, "stage_profile": self.believed or self.profile, **SCHEDULER}
        admission = AdmissionConfig(
            admission="lease" if self.rung.leased else "lockstep",
            max_batch=self.max_batch,
            snapshot_interval=INTERVAL,
            wave_timeout_s=3_600,
            rank_silence_s=3_600,
        )
        return ClusterSpec(
            num_stages=self.num_stages,
            block_size=self.block_size,
            profile=self.profile,
            memory=KIMI_K3.stage_memory(self.num_stages, GB300_BYTES, GB300_HOST_BYTES, self.block_size, INTERVAL),
            scheduler=SchedulerConfig.model_validate(scheduler),
            admission=admission,
            costs=self.costs,
            rung=self.rung,
        )


def run_cell(cell: Cell, policy: str, setting: Setting | None = None, requests: int | None = None) -> Outcome:
    """A closed loop of max(64, 8c) requests, or so many. Raises AssertionError where something is held after it."""
    setting = setting or Setting()
    clients = Clients(setting.cluster(policy))
    jobs = cell.jobs(requests or max(64, 8 * cell.concurrency), setting.block_size)
    sent = prompts(jobs, seed=0, vocab_size=VOCABULARY, prefixes=cell.concurrency)
    warm_up(clients, sent)
    outcome = clients.closed_loop((tokens.tobytes() for tokens in sent), cell.concurrency)
    clients.come_to_rest()
    return outcome


def warm_up(clients: Clients, sent: Prompts) -> None:
    """Leaves on every rank what the prompts that come first leave there, in no time: each prefix, with snapshots at the
    interval and at its end."""
    for tokens in sent.warm_up():
        reused = len(tokens) - 1
        clients.cluster.preload(tokens.tobytes(), reused, (*range(INTERVAL, reused, INTERVAL), reused))
