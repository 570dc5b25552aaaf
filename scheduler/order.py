"""Who is served first."""

from collections.abc import Callable, Iterable

from .lanes import Lane
from .urgency import Ageing


class ServiceOrder:
    """Lower priority numbers first; within one, the earliest deadline that can still be met; then, first come, first
    served, those without a deadline and those whose deadline is lost, which no longer gains anything by haste.

    Ageing: a lane's priority falls by one for every `ageing_s` since its arrival, so that a stream of more urgent
    requests, or of earlier deadlines, delays nobody for ever: by then the deadline of whoever has waited longer goes
    with the priority. Without priorities and deadlines the order is that of admission, whatever the ages."""

    def __init__(self, ageing_s: float, least_s: Callable[[Lane], float]) -> None:
        """`least_s(lane)`: the fewest seconds in which the rest of the lane could be computed."""
        self._ageing, self._least_s = Ageing(ageing_s), least_s

    def of(self, lanes: Iterable[Lane], now: float) -> list[Lane]:
        """`lanes` come in the order of admission. O(n log n), and O(n) where nobody asked for anything."""
        ordered = list(lanes)
        if not any(lane.priority or lane.deadline is not None for lane in ordered):
            return ordered
        ranked: list[tuple[int, float, int]] = []
        for place, lane in enumerate(ordered):
            deadline = lane.deadline
            if deadline is not None and deadline > now and now + self._least_s(lane) > deadline:
                deadline = None
            since = now if lane.arrived_at is None else lane.arrived_at
            level, due, _ = self._ageing.urgency(lane.priority, deadline, since, now)
            ranked.append((level, due, place))
        ranked.sort()
        return [ordered[place] for _, _, place in ranked]
