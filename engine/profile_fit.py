"""From measured waves to the numbers of a stage profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """A wave's tokens and pairs of a token and one before it, and the seconds that it took."""

    tokens: int
    pairs: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """seconds = wave_s + max(weight_s, token_s · tokens) + context_s · pairs. `rms` and `worst` are relative errors."""

    wave_s: float
    weight_s: float
    token_s: float
    context_s: float
    rms: float
    worst: float

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.wave_s + max(self.weight_s, self.token_s * tokens) + self.context_s * pairs


def fit(points: Sequence[Point], weight_s: float) -> Fit:
    """Least squares of relative errors, none of the numbers negative. `weight_s` is given: bytes over bandwidth; points
    whose tokens take less than that cannot tell what a token takes. Raises ValueError without points."""
    if not points:
        raise ValueError("there is nothing to fit")
    tokens = np.array([point.tokens for point in points], dtype=np.float64)
    pairs = np.array([point.pairs for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points], dtype=np.float64)
    # What reading the weights takes can be no longer than a whole wave.
    weight_s = min(weight_s, float(seconds.min()))
    hidden = np.zeros(len(points), dtype=bool)
    wave_s = token_s = context_s = 0.0
    for _ in range(_ROUNDS):
        rest = seconds - np.where(hidden, weight_s, 0.0)
        columns = np.stack([np.ones(len(points)), np.where(hidden, 0.0, tokens), pairs], axis=1)
        wave_s, token_s, context_s = _not_negative(columns / seconds[:, None], rest / seconds)
        again = token_s * tokens < weight_s
        if (again == hidden).all() or again.all():
            break
        hidden = again
    found = Fit(wave_s, weight_s, token_s, context_s, 0.0, 0.0)
    errors = np.array([found.seconds(p.tokens, p.pairs) / p.seconds - 1 for p in points])
    return Fit(wave_s, weight_s, token_s, context_s, float(np.sqrt((errors**2).mean())), float(np.abs(errors).max()))


def _not_negative(columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """The best of all subsets of columns whose solution is not negative: there are only seven."""
    best, least = (0.0, 0.0, 0.0), float("inf")
    for chosen in _subsets(columns.shape[1]):
        solution, *_ = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)
        if (solution < 0).any():
            continue
        loss = float(((columns[:, chosen] @ solution - wanted) ** 2).sum())
        if loss < least:
            numbers = dict(zip(chosen, solution.tolist(), strict=True))
            best, least = (numbers.get(0, 0.0), numbers.get(1, 0.0), numbers.get(2, 0.0)), loss
    return best


def _subsets(count: int) -> Iterator[list[int]]:
    for size in range(count, 0, -1):
        yield from map(list, combinations(range(count), size))
