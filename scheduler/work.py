"""What there is to make waves of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """In tokens, one entry a request: the unscheduled suffixes of the lanes, in the order of service, and the latest
    chunks of requests that are still in the ring (W and its pieces, paper §3)."""

    unscheduled: tuple[int, ...]
    in_flight: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """W."""
        return sum(self.unscheduled) + sum(self.in_flight)
