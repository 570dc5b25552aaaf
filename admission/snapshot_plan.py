"""Where a prompt's recurrent snapshots are taken: the same positions on every rank, chosen by the leader."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from .capacity import GroupCapacity
from .config import AdmissionConfig


def reuse_limit(num_tokens: int, block_size: int) -> int:
    """The longest prefix, in tokens, that may be reused: at least one token is always computed."""
    return (num_tokens - 1) // block_size * block_size


def plan_snapshots(
    endpoint: int, num_tokens: int, interval: int, block_size: int, most: int, forks: Sequence[int] = ()
) -> tuple[int, ...]:
    """Positions in tokens, ascending and block-aligned, beyond `endpoint` and at most `most` of them: the last one that
    a request with the same prompt could reuse, the `forks` (ascending) where other prompts have left this one, and
    multiples of `interval`. Where they are too many, the last stays, then the deepest forks, and the interval doubles
    until the rest fits."""
    last = reuse_limit(num_tokens, block_size)
    if last <= endpoint or most < 1:
        return ()
    passed = forks[bisect_right(forks, endpoint) : bisect_left(forks, last)]
    kept = {last, *passed[max(0, len(passed) - (most - 1)) :]}
    step = interval
    while _multiples_between(endpoint, last, step) > most - 1:
        step *= 2
    while len(kept | (plan := set(range((endpoint // step + 1) * step, last, step)))) > most:
        step *= 2
    return tuple(sorted(kept | plan))


class SnapshotPlanner:
    """Plans for one group, within what its ranks can hold. Immutable."""

    def __init__(self, config: AdmissionConfig, capacity: GroupCapacity) -> None:
        self._config, self._capacity = config, capacity

    def plan(self, num_tokens: int, endpoint: int, forks: Sequence[int] = ()) -> tuple[int, ...]:
        """Positions in tokens; none where no rank has a recurrent window."""
        most = self._capacity.snapshots_beyond(endpoint, self._config.max_snapshots_per_request)
        return plan_snapshots(
            endpoint, num_tokens, self._config.snapshot_interval, self._capacity.block_size, most, forks
        )


def _multiples_between(low: int, high: int, step: int) -> int:
    """How many multiples of `step` lie strictly between the two."""
    return max(0, (high - 1) // step - low // step)
