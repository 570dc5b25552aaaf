"""What rank 0's WAVE does with what it hears, around a real leader."""

from __future__ import annotations

from collections.abc import Callable

from ..admission.effects import Admitted, Effect, StopPlanning
from ..admission.leader import Leader
from ..admission.messages import RoundUp, WaveDone, WaveStarted
from ..engine.publication import Publication
from .loop import Finished, Grew, Loop, Planned, Stopped, Timed


class Leading:
    """Brings messages to the leader and what it decides to rank 0's LOOP. `seen` is shown every effect before it is
    carried out, and `settled` called after everything that the leader was told."""

    def __init__(
        self,
        leader: Leader,
        loop: Loop,
        num_ranks: int,
        seen: Callable[[Effect], None],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._leader, self._loop, self._last = leader, loop, num_ranks - 1
        self._seen, self._settled = seen, settled
        self._publication = Publication(num_ranks)

    def take(self, message: object, now: float) -> None:
        """Of a rank's WAVE or, on rank 0, of its LOOP."""
        match message:
            case RoundUp():
                self._leader.on_round_up(message, now)
            case WaveStarted():
                self._leader.heard(message.rank, now, in_wave=True)
            case WaveDone():
                self._wave_done(message, now)
            case Planned(wave):
                self._publication.planned(wave.number, tuple((span.request, span.end) for span in wave.spans))
            case Stopped():
                self._leader.on_stopped(message.request, message.after_wave, now)
            case _:
                assert message is None or isinstance(message, Grew)
        self.carry_out()

    def carry_out(self) -> None:
        for effect in self._leader.take_effects():
            self._seen(effect)
            if isinstance(effect, Admitted | StopPlanning):
                self._loop.put(effect)
        self._loop.admitting = self._leader.installing
        self._settled()

    def _wave_done(self, done: WaveDone, now: float) -> None:
        self._leader.heard(done.rank, now)
        if done.stage_time:
            self._loop.put(Timed(done.rank, done.wave, done.stage_time))
        if done.rank == self._last:
            self._loop.put(Finished(done.wave))
        for request, computed in self._publication.done(done.rank, done.wave):
            self._leader.on_published(request, computed, now)
            self.carry_out()
        for token in done.first_tokens:
            self._leader.on_first_token(token, now)
            self.carry_out()
