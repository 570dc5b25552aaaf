"""The policy `mpu`: Maximum Pipeline Utilization, the paper's."""

from dataclasses import dataclass

from .budgets import Pieces, budget_chain, choose_budget
from .config import SchedulerConfig
from .work import Work


@dataclass(frozen=True, slots=True)
class _State:
    """`index` into the budgets; how many decisions in a row wanted the next larger one, or a smaller one."""

    index: int
    rises: int = 0
    falls: int = 0


class MpuBudget:
    """The largest b with n(b) ≥ S = R + (F−1)P, R = 2P, else b_min (paper §3, eqs. 6 and 7, thinning at most 12.5%).

    A change of more than one step up is made at once. One step up must have been wanted by R/2 decisions in a row; a
    step down by R of them, and is made only while n(b) < (1 − δ)·S at the present b. The paper does not say where
    counting begins: with nothing in flight there is no cadence to keep, and the budget is what is wanted. A decision
    is a wave that was accepted."""

    def __init__(self, config: SchedulerConfig, block_size: int, num_stages: int) -> None:
        self.budgets = budget_chain(config.max_wave_tokens, config.min_wave_tokens, block_size)
        self.ring = 2 * num_stages
        self.target = self.ring + (config.pipeline_fills - 1) * num_stages
        self._rise_after = config.rise_decisions or max(1, self.ring // 2)
        self._fall_after = config.fall_decisions or self.ring
        self._enough = (1 - config.hysteresis) * self.target
        self._thinning_limit = config.thinning_limit
        self._count_in_flight = config.count_in_flight
        self._state: _State | None = None
        self._next: _State | None = None

    def budget(self, work: Work, idle: bool) -> int:
        pieces = Pieces(work.unscheduled + work.in_flight if self._count_in_flight else work.unscheduled)
        wanted = choose_budget(self.budgets, pieces, self.target, self.ring, self._thinning_limit)
        self._next = _State(wanted) if idle or self._state is None else self._step(self._state, wanted, pieces)
        return self.budgets[self._next.index]

    def decided(self) -> None:
        self._state = self._next

    def _step(self, state: _State, wanted: int, pieces: Pieces) -> _State:
        rise = state.index - wanted
        if rise > 1:
            return _State(wanted)
        if rise == 1:
            rises = state.rises + 1
            return _State(wanted) if rises >= self._rise_after else _State(state.index, rises=rises)
        if rise < 0:
            falls = state.falls + 1
            may_fall = falls >= self._fall_after and pieces.waves(self.budgets[state.index]) < self._enough
            return _State(wanted) if may_fall else _State(state.index, falls=falls)
        return state if not (state.rises or state.falls) else _State(state.index)
