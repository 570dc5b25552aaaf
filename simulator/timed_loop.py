"""LOOP of a simulated rank on virtual time."""

from __future__ import annotations

from collections.abc import Callable

from .clock import Clock
from .loop import Loop, Mail, Phase, Wave
from .timed_storage import TimedStorage


class TimedLoop:
    """Lets a rank's LOOP do what it would do by itself: takes what it was told, brings one batch of an admitted prefix,
    runs one wave, over and over; and it does nothing else while copies or the device's work take their time. Owner of
    the rank's LOOP on the virtual clock."""

    def __init__(
        self,
        loop: Loop,
        storage: TimedStorage,
        clock: Clock,
        stage_s: Callable[[Wave], float],
        overhead_s: Callable[[Wave], float],
        deliver: Callable[[Mail], None],
    ) -> None:
        """`stage_s` is what the device needs for a wave, and `overhead_s` what LOOP adds to that."""
        self.loop, self._storage, self._clock, self._deliver = loop, storage, clock, deliver
        self._stage_s, self._overhead_s = stage_s, overhead_s
        loop.stage_time = stage_s
        self.may_plan: Callable[[], bool] = lambda: True
        self.after_wave: Callable[[], None] = lambda: None
        """Called when a wave has been run."""
        self.takes_from: Handing | None = None
        self.hands_to: Handing | None = None
        """Where waves are handed over face to face."""
        self.busy_s = 0.0
        self.waves = 0
        self._occupied = False

    @property
    def occupied(self) -> bool:
        return self._occupied

    def wake(self) -> None:
        """Something has come; to be called at the time when it has."""
        if self._occupied:
            return
        loop = self.loop
        while True:
            while loop.inbox:
                loop.take()
            self._post()
            if loop.can_bring:
                loop.bring()
                self._post()
                seconds = self._storage.spent()
                if seconds:
                    self.occupy(seconds)
                    return
            if loop.waves:
                loop.begin()
            elif loop.can_plan and self.may_plan():
                loop.plan(self._clock.now)
            if loop.busy:
                self._begin()
                return
            if not loop.inbox and not loop.can_bring:
                break
        if self.takes_from is not None:
            self.takes_from.receiver_is_free()

    def occupy(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """It can do nothing else for so long; then it does `then`, or whatever there is to do."""
        self._occupied = True
        self._clock.after(seconds, then or self._free)

    def _free(self) -> None:
        self._occupied = False
        self.wake()

    def _begin(self) -> None:
        while self.loop.go_on() is not Phase.DEVICE:
            pass
        self._post()
        wave = self.loop.wave
        assert wave is not None
        seconds = self._stage_s(wave)
        self.busy_s += seconds
        self.occupy(self._storage.spent() + seconds + self._overhead_s(wave), self._computed)

    def _computed(self) -> None:
        wave = self.loop.wave
        assert wave is not None
        if self.hands_to is None:
            self.finish()
        else:
            self.hands_to.offer(wave)

    def finish(self) -> None:
        """The wave has been computed, and where hands are shaken, handed over."""
        while self.loop.go_on() is not None:
            pass
        self.waves += 1
        self._occupied = False
        self.after_wave()
        self._post()
        self.wake()

    def _post(self) -> None:
        while self.loop.mails:
            self._deliver(self.loop.mails.popleft())


class Handing:
    """A blocking transport between two stages: the sender waits until the receiver has nothing else to do, and both
    wait while the activations travel."""

    def __init__(self, sender: TimedLoop, receiver: TimedLoop, hop_s: Callable[[Wave], float]) -> None:
        self._sender, self._receiver, self._hop_s = sender, receiver, hop_s
        self._offered: Wave | None = None
        sender.hands_to = receiver.takes_from = self

    def offer(self, wave: Wave) -> None:
        self._offered = wave
        if not self._receiver.occupied:
            self._receiver.wake()

    def receiver_is_free(self) -> None:
        wave, self._offered = self._offered, None
        if wave is not None:
            seconds = self._hop_s(wave)
            self._receiver.occupy(seconds)
            self._sender.occupy(seconds, self._sender.finish)
