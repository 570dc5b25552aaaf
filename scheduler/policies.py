"""The policies, by name."""

from .config import SchedulerConfig
from .cost import CostWaves
from .cost_model import StageCosts
from .mpu import MpuBudget
from .packer import Packer
from .policy import BudgetedWaves, WavePolicy
from .static import StaticBudget


def make_policy(config: SchedulerConfig, costs: StageCosts, block_size: int, num_stages: int) -> WavePolicy:
    """The policy that the config names."""
    packer = Packer(block_size, config.max_spans, config.fragment_floor)
    match config.policy:
        case "static":
            return BudgetedWaves(StaticBudget(config.max_wave_tokens), packer)
        case "mpu":
            return BudgetedWaves(MpuBudget(config, block_size, num_stages), packer)
        case "cost":
            return CostWaves(config, costs, block_size, num_stages)
