"""When the leader holds a round without a decision to tell."""


class Cadence:
    """Owner: the leader's thread. Times are on the clock of the `now` arguments, in seconds."""

    def __init__(self, idle_s: float, busy_s: float) -> None:
        """While something is asked, it is repeated after `busy_s`, and then after twice as long each time, up to
        `idle_s`, which is the time between the heartbeats of an idle group."""
        self._idle_s, self._busy_s = idle_s, busy_s
        self._sent_at: float | None = None
        self._wait_s = busy_s

    def sent(self, now: float, *, repeat: bool) -> None:
        self._wait_s = min(2 * self._wait_s, self._idle_s) if repeat else self._busy_s
        self._sent_at = now

    @property
    def sent_at(self) -> float:
        return self._sent_at or 0.0

    def due(self, *, busy: bool, owing: bool) -> float | None:
        """`busy`: something is asked that can be repeated. `owing`: a rank has not answered; then no heartbeat is due,
        for rounds would only pile up in front of it."""
        if self._sent_at is None:
            return 0.0
        if busy:
            return self._sent_at + self._wait_s
        return None if owing else self._sent_at + self._idle_s
