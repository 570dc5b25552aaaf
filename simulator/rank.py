"""One simulated rank: a real participant, claims and stage cache, between WAVE's links and a pretended LOOP."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ..admission.claims import Claims
from ..admission.messages import FromLeader, Hello, RoundDown, RoundUp, ToLeader, WaveDone, WaveStarted
from ..admission.participant import Participant
from ..admission.prompt_keys import PromptKeys
from ..cache.answers import NoRoom
from ..cache.escrow import Floors
from ..cache.eviction import Retention
from ..cache.keys import KeySpace
from ..cache.layout import Window
from ..cache.stage_cache import StageCache
from ..cache.window import CacheWindow
from ..scheduler.planner import Planner
from .loop import Grew, Loop, Wave
from .storage import Storage

KEYS = KeySpace("simulated")
_FROM_LEADER: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)
_TO_LEADER: msgspec.msgpack.Decoder[ToLeader] = msgspec.msgpack.Decoder(ToLeader)
_ENCODER = msgspec.msgpack.Encoder()
_STRANGER = 1_000_000_000
"""Request ids from here on are known to one rank alone."""
_REPEATABLE = 6
_NO_FLOORS = Floors()


@dataclass(frozen=True)
class RankSpec:
    attention: bool = True
    recurrent: bool = True
    num_pages: int = 40
    num_slots: int = 12
    host_pages: int = 0
    host_slots: int = 0
    floors: Floors = _NO_FLOORS
    retention: Retention = "lru"

    @property
    def windows(self) -> frozenset[Window]:
        present = {Window.ATTENTION: self.attention, Window.RECURRENT: self.recurrent}
        return frozenset(window for window, there in present.items() if there)


def encode(message: FromLeader | ToLeader) -> bytes:
    return _ENCODER.encode(message)


def heard_from(frame: bytes) -> ToLeader:
    return _TO_LEADER.decode(frame)


class Turnstile:
    """Stands for the stage cache's mutex. While `between` is set, it is called whenever the mutex has been let go of,
    for other threads of the rank to come in before the next call. Nobody lets go of it with more promised than there
    is."""

    def __init__(self) -> None:
        self.between: Callable[[], None] | None = None
        self.windows: tuple[CacheWindow, ...] = ()

    def __enter__(self) -> None:
        assert not self._held, "the mutex is held already"
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        for window in self.windows:
            assert window.slack >= 0, f"more {window.window} is promised than there is"
        between, self.between = self.between, None
        if between is not None:
            between()
            self.between = between

    _held = False


class Rank:
    """`down` and `up` are the two links to the leader, first in, first out; rank 0 has none, and is called directly.
    The last frames that went over either may come again."""

    cache_type: type[StageCache] = StageCache
    storage_type: type[Storage] = Storage
    participant_type: type[Participant] = Participant

    def __init__(
        self,
        number: int,
        ranks: int,
        spec: RankSpec,
        block_size: int,
        *,
        leased: bool,
        planner: Planner | None,
        batch: int,
        chance: random.Random,
        send: Callable[[Wave], None],
        epoch: int = 1,
        keys: PromptKeys | None = None,
    ) -> None:
        """`keys` where ranks share what they have hashed."""
        self.number, self.spec, self._block, self._leased = number, spec, block_size, leased
        self.cache = self.cache_type(
            spec.windows,
            spec.num_pages,
            spec.num_slots,
            block_size,
            host_pages=spec.host_pages,
            host_slots=spec.host_slots,
            floors=spec.floors,
            retention=spec.retention,
            mutex=(turnstile := Turnstile()),
        )
        turnstile.windows = self.cache._windows
        self._turnstile, self._chance = turnstile, chance
        self.interrupted = 0.0
        """How likely LOOP goes on between two calls that WAVE makes to the cache within one round."""
        self.keys = PromptKeys(KEYS, block_size) if keys is None else keys
        hints = self.cache.hint if leased else self.cache.probe
        self.participant = self.participant_type(number, epoch, self.cache, self.keys, block_size, hints)
        self.claims = Claims(self.cache)
        self.storage = self.storage_type(spec.windows, block_size, chance)
        last = number == ranks - 1
        on_loop = None if leased else self.participant
        self.loop = Loop(number, epoch, last, self.cache, self.claims, self.storage, batch, planner, on_loop, send)
        self.down: deque[bytes] = deque()
        self.up: deque[bytes] = deque()
        self.came_down: deque[bytes] = deque(maxlen=_REPEATABLE)
        self.went_up: deque[bytes] = deque(maxlen=_REPEATABLE)
        self._strangers = _STRANGER

    def hello(self) -> Hello:
        return Hello(
            rank=self.number,
            version="1",
            fingerprint="simulated",
            config="",
            layers=(self.number, self.number + 1),
            windows=tuple(sorted(self.spec.windows)),
            num_pages=self.spec.num_pages if self.spec.attention else 0,
            num_slots=self.spec.num_slots if self.spec.recurrent else 0,
            cache_bytes=0,
            weight_bytes=0,
            transfer_address="",
        )

    def agreed(self, request: int) -> tuple[int, int, tuple[int, ...]]:
        """Attempt, endpoint and snapshots that were committed here."""
        sequence = self.cache.sequence(request)
        return sequence.attempt, sequence.endpoint, sequence.planned

    # WAVE.

    def apply(self, down: RoundDown) -> RoundUp | None:
        """The answer; None where LOOP gives it."""
        if not self._leased:
            self.loop.put(down)
            return None
        self._turnstile.between = self._interrupt if self.interrupted else None
        up = self.participant.apply(down)
        self._turnstile.between = None
        for order in self.participant.take_orders():
            self.loop.put(order)
        return up

    def _interrupt(self) -> None:
        while self._chance.random() < self.interrupted:
            acts = self.loop.acts()
            if not acts:
                return
            self._chance.choice(acts)[1]()

    def report(self) -> RoundUp | None:
        return self.participant.report() if self._leased else None

    def receive(self, again: int | None = None) -> None:
        """The next frame of the down link; or, with `again`, one that came before."""
        if again is None:
            self.came_down.append(self.down.popleft())
        down = _FROM_LEADER.decode(self.came_down[-1 if again is None else again])
        assert isinstance(down, RoundDown)
        self._say(self.apply(down))
        self._say(self.report())

    def post(self) -> None:
        """What LOOP has left, on to the leader. Not for rank 0."""
        mail = self.loop.mails.popleft()
        if isinstance(mail, RoundUp | WaveStarted | WaveDone):
            self._say(mail)
        self._say(self.report())

    def grew(self) -> None:
        """A pull that was closed may have left room: whoever speaks for this rank is woken."""
        if self._leased:
            self.loop.mails.append(Grew())
        else:
            self.loop.put(Grew())

    def _say(self, message: ToLeader | None) -> None:
        if message is not None:
            self.up.append(encode(message))

    # What happens on this rank alone.

    def pressed(self, tokens: int, keep: bytes = b"") -> bool:
        """Something takes room for so many tokens, evicting others, and gives it back. With `keep`, the beginning of
        that prompt is left cached, with a snapshot. False when there was no room. Only between waves."""
        prompt = keep or (self._strangers + 1).to_bytes(4, "little") * tokens
        last = tokens // self._block * self._block
        return self._alone(prompt[: 4 * tokens], (last,) if keep and last else (), bool(keep))

    def preload(self, tokens: bytes, upto: int, snapshots: tuple[int, ...] = ()) -> None:
        """`leave`, where there must be room."""
        assert self.leave(tokens, upto, snapshots), "no room"

    def leave(self, tokens: bytes, upto: int, snapshots: tuple[int, ...]) -> bool:
        """Computes the first `upto` tokens, with snapshots at exactly these positions, and leaves them cached. False
        when there was no room."""
        return self._alone(tokens[: 4 * upto], snapshots, True)

    def _alone(self, tokens: bytes, snapshots: tuple[int, ...], computed: bool) -> bool:
        self._strangers += 1
        request, end = self._strangers, len(tokens) // 4
        committed = self.trial(request, tokens, 0, snapshots) is not None
        if committed:
            while (moves := self.cache.materialise(request, end)) is not None:
                self.storage.execute(moves)
            if computed:
                self.storage.compute(self.cache.sequence(request), tokens, 0, end)
                self.cache.publish(request, end)
        self.cache.release(request)
        self.loop.tell_of_room()
        return committed

    def trial(self, request: int, tokens: bytes, candidate: int, snapshots: tuple[int, ...]) -> int | None:
        """Leases and commits, as an install does; the endpoint, committed where it is the candidate, or None when there
        is no room. To be released by the caller, whatever it was."""
        keys, num_tokens = KEYS.block_keys(tokens, self._block), len(tokens) // 4
        self.cache.lease(request, 1, f"of rank {self.number} alone", keys, num_tokens, candidate)
        prepared = self.cache.prepare(request, snapshots)
        if isinstance(prepared, NoRoom):
            return None
        if prepared.endpoint < candidate:
            return prepared.endpoint
        reach = self.cache.commit(request, candidate, snapshots)
        return None if isinstance(reach, NoRoom) else reach.endpoint
