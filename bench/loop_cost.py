"""What admission costs LOOP: a real stage runs waves while WAVE admits 64 requests with long prompts.

Beside it the same requests are replayed, all of them admitted before LOOP begins, and run under lockstep admission.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec

from ..admission.config import AdmissionConfig
from ..cache.config import CacheConfig
from ..cache.keys import KeySpace
from ..cache.stage_cache import StageCache
from ..engine.config import EngineConfig
from ..engine.messages import Finished, RequestFailed, Submit
from ..engine.settings import GroupSettings
from ..models.demo.resolve import resolve_model
from ..scheduler.config import SchedulerConfig
from .figure import Figure
from .full_cache import BLOCK, INTERVAL, Requests, snapshots_of
from .loop_stage import LoopStage, Mark, StageParts

Way = Literal["lease", "replay", "lockstep"]


@dataclass(frozen=True, slots=True)
class Load:
    """`cached` tokens of every prompt are cached, and `suffix` are not. `early` requests are admitted before anything
    is timed, so that LOOP has something to run; `late` ones come at once when LOOP begins."""

    cached: int = 65_536
    suffix: int = 16
    early: int = 8
    late: int = 64
    families: int = 4
    wave_tokens: int = 64
    model: str = "demo-hybrid"

    @property
    def requests(self) -> int:
        return self.early + self.late


@dataclass(frozen=True, slots=True)
class LoopRun:
    """`tokens_s`: computed tokens a second, from the beginning of the first wave to the end of the last.

    `admitting`: the share of LOOP's time that it waited for the cache's mutex, was inside the mailbox or, in lockstep,
    applied rounds; time with nothing to do is left out. `admitting_at_first`: the same up to the wave in which the last
    request was admitted, `admit_s` after the beginning. `mutex_ms`: the wait for the mutex in all. `cpu_s`: LOOP's
    processor time, which other programs of the machine leave alone, but which does not see LOOP wait for Python."""

    tokens_s: float
    admitting: float
    admitting_at_first: float
    mutex_ms: float
    cpu_s: float
    admit_s: float
    waves: int
    late: int


class LoopBench:
    """Makes stages and runs the load through them. Not for use while anything else runs in this process."""

    def __init__(self, load: Load) -> None:
        self._load = load
        folder = resolve_model(load.model)
        settings = GroupSettings(
            model=folder,
            model_name=load.model,
            engine=EngineConfig(pp=1, threads_per_stage=1),
            cache=CacheConfig(block_size=BLOCK),
            scheduler=SchedulerConfig(max_wave_tokens=load.wave_tokens, min_wave_tokens=load.wave_tokens),
        )
        self._settings = {
            policy: settings.model_copy(
                update={"admission": AdmissionConfig(admission=policy, snapshot_interval=INTERVAL)}
            )
            for policy in ("lease", "lockstep")
        }
        blocks = load.families * load.cached // BLOCK
        slots = load.families * len(snapshots_of(load.cached + 1))
        # Every suffix fits beside the cached prefixes, whatever the limiter keeps in reserve.
        pages = 2 * (blocks + load.requests * (load.suffix // BLOCK + 1))
        self._parts = StageParts(folder, settings, pages, slots + 4 * load.requests)
        rng = random.Random(0)
        vocabulary = self._parts.model.spec.vocab_size
        self._families = [_tokens(rng, load.cached, vocabulary) for _ in range(load.families)]
        self._frames = [
            self._submission(number, _tokens(rng, load.suffix, vocabulary)) for number in range(load.requests)
        ]

    def run(self, way: Way, switch_interval_s: float) -> LoopRun:
        with _switch_interval(switch_interval_s):
            return self._run(way)

    def _run(self, way: Way) -> LoopRun:
        load = self._load
        early, late = self._frames[: load.early], self._frames[load.early :]
        group = self._settings["lockstep" if way == "lockstep" else "lease"]
        with LoopStage(self._parts, group, self._fill) as stage:
            if way == "lease":
                stage.submit(early)
                stage.await_admitted(load.early)
                stage.gate.set()
                stage.submit(late)
            elif way == "replay":
                stage.submit(early + late)
                stage.await_admitted(load.requests)
                stage.gate.set()
            else:  # Only LOOP can admit.
                stage.gate.set()
                stage.submit(early + late)
            stage.await_finished(load.requests)
            self._check(stage)
            return self._figures(stage)

    def _fill(self, cache: StageCache) -> None:
        """The families' prefixes, as if they had been computed: what is in their pages makes no difference to time."""
        load = self._load
        space, requests = KeySpace(self._parts.model.spec.fingerprint), Requests(cache)
        for tokens in self._families:
            requests.run(space.block_keys(tokens, BLOCK), load.cached + 1, snapshots_of(load.cached + 1))

    def _submission(self, number: int, suffix: bytes) -> bytes:
        tokens = self._families[number % self._load.families] + suffix
        return msgspec.msgpack.encode(Submit(f"request {number}", tokens, 3_600.0))

    def _check(self, stage: LoopStage) -> None:
        said = stage.said()
        finished = [message for message in said if isinstance(message, Finished)]
        failed = [message for message in said if isinstance(message, RequestFailed)]
        if failed or len(finished) != self._load.requests:
            raise RuntimeError(f"{len(finished)} of {self._load.requests} requests finished: {failed[:1]}")
        if any(message.cached_tokens != self._load.cached for message in finished):
            raise RuntimeError("some request was admitted with less than its cached prefix")

    def _figures(self, stage: LoopStage) -> LoopRun:
        marks, admitted = stage.clock.marks, stage.clock.admitted.times[-1]
        first, last = marks[0], marks[-1]
        at_work = next((mark for mark in marks if mark.at >= admitted), last)
        return LoopRun(
            tokens_s=self._load.requests * self._load.suffix / (last.at - first.at),
            admitting=_admitting(first, last),
            admitting_at_first=_admitting(first, at_work) if at_work is not first else 0.0,
            mutex_ms=(last.mutex_s - first.mutex_s) * 1e3,
            cpu_s=last.cpu_s - first.cpu_s,
            admit_s=max(0.0, admitted - first.at),
            waves=len(marks) - 1,
            late=self._load.late,
        )


