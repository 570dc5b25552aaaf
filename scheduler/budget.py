"""How large the next wave may be."""

from dataclasses import dataclass
from typing import Protocol

from .config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to make waves of, in tokens, one entry a request: the unscheduled suffixes of the lanes, in the
    order of admission, and the latest chunks of requests that are still in the ring (W and its pieces, paper §3)."""

    unscheduled: tuple[int, ...]
    in_flight: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.unscheduled) + sum(self.in_flight)


class BudgetPolicy(Protocol):
    """Asked once a planning decision, by the planner's owner."""

    def budget(self, work: Work) -> int:
        """The most tokens of the next wave: at least one block, at most M."""
        ...


class StaticBudget:
    """Every wave may be full."""

    def __init__(self, max_wave_tokens: int) -> None:
        self._max_wave_tokens = max_wave_tokens

    def budget(self, work: Work) -> int:
        return self._max_wave_tokens


def make_policy(config: SchedulerConfig) -> BudgetPolicy:
    """The policy that the config names."""
    match config.policy:
        case "static":
            return StaticBudget(config.max_wave_tokens)
