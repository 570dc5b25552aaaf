"""How requests are admitted: the policy, its bounds, and the time limits of rounds and handles."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class AdmissionConfig(BaseModel):
    """The same on every rank; only rank 0's leader acts on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    admission: Literal["lockstep", "lease"] = Field(
        default="lease",
        description="how ranks agree; lockstep walks twice, between waves, and admits one request at a time",
    )
    max_batch: int = Field(default=128, ge=1, le=65_536, description="most requests admitted and not finished at once")
    max_queue: int = Field(
        default=4096, ge=1, le=1_000_000, description="most requests waiting; beyond it they are refused"
    )
    headroom: float = Field(
        default=1.0,
        ge=0,
        le=1_000,
        description="cache that admission keeps in reserve, in fills of the ring (2PM tokens); at most half of it",
    )
    herd_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=3_600,
        description="longest that a request waits for another one that is computing its prefix; 0 lets none wait",
    )
    herd_min_tokens: int = Field(
        default=1, ge=1, le=16_777_216, description="least tokens of prefix that are worth such a wait"
    )
    fork_memory_blocks: int = Field(
        default=262_144,
        ge=0,
        le=100_000_000,
        description="blocks of recent prompts remembered, to take recurrent snapshots where prompts part; 0 for none",
    )
    snapshot_interval: int = Field(
        default=8192,
        ge=1,
        le=16_777_216,
        description="tokens between recurrent snapshots of a prompt; a multiple of the block",
    )
    max_snapshots_per_request: int = Field(
        default=32,
        ge=0,
        le=65_536,
        description="most recurrent snapshots of one prompt; the interval doubles until it fits",
    )
    default_ttl_s: float = Field(
        default=120.0, gt=0, le=86_400, description="life of a handle when the request names none"
    )
    max_ttl_s: float = Field(
        default=3600.0, gt=0, le=604_800, description="longest life of a handle that may be asked for"
    )
    max_tombstones: int = Field(
        default=65_536,
        ge=0,
        le=10_000_000,
        description="ended handles remembered, to tell expired ones from unknown ones",
    )
    round_interval_s: float = Field(
        default=1.0, gt=0, le=3_600, description="time between rounds when there is nothing to say"
    )
    busy_round_interval_s: float = Field(
        default=0.05,
        gt=0,
        le=3_600,
        description="time to the first repeat of a round that ranks have not answered; doubles to round_interval_s",
    )
    wave_timeout_s: float = Field(
        default=600.0, gt=0, le=86_400, description="longest that one wave may take on a stage"
    )
    rank_silence_s: float = Field(
        default=30.0, gt=0, le=3_600, description="longest that a rank may owe an answer; under lockstep, between waves"
    )

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> Self:
        if self.default_ttl_s > self.max_ttl_s:
            raise ValueError(f"default_ttl_s {self.default_ttl_s} is above max_ttl_s {self.max_ttl_s}")
        if self.rank_silence_s <= self.round_interval_s:
            raise ValueError(f"rank_silence_s must be above round_interval_s {self.round_interval_s}")
        if self.busy_round_interval_s > self.round_interval_s:
            raise ValueError(f"busy_round_interval_s must not be above round_interval_s {self.round_interval_s}")
        return self
