"""Waves on an emulated stage: all work but the model's is done, and the model's time is waited for."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..models.batch import Activations, WaveBatch
from ..models.emulated import STAMP_BYTES
from ..models.stage_model import HIDDEN
from ..scheduler.cost_model import StageProfile, pairs_of
from .executor import Executor

_STAMP = struct.Struct("<d8s")
assert _STAMP.size == STAMP_BYTES


class Pace:
    """When one stage begins and ends its waves. Times are seconds of the host's clock, which is `speed` times faster
    than the modelled one. Owned by the stage's LOOP."""

    def __init__(self, profile: StageProfile, num_stages: int, rank: int, speed: float = 1.0) -> None:
        """Raises ValueError where the profile's shares are for another number of stages."""
        self._profile = profile.at(num_stages)
        self._factor = profile.factors(num_stages)[rank]
        self._speed = speed
        self._free = -math.inf

    def begins(self, ready: float) -> float:
        """A wave that could begin at `ready` waits for the one before it, and not for what the host did since."""
        return max(ready, self._free)

    def arrives(self, departed: float, tokens: int) -> float:
        """When a wave that left the stage before at `departed` is here."""
        return departed + self._profile.hop(tokens) / self._speed

    def ends(self, begun: float, batch: WaveBatch) -> float:
        pairs = sum(pairs_of(span.start, span.length) for span in batch.spans)
        return begun + self._factor * self._profile.wave(batch.num_tokens, pairs) / self._speed

    def ended(self, begun: float, ended: float) -> float:
        """The stage is free from `ended` on. Returns how long the wave took, in modelled seconds."""
        self._free = ended
        return (ended - begun) * self._speed


class EmulatedExecutor(Executor):
    """Owned by LOOP. A wave ends when its modelled time is over, or when the real work is done, if that is later.

    The modelled time begins when the stage is free and the wave is there, by what the stage before says: how late the
    host's threads woke up for it does not add up from wave to wave and from stage to stage."""

    def __init__(
        self,
        *args: Any,
        pace: Pace,
        busy_since: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`args` are the executor's. `busy_since`: when LOOP last began to work after it had waited."""
        super().__init__(*args)
        self._pace, self._busy_since, self._clock, self._sleep = pace, busy_since, clock, sleep

    def took(self, forward_s: float) -> float:
        """The modelled time alone: what the host adds does not delay the next wave."""
        return forward_s

    def _compute(self, batch: WaveBatch, tokens: torch.Tensor | None, inputs: Activations) -> tuple[Activations, float]:
        ready = self._busy_since()
        if inputs:
            departed = _read_stamp(inputs[HIDDEN])
            ready = self._pace.arrives(ready if departed is None else departed, batch.num_tokens)
        begun = self._pace.begins(ready)
        outputs, _ = super()._compute(batch, tokens, inputs)
        ended = self._wait_until(self._pace.ends(begun, batch))
        _write_stamp(outputs[HIDDEN], ended)
        return outputs, self._pace.ended(begun, ended)

    def _wait_until(self, end: float) -> float:
        """The wave's end: `end`, or now where that is past."""
        now = self._clock()
        if now >= end:
            return now
        while now < end:
            self._sleep(end - now)
            now = self._clock()
        return end


def _host() -> bytes:
    """Its processes share one clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = boot.read_bytes() if boot.exists() else b""
    return hashlib.blake2b(name, digest_size=8).digest()


_HOST = _host()


def _write_stamp(hidden: torch.Tensor, departed: float) -> None:
    stamp = bytearray(_STAMP.pack(departed, _HOST))
    hidden[0].view(torch.uint8)[:STAMP_BYTES] = torch.frombuffer(stamp, dtype=torch.uint8)


def _read_stamp(hidden: torch.Tensor) -> float | None:
    """None where the stage before is on another host, whose clock is not ours."""
    departed, host = _STAMP.unpack(hidden[0].view(torch.uint8)[:STAMP_BYTES].numpy().tobytes())
    return departed if host == _HOST else None
