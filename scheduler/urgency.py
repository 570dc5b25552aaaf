"""How urgent a request is by now: what the planner orders by and, where it is handed to it, admission too."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ageing:
    """Whoever waits becomes one priority level more urgent every `seconds`, so that a stream of more urgent requests,
    or of earlier deadlines, delays nobody for ever."""

    seconds: float

    def urgency(self, priority: int, deadline: float | None, since: float, now: float) -> tuple[int, float, float]:
        """(level, deadline, until) at the time `now` of a request that waits since `since`; all times on one clock, in
        seconds. The lower level goes first, and within one the earlier deadline; it is infinite for a request that has
        none, or that has lost it and so gains nothing by haste. They hold until just before `until`, which is after
        `now`."""
        steps, seconds = 0, self.seconds
        if now > since:
            # A division rounds: what counts is that `until` and the level change at the very same moment.
            steps = int((now - since) / seconds)
            while since + (steps + 1) * seconds <= now:
                steps += 1
            while since + steps * seconds > now:
                steps -= 1
        until = since + (steps + 1) * seconds
        if deadline is None or deadline <= now:
            return priority - steps, math.inf, until
        return priority - steps, deadline, min(until, deadline)
