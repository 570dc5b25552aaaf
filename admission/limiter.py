"""How much may be admitted at once, so that what runs can always finish (the paper's headroom of 2PM tokens)."""

from ..cache.escrow import Floors
from .capacity import GroupCapacity
from .config import AdmissionConfig


class Limiter:
    """Counts the uncached suffixes, in tokens, of the requests that are being admitted or run. Owner: the leader's
    thread."""

    def __init__(self, config: AdmissionConfig, capacity: GroupCapacity, group_tokens: int) -> None:
        """`group_tokens` is one fill of the group's ring, 2PM."""
        self._max_batch = config.max_batch
        tokens = capacity.min_attention_tokens
        self._most = None if tokens is None else tokens - min(_reserve(config, group_tokens), tokens // 2)
        self._suffixes: dict[int, int] = {}
        self._total = 0

    @property
    def places(self) -> int:
        """How many more requests `max_batch` allows."""
        return self._max_batch - len(self._suffixes)

    def allows(self, suffix: int) -> bool:
        """Whether one more request may compute so many tokens. Alone, any request may: one that is larger than the
        limit would otherwise wait for ever."""
        if not self._suffixes:
            return True
        return self.places > 0 and (self._most is None or self._total + suffix <= self._most)

    def take(self, request: int, suffix: int) -> None:
        """Counts the request, or counts it anew."""
        self.give(request)
        self._suffixes[request] = suffix
        self._total += suffix

    def give(self, request: int) -> None:
        self._total -= self._suffixes.pop(request, 0)


def floors(config: AdmissionConfig, num_pages: int, num_slots: int, block_size: int, group_tokens: int) -> Floors:
    """What a commit must leave on a rank with so many pages and slots: the same headroom, by rank. At most half of the
    pages and a quarter of the slots, which also hold live states and snapshots."""
    tokens = _reserve(config, group_tokens)
    return Floors(
        pages=min(-(-tokens // block_size), num_pages // 2),
        slots=min(-(-tokens // config.snapshot_interval), num_slots // 4),
    )


def _reserve(config: AdmissionConfig, group_tokens: int) -> int:
    return int(config.headroom * group_tokens)
