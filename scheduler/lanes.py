"""The requests that still have tokens to plan, first come first served."""

from collections.abc import Iterator
from dataclasses import dataclass

from .span import Span


class PositionMismatch(Exception):  # noqa: N818 -- the name is part of the protocol's vocabulary
    """A span does not continue its lane: planner and executor disagree on what has been computed. Fails the epoch."""


class DuplicateLane(ValueError):  # noqa: N818
    """The request already has a lane, or a wave in flight."""


@dataclass(slots=True)
class Lane:
    """A request's place across waves, until its last chunk is scheduled. Tokens before `position` are reused or
    scheduled; `end` is the prompt's length. `last_wave` is −1 until a wave names the request. `waiting_since` is when
    the lane was first seen unscheduled after its last span, `arrived_at` when the request came or, where nobody said,
    when the lane was first seen, and `deadline` when its last token should be computed, all in the planner's time. Of
    two priorities the lower number goes first."""

    request: int
    attempt: int
    endpoint: int
    position: int
    end: int
    priority: int = 0
    deadline: float | None = None
    last_wave: int = -1
    arrived_at: float | None = None
    waiting_since: float | None = None

    @property
    def remaining(self) -> int:
        return self.end - self.position


class Lanes:
    """The lanes in the order of admission. Owner: the planner (LOOP thread). Positions advance only here, and only
    by accepted spans; a lane leaves with its last span or when it is stopped."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._lanes: dict[int, Lane] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def get(self, request: int) -> Lane | None:
        return self._lanes.get(request)

    def add(
        self,
        request: int,
        attempt: int,
        endpoint: int,
        num_tokens: int,
        priority: int = 0,
        deadline: float | None = None,
        arrived_at: float | None = None,
    ) -> Lane:
        """Raises `DuplicateLane`; `ValueError` unless the endpoint is block-aligned and leaves a token to compute."""
        if request in self._lanes:
            raise DuplicateLane(f"request {request} already has a lane")
        if endpoint % self._block_size or not 0 <= endpoint < num_tokens:
            raise ValueError(
                f"request {request}: endpoint {endpoint} of {num_tokens} tokens must be a multiple of "
                f"{self._block_size} and leave at least one token to compute"
            )
        lane = Lane(request, attempt, endpoint, endpoint, num_tokens, priority, deadline, arrived_at=arrived_at)
        self._lanes[request] = lane
        return lane

    def remove(self, request: int) -> Lane | None:
        return self._lanes.pop(request, None)

    def check(self, span: Span) -> None:
        """Raises `PositionMismatch` unless the span continues its lane, block by block or to the prompt's end."""
        lane = self._lanes.get(span.request)
        if lane is None:
            raise PositionMismatch(f"request {span.request} has no lane")
        if span.start != lane.position:
            raise PositionMismatch(f"request {span.request} stands at {lane.position}, not at {span.start}")
        if span.length < 1 or span.end > lane.end or span.last != (span.end == lane.end):
            raise PositionMismatch(f"{span} does not fit a prompt of {lane.end} tokens")
        if not span.last and span.end % self._block_size:
            raise PositionMismatch(f"{span} ends inside a block of {self._block_size}")

    def advance(self, span: Span, wave: int) -> None:
        """Moves the lane past a span that `wave` carries. Raises `PositionMismatch` as `check` does."""
        self.check(span)
        if span.last:
            del self._lanes[span.request]
            return
        lane = self._lanes[span.request]
        lane.position = span.end
        lane.last_wave = wave
        lane.waiting_since = None
