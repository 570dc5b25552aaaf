"""How long a wave takes on a stage."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .span import Span, WavePlan


class StageProfile(BaseModel):
    """The time of a wave on a stage of average size, in seconds:

        wave_s + max(weight_s, token_s · tokens) + context_s · pairs

    where a pair is a token and one before it in its prompt. `weight_s` is what reading the stage's weights takes, which
    is paid once a wave however few its tokens. On its way from one stage to the next a wave takes
    hop_s + hop_token_s · tokens more, while both stages may do other work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="custom", description="what reports call it")
    wave_s: float = Field(ge=0, le=60, description="launching a wave, whatever it carries")
    weight_s: float = Field(default=0.0, ge=0, le=60, description="reading the stage's weights: bytes over bandwidth")
    token_s: float = Field(gt=0, le=1, description="each token, beside what it attends to")
    context_s: float = Field(default=0.0, ge=0, le=1, description="each pair of a token and one before it")
    hop_s: float = Field(default=0.0, ge=0, le=60, description="a wave's way to the next stage")
    hop_token_s: float = Field(default=0.0, ge=0, le=1, description="each token's way to the next stage")
    stages: int = Field(
        default=0,
        ge=0,
        le=1_024,
        description="how many stages the model was divided into for these times; with another number of them they are "
        "taken to change as the layers of a stage do; 0: times are for whatever number there is",
    )
    layers: tuple[float, ...] = Field(
        default=(), description="what each layer of the model takes, of any scale, for a partition that is balanced"
    )
    entry: float = Field(default=0.0, ge=0, description="what the embedding adds to the first stage, in layers' units")
    exit: float = Field(default=0.0, ge=0, description="what the head adds to the last stage, in layers' units")
    partition: str = Field(
        default="", description="the balanced one by these layers over so many stages, for people: it follows from them"
    )
    shares: tuple[float, ...] = Field(
        default=(), description="how the stages' times compare, one number a stage of any scale; empty: all alike"
    )

    @model_validator(mode="after")
    def _parts_are_positive(self) -> Self:
        for name in ("shares", "layers"):
            if any(value <= 0 for value in getattr(self, name)):
                raise ValueError(f"{name} must all be above 0")
        return self

    def __str__(self) -> str:
        return self.name

    def at(self, num_stages: int) -> Self:
        """The profile of one of so many stages. What a hop takes stays; shares are for one number of stages only."""
        if self.stages in (0, num_stages):
            return self
        part = self.stages / num_stages
        scaled = {name: part * getattr(self, name) for name in ("wave_s", "weight_s", "token_s", "context_s")}
        return self.model_copy(update={**scaled, "stages": num_stages})

    def slowed(self, num_stages: int, stage: int, factor: float) -> Self:
        """The same with one stage that takes `factor` times as long, and all others as long as before."""
        factors = self.factors(num_stages)
        factors[stage] *= factor
        average = sum(factors) / num_stages
        times = {name: average * getattr(self, name) for name in ("wave_s", "weight_s", "token_s", "context_s")}
        return self.model_copy(update={**times, "shares": tuple(factors)})

    def factors(self, num_stages: int) -> list[float]:
        """Each stage's time as a multiple of the average. Raises `ValueError` where the shares are for another P."""
        if not self.shares:
            return [1.0] * num_stages
        if len(self.shares) != num_stages:
            raise ValueError(f"profile {self.name} has shares for {len(self.shares)} stages, not {num_stages}")
        return [share * num_stages / sum(self.shares) for share in self.shares]

    def wave(self, tokens: int, pairs: float) -> float:
        """Seconds of a wave on an average stage."""
        return self.wave_s + max(self.weight_s, self.token_s * tokens) + self.context_s * pairs

    def work(self, start: int, end: int) -> float:
        """Seconds that the tokens [start, end) of a prompt add to a wave."""
        return self.token_s * (end - start) + self.context_s * pairs_of(start, end - start)

    def tokens_of(self, start: int, work: float) -> float:
        """How many tokens from `start` on make so much work: the inverse of `work`."""
        first, bend = self.token_s + self.context_s * (start - 0.5), self.context_s / 2
        return 2 * work / (first + math.sqrt(first * first + 4 * bend * work))

    def hop(self, tokens: float) -> float:
        """Seconds from one stage to the next."""
        return self.hop_s + self.hop_token_s * tokens


def pairs_of(start: int, length: int) -> float:
    """Pairs of a token of [start, start + length) and one before it in its prompt."""
    return length * (start + (length - 1) / 2)


def load_of(spans: Iterable[Span]) -> tuple[int, float]:
    """Tokens and pairs."""
    tokens, pairs = 0, 0.0
    for span in spans:
        tokens += span.length
        pairs += pairs_of(span.start, span.length)
    return tokens, pairs


class StageCosts:
    """A profile, and what the stages turned out to need. Owner: the planner.

    Every stage has a factor: its time as a multiple of the profile's. It begins as the profile's share; the first
    observation replaces it, and each later one moves it by `smoothing` of the difference."""

    def __init__(self, profile: StageProfile, num_stages: int, smoothing: float = 0.125) -> None:
        """Raises `ValueError` where the profile's shares are for another number of stages."""
        self.profile = profile = profile.at(num_stages)
        self._factors = profile.factors(num_stages)
        self._observed = [False] * num_stages
        self._smoothing = smoothing
        self._expected: OrderedDict[int, float] = OrderedDict()
        """By wave, the seconds that the profile says, of the waves that may still be observed."""
        self._keep = 4 * num_stages
        self._sum_up()

    @property
    def factors(self) -> tuple[float, ...]:
        return tuple(self._factors)

    @property
    def slowest(self) -> float:
        """The factor of the stage that sets the pace."""
        return self._slowest

    @property
    def transit(self) -> float:
        """The factors of all other stages, in units of the slowest one's: P − 1 where all are alike."""
        return self._transit

    def launched(self, plan: WavePlan) -> None:
        """Remembers what the wave should take, for `observe`. Keeps the last 4P waves, twice what a ring holds."""
        self._expected[plan.wave] = self.profile.wave(*load_of(plan.spans))
        if len(self._expected) > self._keep:
            self._expected.popitem(last=False)

    def observe(self, stage: int, wave: int, seconds: float) -> None:
        """The wave took so long on the stage. One that is not remembered is ignored, and so is a time that is not
        above zero."""
        expected = self._expected.get(wave, 0.0)
        if expected <= 0 or seconds <= 0:
            return
        weight = self._smoothing if self._observed[stage] else 1.0
        self._observed[stage] = True
        self._factors[stage] += weight * (seconds / expected - self._factors[stage])
        self._sum_up()

    def least_s(self, start: int, end: int) -> float:
        """No prompt's tokens [start, end) leave an idle pipeline sooner: their work on the slowest stage, and one
        wave's launch on every stage."""
        return self._slowest * self.profile.work(start, end) + self._launches

    def _sum_up(self) -> None:
        self._slowest = max(self._factors)
        self._launches = sum(self._factors) * self.profile.wave_s
        self._transit = (sum(self._factors) - self._slowest) / self._slowest
