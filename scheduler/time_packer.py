"""Waves of equal time."""

from collections.abc import Iterable

from .cost_model import StageProfile
from .lanes import Lane
from .span import Span

STRETCH = 0.125
"""Of a wave's work: by so much it may be overrun to end a request, and so little of it is not filled with a piece."""


class TimePacker:
    """Fills a wave with work, in seconds of the profile, in the order of service. A span ends its prompt or ends on a
    block boundary. A request that all but fits is taken whole, and the last room is not filled with a sliver."""

    def __init__(self, profile: StageProfile, block_size: int, max_tokens: int, max_spans: int) -> None:
        self._profile, self._block_size = profile, block_size
        self._max_tokens, self._max_spans = max_tokens, max_spans

    def pack(self, lanes: Iterable[Lane], work: float) -> tuple[Span, ...]:
        """Spans for `lanes`, which come in the order of service and have tokens left: at most one a lane, at most M
        tokens, never none while there is a lane. The first lane is always served; a later one may be left out."""
        spans: list[Span] = []
        room, tokens = work, self._max_tokens
        slack = STRETCH * work
        for lane in lanes:
            if spans and (room <= slack or tokens == 0 or len(spans) == self._max_spans):
                break
            length = self._length(lane, room, slack, tokens, first=not spans)
            if length:
                spans.append(Span(lane.request, lane.position, length, last=length == lane.remaining))
                room -= self._profile.work(lane.position, lane.position + length)
                tokens -= length
        return tuple(spans)

    def _length(self, lane: Lane, room: float, slack: float, tokens: int, first: bool) -> int:
        remaining, block = lane.remaining, self._block_size
        if remaining <= tokens and self._profile.work(lane.position, lane.end) <= room + slack:
            return remaining
        blocks = min(round(self._profile.tokens_of(lane.position, room) / block), tokens // block)
        length = min(blocks, (remaining - 1) // block) * block
        return length or (min(remaining, block) if first else 0)
