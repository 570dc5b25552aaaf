"""The budgets that a wave may have, and how many waves each would make of the work at hand."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


def budget_chain(most: int, least: int, block_size: int) -> tuple[int, ...]:
    """b_0 = M; b_{j+1} = max(b_min, alignDown_B(b_j / 2)), to b_min (eq. 6). In tokens, B ≤ b_min ≤ M."""
    chain = [most]
    while chain[-1] > least:
        half = chain[-1] // 2
        chain.append(max(least, half - half % block_size))
    return tuple(chain)


class Pieces:
    """The requests' pieces, by length, for counting waves. O(n log n) to make, O(log n) a question."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self._lengths = sorted(lengths)
        self._sums = [0, *accumulate(self._lengths)]

    @property
    def tokens(self) -> int:
        """W."""
        return self._sums[-1]

    def waves(self, budget: int) -> float:
        """n(b) = max(W / b, N_{>b/2}): how many waves of `budget` tokens there would be (eq. 7, no ceilings). Two
        pieces larger than half a wave cannot share one."""
        larger_than_half = len(self._lengths) - bisect_right(self._lengths, budget / 2)
        return max(self.tokens / budget, larger_than_half)

    def newly_split(self, budget: int, larger: int) -> int:
        """Tokens of the pieces that fit into `larger`, but not into `budget`."""
        low, high = bisect_right(self._lengths, budget), bisect_right(self._lengths, larger)
        return self._sums[high] - self._sums[low]


def choose_budget(chain: Sequence[int], pieces: Pieces, target: float, ring: int, thinning_limit: float) -> int:
    """The index in `chain` of the largest budget with n(b) ≥ S, else of b_min; `target` is S, `ring` is R.

    Thinning: once a budget L gives R waves, no budget is chosen below it that would newly split pieces of more than
    `thinning_limit` of W. L is the largest such budget: what is split counts from there on."""
    supplied: int | None = None
    for index, budget in enumerate(chain):
        if supplied is not None and pieces.newly_split(budget, supplied) > thinning_limit * pieces.tokens:
            return index - 1
        waves = pieces.waves(budget)
        if waves >= target:
            return index
        if supplied is None and waves >= ring:
            supplied = budget
    return len(chain) - 1
