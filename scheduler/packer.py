"""Which spans make the next wave."""

from collections.abc import Iterable
from dataclasses import dataclass

from .lanes import Lane
from .span import Span


@dataclass(frozen=True, slots=True)
class Packer:
    """Fills a budget in the order of admission. A span ends its prompt or ends on a block boundary, so that every
    span also starts on one, endpoints being aligned.

    `min_fragment_floor` is b_min of the fragment rule: what a wave has left over once it carries something is not
    filled with a piece of a larger request, when that piece is shorter than max(b_min, budget / 2). None turns the
    rule off: every wave is filled as far as alignment allows."""

    block_size: int
    max_spans: int
    min_fragment_floor: int | None = None

    def pack(self, lanes: Iterable[Lane], budget: int, overdue: frozenset[int] = frozenset()) -> tuple[Span, ...]:
        """Spans for `lanes`, which come in the order of admission and have tokens left; at most one a lane, at most
        `budget` tokens, never none while there is a lane. The fragment rule spares requests in `overdue`.

        A lane that the rule or alignment leaves out keeps its turn: it is the first to be served next time, while
        a later, smaller one may use room that was of no use to it. Raises `ValueError` on a budget below a block."""
        if budget < self.block_size:
            raise ValueError(f"a wave budget of {budget} tokens is below one block, {self.block_size}")
        spans: list[Span] = []
        room = budget
        for lane in lanes:
            if room == 0 or len(spans) == self.max_spans:
                break
            length = self._length(lane, budget, room, spare=lane.request in overdue)
            if length:
                spans.append(Span(lane.request, lane.position, length, last=length == lane.remaining))
                room -= length
        return tuple(spans)

    def _length(self, lane: Lane, budget: int, room: int, spare: bool) -> int:
        if lane.remaining <= room:
            return lane.remaining
        fragment = room - room % self.block_size
        if self.min_fragment_floor is None or room == budget or spare:
            return fragment
        # Doubled, so that an odd budget's half is not rounded.
        too_short = fragment < self.min_fragment_floor or 2 * fragment < budget
        return 0 if too_short else fragment
