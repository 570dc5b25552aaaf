"""What agreeing on requests costs a group of eight ranks: rounds of eight processes on this machine's cores."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..admission.config import AdmissionConfig
from ..admission.effects import Admitted
from ..admission.leader import Leader
from ..admission.messages import Cancel, Install, Probe, RoundDown, RoundUp, Verdict
from ..admission.prompt_keys import PromptKeys
from ..admission.request import Sampling
from ..cache.keys import KeySpace
from .full_cache import BLOCK, INTERVAL, snapshots_of
from .round_group import EPOCH, Prompts, RoundGroup

RANKS = 8
PROMPT_TOKENS = 4_096
WAVE_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Medians in milliseconds. `leased` is the round that admits a request whose hints are in: it carries the verdict
    on the one before it, too, and probes the next. `lockstep` is both rounds that admit one request after the other.
    `empty` says nothing: what the processes and sockets cost alone."""

    leased: float
    lockstep: float
    empty: float


@dataclass(frozen=True, slots=True)
class Admission:
    """Of many requests that came at once: milliseconds to the last one's admission, and rounds that it took."""

    ms: float
    rounds: int


def round_times(repeats: int) -> RoundTimes:
    prompts = Prompts(PROMPT_TOKENS)
    empty, leased, lockstep = [], [], []
    with RoundGroup(RANKS, prompts, running=4, lockstep=False) as group:
        rounds = _Rounds(group, prompts)
        empty = [rounds.say() for _ in range(2 * repeats)][repeats:]
        rounds.announce(1, 2)
        rounds.say(probes=[1])
        rounds.say(installs=[1], probes=[2])
        for request in range(2, repeats + 2):
            rounds.announce(request + 1)
            leased.append(rounds.say(verdicts=[request - 1], installs=[request], probes=[request + 1]))
            rounds.end(request - 1)
    with RoundGroup(RANKS, prompts, running=4, lockstep=True) as group:
        rounds = _Rounds(group, prompts)
        rounds.announce(1)
        rounds.say(probes=[1])
        rounds.say(installs=[1])
        for request in range(2, repeats + 2):
            rounds.announce(request)
            lockstep.append(rounds.say(verdicts=[request - 1], probes=[request]) + rounds.say(installs=[request]))
            rounds.end(request - 1)
    return RoundTimes(*(statistics.median(times) * 1e3 for times in (leased, lockstep, empty)))


def admission(requests: int, lockstep: bool) -> Admission:
    """The real leader admits that many, submitted at once, among eight ranks that do nothing else."""
    prompts = Prompts(PROMPT_TOKENS)
    with RoundGroup(RANKS, prompts, requests, lockstep) as group:
        config = AdmissionConfig(admission="lockstep" if lockstep else "lease", snapshot_interval=INTERVAL)
        leader = Leader(config, EPOCH, group.hellos, BLOCK, WAVE_TOKENS, PromptKeys(KeySpace("model"), BLOCK))
        waiting = [prompts.request(number) for number in range(1, requests + 1)]
        rounds = admitted = 0
        begun = time.perf_counter()
        for request in waiting:
            refusal = leader.submit(request.name, request.tokens, Sampling(), "", "", 60, request.handle, begun)
            assert refusal is None, refusal
        while admitted < requests:
            down = leader.next_round(time.perf_counter())
            if down is None:
                raise RuntimeError(f"{admitted} of {requests} requests were admitted, and no more will be")
            rounds += 1
            for up in group.round(down):
                leader.on_round_up(up, time.perf_counter())
            admitted += sum(isinstance(effect, Admitted) for effect in leader.take_effects())
        return Admission((time.perf_counter() - begun) * 1e3, rounds)


class _Rounds:
    """Numbers the rounds of one group, times them, and checks what the ranks answer."""

    def __init__(self, group: RoundGroup, prompts: Prompts) -> None:
        self._group, self._prompts = group, prompts
        self._endpoint = prompts.cached_tokens
        self._snapshots = tuple(at for at in snapshots_of(prompts.num_tokens) if at > self._endpoint)
        self._number = 0

    def announce(self, *requests: int) -> None:
        self._hold(RoundDown(EPOCH, self._next(), announces=tuple(map(self._prompts.request, requests))))

    def end(self, request: int) -> None:
        self._hold(RoundDown(EPOCH, self._next(), cancels=(Cancel(request, -1, f"handle {request}"),)))

    def say(self, probes: Sequence[int] = (), installs: Sequence[int] = (), verdicts: Sequence[int] = ()) -> float:
        """Seconds from the decision to the last answer. Each probe must be answered with the whole cached prefix, each
        install with a commitment to it."""
        down = RoundDown(
            EPOCH,
            self._next(),
            probes=tuple(Probe(request, 0) for request in probes),
            verdicts=tuple(Verdict(request, 1, self._endpoint, True) for request in verdicts),
            installs=tuple(Install(request, 1, self._endpoint, self._snapshots) for request in installs),
        )
        seconds, answers = self._hold(down)
        for up in answers:
            reached = [hint.endpoint for hint in up.hints] + [vote.endpoint for vote in up.votes if vote.committed]
            if reached != [self._endpoint] * (len(probes) + len(installs)):
                raise RuntimeError(f"rank {up.rank} answers {up}")
        return seconds

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _hold(self, down: RoundDown) -> tuple[float, list[RoundUp]]:
        begun = time.perf_counter()
        answers = self._group.round(down)
        return time.perf_counter() - begun, answers
