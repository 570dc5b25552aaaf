"""From measured waves to the numbers of a stage profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
_FLOOR_GAIN = 0.8
"""A floor is believed where it leaves at most this part of the squared errors: it can always leave fewer."""
_FLOOR_SLACK = 0.1


@dataclass(frozen=True, slots=True)
class Point:
    """A wave's tokens and pairs of a token and one before it, and the seconds that it took."""

    tokens: int
    pairs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = wave_s + max(weight_s, token_s · tokens) + context_s · pairs, as in `StageProfile`. `rms` and `worst`
    are errors relative to what was measured."""

    wave_s: float
    weight_s: float
    token_s: float
    context_s: float
    rms: float = 0.0
    worst: float = 0.0

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.wave_s + max(self.weight_s, self.token_s * tokens) + self.context_s * pairs


def fit(points: Sequence[Point]) -> Fit:
    """Least squares of relative errors, none of the numbers negative. `weight_s` is above zero only where waves of two
    lengths or more lie on a floor that explains them better than a straight line. Raises ValueError without points."""
    if not points:
        raise ValueError("there is nothing to fit")
    lengths = sorted({point.tokens for point in points})
    found, least = _with_floor(points, 0)
    line = least
    for longest, below in pairwise(lengths[1:]):
        floored, loss = _with_floor(points, below)
        # It must also end where it was supposed to.
        ends = floored.token_s * longest <= floored.weight_s * (1 + _FLOOR_SLACK) and (
            floored.weight_s <= floored.token_s * below
        )
        if ends and loss < min(_FLOOR_GAIN * line, least):
            found, least = floored, loss
    errors = np.array([found.seconds(p.tokens, p.pairs) / p.seconds - 1 for p in points])
    rms, worst = float(np.sqrt((errors**2).mean())), float(np.abs(errors).max())
    return Fit(found.wave_s, found.weight_s, found.token_s, found.context_s, rms, worst)


def _with_floor(points: Sequence[Point], below: int) -> tuple[Fit, float]:
    """The best fit for which waves of fewer than `below` tokens take `weight_s`; and its sum of squared errors."""
    tokens = np.array([point.tokens for point in points], dtype=np.float64)
    pairs = np.array([point.pairs for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    floored = tokens < below
    columns = np.stack([np.ones(len(points)), floored, np.where(floored, 0.0, tokens), pairs], axis=1)
    found = Fit(*_not_negative(columns / seconds[:, None]))
    errors = [found.seconds(point.tokens, point.pairs) / point.seconds - 1 for point in points]
    return found, float(np.square(errors).sum())


def _not_negative(columns: Numbers) -> tuple[float, ...]:
    """What the columns are to be multiplied with so that they sum up to ones: the best of all subsets of columns whose
    solution is not negative, which is the best of all that are not, and there are few."""
    best, least = (0.0,) * columns.shape[1], float("inf")
    wanted = np.ones(len(columns))
    for chosen in _subsets(np.flatnonzero(columns.any(axis=0)).tolist()):
        solution, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
        if (solution < 0).any():
            continue
        loss = float(((columns[:, chosen] @ solution - wanted) ** 2).sum())
        if loss < least:
            numbers = dict(zip(chosen, solution.tolist(), strict=True))
            best, least = tuple(numbers.get(column, 0.0) for column in range(columns.shape[1])), loss
    return best


def _subsets(whole: Sequence[int]) -> Iterator[list[int]]:
    for size in range(len(whole), 0, -1):
        yield from map(list, combinations(whole, size))
