"""One rank alone: its participant, its claims and its stage cache, with the test as the leader, the wires and LOOP."""

from __future__ import annotations

from collections import deque

from wavepp.admission.claim import Order
from wavepp.admission.claims import Claims
from wavepp.admission.messages import Cancel, Install, Probe, RoundDown, RoundUp, Trim, Verdict, Vote
from wavepp.admission.participant import Participant
from wavepp.admission.prompt_keys import PromptKeys
from wavepp.admission.request import Request
from wavepp.cache.keys import KeySpace
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

EPOCH, BLOCK = 3, 4
BOTH = frozenset(Window)
KEYS = KeySpace("one rank")


def prompt(tokens: range) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


TOKENS = prompt(range(30))
OTHER = prompt(range(100, 130))
THIRD = prompt(range(200, 230))


class OneRank:
    """Rounds are applied when they are said, as on WAVE; orders wait in `orders` for `deliver`, as in LOOP's inbox."""

    def __init__(
        self, *, pages: int = 12, slots: int = 6, windows: frozenset[Window] = BOTH, cache: StageCache | None = None
    ) -> None:
        self.cache = cache or StageCache(windows, pages, slots, BLOCK)
        self.keys = PromptKeys(KEYS, BLOCK)
        self.participant = Participant(1, EPOCH, self.cache, self.keys, BLOCK, self.cache.hint)
        self.claims = Claims(self.cache)
        self.orders: deque[Order] = deque()
        self.round = 0
        self.wave = -1

    # WAVE.

    def apply(self, down: RoundDown) -> RoundUp:
        up = self.participant.apply(down)
        self.orders.extend(self.participant.take_orders())
        self.cache.check()
        return up

    def say(self, **decisions: object) -> RoundUp:
        self.round += 1
        return self.apply(RoundDown(EPOCH, self.round, **decisions))  # pyright: ignore[reportArgumentType]

    def announce(self, number: int = 1, tokens: bytes = TOKENS) -> RoundUp:
        return self.say(announces=(Request(number, f"r{number}", tokens, f"h{number}"),))

    def probe(self, number: int = 1) -> int:
        return self.say(probes=(Probe(number, 0),)).hints[0].endpoint

    def install(
        self, number: int = 1, attempt: int = 1, candidate: int = 0, snapshots: tuple[int, ...] = (28,)
    ) -> Vote:
        return self.say(installs=(Install(number, attempt, candidate, snapshots),)).votes[0]

    def trim(self, endpoint: int, number: int = 1, attempt: int = 1, snapshots: tuple[int, ...] = (28,)) -> Vote:
        return self.say(trims=(Trim(number, attempt, endpoint, snapshots),)).votes[0]

    def admit(self, number: int = 1, attempt: int = 1, endpoint: int = 0) -> RoundUp:
        return self.say(verdicts=(Verdict(number, attempt, endpoint, True),))

    def reject(self, number: int = 1, attempt: int = 1) -> RoundUp:
        return self.say(verdicts=(Verdict(number, attempt, 0, False),))

    def cancel(self, number: int = 1, after_wave: int = -1) -> RoundUp:
        return self.say(cancels=(Cancel(number, after_wave, f"h{number}"),))

    def begin(self, number: int = 1, tokens: bytes = TOKENS) -> None:
        """Announced, committed without reuse and admitted; LOOP knows all of it."""
        self.announce(number, tokens)
        assert self.install(number).committed
        self.admit(number)
        self.deliver()

    # LOOP.

    def deliver(self) -> None:
        while self.orders:
            self.claims.take(self.orders.popleft())
        self.cache.check()

    def run(self, end: int, number: int = 1) -> bool:
        """One wave that brings the request to `end` tokens; what `wave_completed` said."""
        self.wave += 1
        assert self.claims.find(number) is not None
        last = self.claims.request(number).num_tokens == end
        while self.cache.materialise(number, end) is not None:
            pass
        self.cache.resumed(number)
        self.cache.publish(number, end)
        if last:
            self.cache.seal(number)
            self.claims.finished(number)
        ended = self.claims.wave_completed(self.wave)
        self.cache.check()
        return ended

    def preload(self, tokens: bytes, upto: int, snapshots: tuple[int, ...] = ()) -> None:
        """Leaves the first `upto` tokens cached, with snapshots at exactly these positions."""
        request, keys = 1_000_000, KEYS.block_keys(tokens[: 4 * upto], BLOCK)
        self.cache.lease(request, 1, "preload", keys, upto, 0)
        self.cache.prepare(request, snapshots)
        self.cache.commit(request, 0, snapshots)
        while self.cache.materialise(request, upto) is not None:
            pass
        self.cache.publish(request, upto)
        self.cache.seal(request)
        self.cache.release_handle("preload")

    # What is held.

    def held(self) -> tuple[int, int, int]:
        """Leases, escrows and handles."""
        gauges = self.cache.gauges()
        return gauges.leases, gauges.escrows, gauges.handles

    def known(self) -> tuple[int, int, int, int]:
        """Waiting, admitted, claimed, and keys remembered."""
        return self.participant.known, self.participant.admitted, len(self.claims), len(self.keys)


def short_rank() -> OneRank:
    """Has 24 tokens of `TOKENS` cached, but snapshots only at 8 and at 24."""
    rank = OneRank()
    rank.preload(TOKENS, 24, (8, 24))
    rank.announce()
    return rank


def two_for_one() -> OneRank:
    """Room for one of its requests at a time; request 1 has it and runs."""
    rank = OneRank()
    rank.begin(1)
    for number, tokens in ((2, OTHER), (3, THIRD[: 4 * 4])):
        rank.announce(number, tokens)
    return rank
