"""When the waves in flight will be through."""

from collections import deque


class ExitForecast:
    """Of equal work on all stages a wave leaves the last one a wave's time behind the wave ahead of it, or as soon as
    it can be through alone, whichever is later. Owner: the planner. Times are the planner's."""

    def __init__(self) -> None:
        self._exits: deque[tuple[int, float]] = deque()
        self._last = 0.0
        self._begins = 0.0
        """When the first stage is free."""
        self._completed = 0.0
        """When the newest completed wave should have left."""
        self._ahead = 0.0
        """By how much waves have left sooner than the figures kept above say."""

    def launched(self, wave: int, seconds: float, first: float, transit: float, now: float) -> None:
        """`seconds` on the slowest stage, `first` on the first one, `transit` on all but the slowest and between them.
        Waves may be planned while the first stage still has others to run."""
        begins = max(now + self._ahead, self._begins)
        self._begins = begins + first
        self._last = max(self._last + seconds, begins + seconds + transit)
        self._exits.append((wave, self._last))

    def completed(self, wave: int) -> None:
        while self._exits and self._exits[0][0] <= wave:
            self._completed = self._exits.popleft()[1]

    def remaining(self, now: float) -> float:
        """Seconds from when the first stage is free until the newest wave leaves; 0 when none is in flight."""
        if not self._exits:
            return 0.0
        # What has completed has left by now: had it been expected later, so are those behind it.
        self._ahead = max(self._ahead, self._completed - now)
        return max(0.0, self._last - max(now + self._ahead, self._begins))
