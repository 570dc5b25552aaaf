"""How waves are planned: the budgets, the limits, and the policy that chooses between them."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SchedulerConfig(BaseModel):
    """Tokens are counted a wave. `max_wave_tokens` is M and `min_wave_tokens` is b_min of the paper (eq. 6); both
    must be multiples of the block size, which `check_block_alignment` sees to where that size is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Literal["static"] = Field(
        default="static", description="how a wave's budget is chosen; static: always max_wave_tokens"
    )
    max_wave_tokens: int = Field(default=16_384, ge=1, description="the most tokens of one wave (M)")
    min_wave_tokens: int = Field(default=8_192, ge=1, description="the floor of a wave's budget (b_min)")
    max_spans: int = Field(default=128, ge=1, le=512, description="the most spans of one wave")
    avoid_fragments: bool = Field(
        default=False,
        description="leave a wave's last room empty, or to a smaller request, rather than cut from a larger one a "
        "span below max(min_wave_tokens, budget / 2)",
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


def check_block_alignment(config: SchedulerConfig, block_size: int) -> None:
    """Raises `ValueError` unless B ≤ b_min ≤ M and both are multiples of the block size B."""
    for name in ("min_wave_tokens", "max_wave_tokens"):
        value: int = getattr(config, name)
        if value < block_size or value % block_size:
            raise ValueError(f"{name} must be a positive multiple of the block size, {block_size}; it is {value}")
