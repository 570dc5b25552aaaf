"""How waves are planned: the budgets, the limits, and the policy that chooses between them."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .cost_model import StageProfile
from .profiles import KIMI_K3_GB300, Profile


class SchedulerConfig(BaseModel):
    """Tokens are counted a wave. `max_wave_tokens` is M and `min_wave_tokens` is b_min of the paper (eq. 6); both
    must be multiples of the block size, which `check_block_alignment` sees to where that size is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Literal["static", "mpu", "cost"] = Field(
        default="static",
        description="how waves are chosen; static: as many tokens as a wave may have; mpu: fewer when little work is "
        "left, so that every stage has a wave; cost: waves of the time that serves what is admitted best",
    )
    max_wave_tokens: int = Field(default=16_384, ge=1, description="the most tokens of one wave (M)")
    min_wave_tokens: int = Field(default=8_192, ge=1, description="the floor of a wave's budget (b_min)")
    max_spans: int = Field(default=128, ge=1, le=512, description="the most spans of one wave")
    pipeline_fills: int = Field(
        default=2,
        ge=0,
        le=8,
        description="F: mpu aims at R + (F-1)P waves of admitted work, where R = 2P; 0 is one pipeline fill",
    )
    count_in_flight: bool = Field(
        default=True, description="mpu counts the latest chunks in the ring as work, not only what is unscheduled"
    )
    thinning_limit: float = Field(
        default=0.125,
        ge=0,
        le=1,
        description="the most of all work that a smaller mpu budget may newly split, once a larger one gives R waves",
    )
    hysteresis: float = Field(
        default=0.125,
        ge=0,
        lt=1,
        description="mpu lowers its budget only where the present one gives less than 1 - this of the waves aimed at",
    )
    rise_decisions: int | None = Field(
        default=None, ge=1, le=1_024, description="waves in a row that must want mpu's next larger budget; R/2 if unset"
    )
    fall_decisions: int | None = Field(
        default=None, ge=1, le=1_024, description="waves in a row that must want a smaller mpu budget; R if unset"
    )
    avoid_fragments: bool | None = Field(
        default=None,
        description="leave a wave's last room empty, or to a smaller request, rather than cut from a larger one a "
        "span below max(min_wave_tokens, budget / 2); if unset, mpu does and static does not",
    )
    lone_wave_wait: bool | None = Field(
        default=None,
        description="let a last wave below half of max_wave_tokens wait for a request that is being admitted, at most "
        "until the next wave completes; if unset, mpu does",
    )
    stage_profile: Profile | None = Field(
        default=None,
        description="what a wave takes on a stage, for cost and for deadlines: a name, a JSON object, or a file of "
        "it as wavepp profile writes; unless given it is estimated for the model and the device, and is "
        f"{KIMI_K3_GB300} where stages are emulated",
    )
    cost_smoothing: float = Field(
        default=0.125, gt=0, le=1, description="how far one observed stage time moves what is expected of the stage"
    )
    cost_slack_waves: float = Field(
        default=3.0, ge=0, le=64, description="cost aims at so many waves more than fill the pipeline"
    )
    ageing_s: float = Field(
        default=10.0,
        ge=0.001,
        le=86_400,
        description="a request that waited so long is one priority level more urgent, then another, and so on",
    )
    progress_deadline_s: float = Field(
        default=5.0,
        gt=0,
        le=3_600,
        description="the longest that a request is held back for better waves, in seconds",
    )

    @model_validator(mode="after")
    def _floor_below_ceiling(self) -> Self:
        if self.min_wave_tokens > self.max_wave_tokens:
            raise ValueError(
                f"min_wave_tokens ({self.min_wave_tokens}) must be at most max_wave_tokens ({self.max_wave_tokens})"
            )
        return self

    @property
    def profile(self) -> StageProfile:
        """The one that is given, else Kimi K3's: for whoever has no model to estimate one for."""
        return self.stage_profile or KIMI_K3_GB300

    @property
    def fragment_floor(self) -> int | None:
        """b_min where the fragment rule holds, else None."""
        avoids = self.policy == "mpu" if self.avoid_fragments is None else self.avoid_fragments
        return self.min_wave_tokens if avoids else None

    @property
    def lone_waves_wait(self) -> bool:
        return self.policy == "mpu" if self.lone_wave_wait is None else self.lone_wave_wait


def check_block_alignment(config: SchedulerConfig, block_size: int) -> None:
    """Raises `ValueError` unless B ≤ b_min ≤ M and both are multiples of the block size B."""
    for name in ("min_wave_tokens", "max_wave_tokens"):
        value: int = getattr(config, name)
        if value < block_size or value % block_size:
            raise ValueError(f"{name} must be a positive multiple of the block size, {block_size}; it is {value}")