class Ways:
    """All ways at one switch interval, run in turn, and compared run by run: the machine is not equally fast for
    long."""

    def __init__(self, bench: LoopBench, interval_s: float) -> None:
        self._bench, self.interval_s = bench, interval_s
        self._runs: dict[Way, list[LoopRun]] = {"lease": [], "replay": [], "lockstep": []}

    def measure(self, backwards: bool) -> str:
        """One more run of each, and how fast they were."""
        for way in reversed(self._runs) if backwards else self._runs:
            self._runs[way].append(self._bench.run(way, self.interval_s))
        return ", ".join(
            f"{way} {runs[-1].tokens_s:.1f} tokens/s ({runs[-1].cpu_s:.2f} s of processor time)"
            for way, runs in self._runs.items()
        )

    def figures(self, key: bool) -> list[Figure]:
        lease, lockstep = self._runs["lease"], self._runs["lockstep"]
        at = f"LOOP, switch interval {self.interval_s * 1e3:g} ms"

        def medians(of: Callable[[LoopRun], float]) -> tuple[float, float]:
            return statistics.median(map(of, lease)), statistics.median(map(of, lockstep))

        return [
            Figure(
                f"{at}: on admission",
                "%",
                *medians(lambda run: run.admitting * 100),
                1,
                key="loop_admitting_percent" * key,
            ),
            Figure(f"{at}: on admission, until all are in", "%", *medians(lambda run: run.admitting_at_first * 100)),
            Figure(
                f"{at}: throughput, of the replay's",
                "%",
                *self._of_replay(lambda run: run.tokens_s),
                98,
                True,
                "loop_throughput_percent" * key,
            ),
            Figure(f"{at}: processor time, of the replay's", "%", *self._of_replay(lambda run: run.cpu_s)),
            Figure(f"{at}: waiting for the mutex", "ms", *medians(lambda run: run.mutex_ms)),
            Figure(f"{at}: throughput", "tokens/s", *medians(lambda run: run.tokens_s), None, True),
            Figure(f"{at}: {lease[0].late} requests admitted after", "s", *medians(lambda run: run.admit_s)),
        ]

    def _of_replay(self, of: Callable[[LoopRun], float]) -> tuple[float, float]:
        """Of lease and of lockstep, in percent."""
        replays = self._runs["replay"]
        ours, naive = (
            statistics.median(of(run) / of(replay) for run, replay in zip(runs, replays, strict=True)) * 100
            for runs in (self._runs["lease"], self._runs["lockstep"])
        )
        return ours, naive


def _admitting(first: Mark, last: Mark) -> float:
    spent = last.mutex_s - first.mutex_s + last.mailbox_s - first.mailbox_s + last.rounds_s - first.rounds_s
    return spent / (last.at - first.at - (last.idle_s - first.idle_s))


def _tokens(rng: random.Random, length: int, vocabulary: int) -> bytes:
    return b"".join(rng.randrange(3, vocabulary).to_bytes(4, "little") for _ in range(length))


@contextmanager
def _switch_interval(seconds: float) -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
