"""One simulated rank: a real participant and stage cache, and a pretended forward that checks what it reads."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from ..admission.messages import FromLeader, Hello, RoundDown, RoundUp, ToLeader
from ..admission.participant import Participant
from ..cache.answers import Claimed, NoRoom, Short
from ..cache.keys import KeySpace
from ..cache.layout import Window
from ..cache.stage_cache import StageCache


@dataclass(frozen=True)
class RankSpec:
    attention: bool
    recurrent: bool
    num_pages: int
    num_slots: int

    @property
    def windows(self) -> frozenset[Window]:
        present = {Window.ATTENTION: self.attention, Window.RECURRENT: self.recurrent}
        return frozenset(window for window, there in present.items() if there)


@dataclass(frozen=True)
class Piece:
    request: int
    attempt: int
    endpoint: int
    start: int
    end: int
    last: bool


_DECODER: msgspec.msgpack.Decoder[FromLeader | ToLeader] = msgspec.msgpack.Decoder(FromLeader | ToLeader)


def wire(message: FromLeader | ToLeader) -> FromLeader | ToLeader:
    """The message after a trip over the rounds plane."""
    return _DECODER.decode(msgspec.msgpack.encode(message))


def state_after(tokens: bytes, position: int) -> bytes:
    """What any storage of exactly `position` tokens must hold: it depends on every token up to there."""
    return blake2b(tokens[: position * 4], digest_size=8).digest()


class Rank:
    """Rounds and waves wait in `rounds` and `waves` until the caller lets the rank take the next one; its answers wait
    in `answers`. Every page and slot has contents, so that stale or foreign storage shows at once."""

    def __init__(self, number: int, spec: RankSpec, block_size: int, epoch: int = 1) -> None:
        self.number, self.spec, self._block = number, spec, block_size
        self.cache = StageCache(spec.windows, spec.num_pages, spec.num_slots, block_size)
        self.participant = Participant(number, epoch, self.cache, KeySpace("simulated"), block_size)
        self.rounds: deque[RoundDown] = deque()
        self.waves: deque[tuple[int, tuple[Piece, ...]]] = deque()
        self.unsettled: deque[tuple[int, tuple[Piece, ...]]] = deque()
        self.answers: deque[RoundUp] = deque()
        self._pages: dict[int, bytes] = {}
        self._slots: dict[int, bytes] = {}

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

    def apply(self) -> None:
        self.answers.append(self.participant.apply(self.rounds.popleft()))

    def report(self) -> bool:
        report = self.participant.report()
        if report is not None:
            self.answers.append(report)
        return report is not None

    def forward(self) -> tuple[int, tuple[Piece, ...]]:
        """Runs the oldest wave; what it computed is not published before `settle`."""
        wave, spans = self.waves.popleft()
        for span in spans:
            self._forward(span, self.participant.request(span.request).tokens)
        self.unsettled.append((wave, spans))
        return wave, spans

    def settle(self) -> None:
        wave, spans = self.unsettled.popleft()
        for span in spans:
            self.cache.publish(span.request, span.end)
            if span.last:
                self.cache.seal(span.request)
                self.participant.finished(span.request)
        self.participant.wave_completed(wave)

    def check_handle(self, handle: str, tokens: bytes) -> int:
        """Opens a pull and reads all of it; returns the pull."""
        pull = self.cache.open_pull(handle)
        num_tokens = len(tokens) // 4
        assert pull.num_tokens == num_tokens
        if self.spec.attention:
            self._check_pages(pull.pages, tokens, num_tokens)
        if self.spec.recurrent:
            assert self._slots[pull.slot] == state_after(tokens, num_tokens)
        return pull.id

    def preload(self, tokens: bytes, upto: int, snapshots: tuple[int, ...] = ()) -> None:
        """Computes the first `upto` tokens, with snapshots at exactly these positions, and leaves them cached."""
        keys = KeySpace("simulated").block_keys(tokens[: 4 * upto], self._block)
        self.cache.claim(1_000_000, 1, "preload", keys, upto, 0, snapshots)
        self._forward(Piece(1_000_000, 1, 0, 0, upto, True), tokens)
        self.cache.publish(1_000_000, upto)
        self.cache.seal(1_000_000)
        self.cache.release_handle("preload")

    def try_claim(self, tokens: bytes, candidate: int, snapshots: tuple[int, ...]) -> Claimed | Short | NoRoom:
        """What an install would be answered now; nothing is kept."""
        keys = KeySpace("simulated").block_keys(tokens, self._block)
        outcome = self.cache.claim(2_000_000, 1, "try", keys, len(tokens) // 4, candidate, snapshots)
        self.cache.release(2_000_000)
        return outcome

    def _forward(self, span: Piece, tokens: bytes) -> None:
        sequence = self.cache.sequence(span.request)
        assert (sequence.attempt, sequence.endpoint) == (span.attempt, span.endpoint), "not what the ranks committed"
        if self.spec.attention:
            self._check_pages(sequence.pages, tokens, span.start)
            for block in range(span.start // self._block, -(-span.end // self._block)):
                end = min((block + 1) * self._block, span.end)
                self._pages[sequence.pages[block]] = state_after(tokens, end)
        if self.spec.recurrent:
            if span.start == span.endpoint:
                resumed = self._slots[sequence.source_slot] if sequence.source_slot >= 0 else state_after(tokens, 0)
                self._slots[sequence.slot] = resumed
            assert self._slots[sequence.slot] == state_after(tokens, span.start)
            for position, slot in sequence.snapshots:
                if position <= span.end:
                    self._slots[slot] = state_after(tokens, position)
            self._slots[sequence.slot] = state_after(tokens, span.end)
        self.cache.resumed(span.request)

    def _check_pages(self, pages: tuple[int, ...], tokens: bytes, upto: int) -> None:
        for block in range(-(-upto // self._block)):
            assert self._pages[pages[block]] == state_after(tokens, min((block + 1) * self._block, upto))
