"""A leader before scripted ranks: plain functions that answer what they are asked, and a record of what was said."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.effects import Admitted, Completed, Ended, Progressed, Refusal, StopPlanning
from wavepp.admission.leader import Leader
from wavepp.admission.messages import (
    Cancel,
    FirstToken,
    Hello,
    Hint,
    Install,
    Probe,
    RoundDown,
    RoundUp,
    Trim,
    Verdict,
    Vote,
)
from wavepp.admission.request import Request, Sampling
from wavepp.cache.keys import KeySpace
from wavepp.scheduler.urgency import Ageing

BLOCK = 4
HintOf = Callable[[Request], int | tuple[int, str]]
VoteOf = Callable[[Request, Install | Trim], Vote | None]


def prompt(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def committed(ask: Install | Trim) -> Vote:
    asked = ask.candidate if isinstance(ask, Install) else ask.endpoint
    return Vote(ask.request, ask.attempt, asked, asked, True)


def short(ask: Install | Trim, endpoint: int, window: str = "attention") -> Vote:
    return msgspec.structs.replace(committed(ask), endpoint=endpoint, committed=False, limited_by=window)


def refused(ask: Install | Trim, reason: str, released: int = 0) -> Vote:
    return msgspec.structs.replace(committed(ask), endpoint=0, committed=False, reason=reason, released=released)


class BlockKeys:
    """What the leader takes its prompts' keys from."""

    def __init__(self, block: int) -> None:
        self._space, self._block = KeySpace("scripted"), block
        self.memo: dict[int, tuple[bytes, ...]] = {}

    def of(self, request: Request) -> tuple[bytes, ...]:
        if request.id not in self.memo:
            self.memo[request.id] = self._space.block_keys(request.tokens, self._block)
        return self.memo[request.id]

    def forget(self, request_id: int) -> None:
        self.memo.pop(request_id, None)


class Rank:
    """Hints nothing and commits whatever it is asked, unless the test says otherwise."""

    def __init__(self, number: int, windows: tuple[str, ...], pages: int, slots: int) -> None:
        self.number, self.windows, self.pages, self.slots = number, windows, pages, slots
        self.hint: HintOf = lambda request: 0
        self.vote: VoteOf = lambda request, ask: None
        self.released = 0
        self.round = 0
        self.rounds: deque[RoundDown] = deque()
        self.requests: dict[int, Request] = {}

    def hello(self) -> Hello:
        return Hello(self.number, "1", "scripted", "", (0, 1), self.windows, self.pages, self.slots, 0, 0, "")

    def answer(self) -> RoundUp:
        """Applies the oldest round that waits."""
        down = self.rounds.popleft()
        assert down.round == self.round + 1, "rounds come in order"
        self.round = down.round
        self.requests.update({request.id: request for request in down.announces})
        hints = tuple(map(self._hint, down.probes))
        votes = tuple(map(self._vote, (*down.installs, *down.trims)))
        return RoundUp(1, self.number, self.round, hints, votes, self.released)

    def report(self) -> RoundUp:
        return RoundUp(1, self.number, self.round, released=self.released)

    def _hint(self, probe: Probe) -> Hint:
        said = self.hint(self.requests[probe.request])
        endpoint, window = said if isinstance(said, tuple) else (said, "attention")
        return Hint(probe.request, probe.attempt, endpoint, window)

    def _vote(self, ask: Install | Trim) -> Vote:
        return self.vote(self.requests[ask.request], ask) or committed(ask)


