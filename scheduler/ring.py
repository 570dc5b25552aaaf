"""The waves in flight."""

from collections import OrderedDict
from collections.abc import Iterator

from .span import Span, WavePlan


class RingError(Exception):
    """The ring was used against its order; the epoch cannot go on."""


class RingFull(RingError):  # noqa: N818
    """A wave was launched into a full ring."""


class UnknownWave(RingError):  # noqa: N818
    """The completed wave is not in flight."""


class WaveOutOfOrder(RingError):  # noqa: N818
    """The wave is not the one whose turn it is."""


class Ring:
    """At most `capacity` (R = 2P) waves between the planner and the last stage, in order. Owner: the planner."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} waves cannot carry any")
        self.capacity = capacity
        self._waves: OrderedDict[int, tuple[Span, ...]] = OrderedDict()
        self._latest: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._waves)

    def __iter__(self) -> Iterator[WavePlan]:
        return (WavePlan(wave, spans) for wave, spans in self._waves.items())

    @property
    def full(self) -> bool:
        return len(self._waves) >= self.capacity

    def last_wave_of(self, request: int) -> int:
        """The newest wave in flight that names the request; −1 if none does."""
        return self._latest.get(request, (-1, 0))[0]

    def latest_chunks(self) -> tuple[int, ...]:
        """Of every request in the ring, the tokens of its most recent span (the in-flight part of W, paper §3)."""
        return tuple(length for _, length in self._latest.values())

    def add(self, plan: WavePlan) -> None:
        """Raises `RingFull`, or `WaveOutOfOrder` when a newer wave is already in flight."""
        if self.full:
            raise RingFull(f"{self.capacity} waves are in flight; wave {plan.wave} must wait")
        if self._waves and plan.wave <= next(reversed(self._waves)):
            raise WaveOutOfOrder(f"wave {plan.wave} comes after wave {next(reversed(self._waves))}")
        self._waves[plan.wave] = plan.spans
        self._latest.update((span.request, (plan.wave, span.length)) for span in plan.spans)

    def complete(self, wave: int) -> tuple[Span, ...]:
        """The spans of the oldest wave, which leaves. Raises `UnknownWave`, or `WaveOutOfOrder` when an older wave
        is still in flight."""
        if wave not in self._waves:
            raise UnknownWave(f"wave {wave} is not in flight")
        oldest = next(iter(self._waves))
        if wave != oldest:
            raise WaveOutOfOrder(f"wave {wave} completed before wave {oldest}")
        spans = self._waves.pop(wave)
        for span in spans:
            if self._latest[span.request][0] == wave:
                del self._latest[span.request]
        return spans
