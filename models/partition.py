"""Which layers each stage holds."""

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from .errors import PartitionError

_SAME = 1e-9
"""Costs whose difference is a smaller part of them differ by rounding alone."""


def even_partition(num_layers: int, num_stages: int) -> list[range]:
    """Contiguous ranges whose sizes differ by at most one, the larger ones first.

    Raises PartitionError when a stage would be left without a layer.
    """
    _check_counts(num_layers, num_stages)
    size, larger = divmod(num_layers, num_stages)
    stops = [(stage + 1) * size + min(stage + 1, larger) for stage in range(num_stages)]
    return [range(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def balanced_partition(
    costs: Sequence[float], num_stages: int, *, first: float = 0.0, last: float = 0.0
) -> list[range]:
    """Contiguous ranges such that the slowest stage takes as little as it can; of those, such that the sum of squares
    is least; of those, with the longer ranges first. `costs` are the layers' times, in any unit; `first` and `last` are
    what embedding and head add to the first and to the last stage. O(stages · layers²).

    Raises PartitionError when a stage would be left without a layer.
    """
    import numpy as np  # Not needed for what is even or by hand.

    count = len(costs)
    _check_counts(count, num_stages)
    sums = np.array([0.0, *accumulate(costs)])
    between = np.where(np.tri(count + 1, k=-1, dtype=bool), sums[:, None] - sums, np.inf)
    # What the layers [start, stop) take is at [stop, start].
    stages = [between + first * (stage == 0) + last * (stage == num_stages - 1) for stage in range(num_stages)]

    slowest = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    for stage in stages:
        slowest = np.maximum(slowest, stage).min(axis=1)
    allowed = slowest[count] * (1 + _SAME)

    squares = np.where(np.arange(count + 1) == 0, 0.0, np.inf)
    starts = []
    for stage in stages:
        every = squares + np.where(stage <= allowed, stage, np.inf) ** 2
        squares = every.min(axis=1)
        # Of those that are alike the one that starts last, so that the earlier stages have the longer ranges.
        alike = every <= squares[:, None] * (1 + _SAME)
        starts.append(count - alike[:, ::-1].argmax(axis=1))
    stops = [count]
    for start_of in reversed(starts):
        stops.append(int(start_of[stops[-1]]))
    stops.reverse()
    return [range(start, stop) for start, stop in pairwise(stops)]


def partition_text(ranges: Sequence[range]) -> str:
    """As `parse_partition` takes it."""
    return ",".join(f"{part.start}-{part.stop - 1}" for part in ranges)


def parse_partition(text: str, num_layers: int, num_stages: int) -> list[range]:
    """A partition by hand such as `"0-3,4-11"`: inclusive layer ranges, one per stage, in order, covering all.

    Raises PartitionError naming the range at fault.
    """
    _check_counts(num_layers, num_stages)
    ranges: list[range] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise PartitionError(f"partition {text!r}: {part.strip()!r} is not a layer or a range such as 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        expected = ranges[-1].stop if ranges else 0
        if first != expected:
            raise PartitionError(f"partition {text!r}: {part.strip()!r} must start at layer {expected}")
        if last < first:
            raise PartitionError(f"partition {text!r}: {part.strip()!r} holds no layer")
        ranges.append(range(first, last + 1))
    if ranges[-1].stop != num_layers:
        raise PartitionError(
            f"partition {text!r} ends at layer {ranges[-1].stop - 1}, the model's last is {num_layers - 1}"
        )
    if len(ranges) != num_stages:
        raise PartitionError(f"partition {text!r} has {len(ranges)} ranges for {num_stages} stages")
    return ranges


def _check_counts(num_layers: int, num_stages: int) -> None:
    if num_stages < 1:
        raise PartitionError(f"the number of stages must be at least 1, not {num_stages}")
    if num_stages > num_layers:
        raise PartitionError(f"{num_stages} stages need at least {num_stages} layers, the model has {num_layers}")