class Script:
    """The group. Nothing happens but what the test calls."""

    def __init__(
        self,
        ranks: int = 2,
        *,
        windows: Sequence[tuple[str, ...]] = (),
        pages: Sequence[int] = (),
        slots: int = 64,
        block: int = BLOCK,
        wave_tokens: int = 0,
        ageing_s: float = 10.0,
        **config: float | str,
    ) -> None:
        kinds = windows or [("attention",)] * ranks
        sizes = pages or [1000] * len(kinds)
        self.ranks = [Rank(i, kind, size, slots) for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True))]
        self.config = AdmissionConfig.model_validate({"snapshot_interval": 16 * block, **config})
        self.keys = BlockKeys(block)
        hellos = [rank.hello() for rank in self.ranks]
        self.leader = Leader(self.config, 1, hellos, block, wave_tokens, self.keys, Ageing(ageing_s).urgency)
        self.now = 0.0
        self.sent: list[RoundDown] = []
        self.admitted: dict[str, Admitted] = {}
        self.completed: dict[str, Completed] = {}
        self.ended: dict[str, Ended] = {}
        self.progress: list[Progressed] = []
        self.stops: list[int] = []

    # What was said.

    @property
    def installs(self) -> list[Install]:
        return [install for down in self.sent for install in down.installs]

    def said(self, name: str) -> list[Probe | Verdict | Install | Trim | Cancel]:
        """Everything that was said of the request, in the order in which ranks apply it."""
        id_ = self.id(name)
        return [
            message
            for down in self.sent
            for kind in (down.probes, down.verdicts, down.installs, down.trims, down.cancels)
            for message in kind
            if message.request == id_
        ]

    def id(self, name: str) -> int:
        return next(request.id for rank in self.ranks for request in rank.requests.values() if request.name == name)

    # What happens.

    def submit(
        self,
        name: str,
        tokens: Sequence[int],
        ttl_s: float = 120.0,
        *,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Refusal | None:
        wishes = {"priority": priority, "deadline": deadline}
        handle = f"handle-{name}"
        refusal = self.leader.submit(name, prompt(tokens), Sampling(), "", "", ttl_s, handle, self.now, **wishes)
        self.carry_out()
        return refusal

    def cancel(self, name: str) -> None:
        self.leader.cancel(name, self.now)
        self.carry_out()

    def stopped(self, name: str, after_wave: int = -1) -> None:
        self.leader.on_stopped(self.id(name), after_wave, self.now)
        self.carry_out()

    def publish(self, name: str, computed: int) -> None:
        self.leader.on_published(self.id(name), computed, self.now)
        self.carry_out()

    def token(self, name: str, error: str = "") -> None:
        self.leader.on_first_token(FirstToken(self.id(name), 7, -0.5, error=error), self.now)
        self.carry_out()

    def finish(self, name: str) -> None:
        self.publish(name, self.admitted[name].num_tokens)
        self.token(name)

    def release(self, name: str) -> str:
        error = self.leader.release_handle(f"handle-{name}", self.now)
        self.carry_out()
        return error

    def grow(self, *ranks: int) -> None:
        """Capacity of these ranks has grown, and they say so."""
        for number in ranks:
            self.ranks[number].released += 1
            self.hear(self.ranks[number].report())

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.leader.tick(self.now)
        self.carry_out()

    def broadcast(self) -> RoundDown | None:
        down = self.leader.next_round(self.now)
        if down is not None:
            self.sent.append(down)
            for rank in self.ranks:
                rank.rounds.append(down)
        return down

    def hear(self, up: RoundUp) -> None:
        self.leader.on_round_up(up, self.now)
        self.carry_out()

    def step(self) -> bool:
        """One round to every rank and all answers back; False when there was nothing to say."""
        if self.broadcast() is None:
            return False
        for rank in self.ranks:
            while rank.rounds:
                self.hear(rank.answer())
        return True

    def rounds(self) -> int:
        """Rounds until nothing more is said; how many there were."""
        count = 0
        while self.step():
            count += 1
            assert count < 1000, "the rounds do not end"
        return count

    def carry_out(self) -> None:
        for effect in self.leader.take_effects():
            match effect:
                case Admitted():
                    assert effect.request.name not in self.admitted, "admitted twice"
                    self.admitted[effect.request.name] = effect
                case StopPlanning():
                    self.stops.append(effect.request)
                case Completed():
                    self.completed[effect.name] = effect
                case Ended():
                    self.ended[effect.name] = effect
                case Progressed():
                    self.progress.append(effect)
