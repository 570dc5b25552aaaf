"""Rotary position embedding parameters, from either of the two forms that config.json has used."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .errors import UnsupportedModelError
from .hf_config import RawConfig


class Llama3Scaling(BaseModel):
    """Frequency-dependent scaling of Llama 3.1."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["llama3"] = "llama3"
    factor: float = Field(ge=1, description="divisor of the low frequencies")
    low_freq_factor: float = Field(gt=0, description="wavelengths above original_context / this are divided")
    high_freq_factor: float = Field(gt=0, description="wavelengths below original_context / this are kept")
    original_context: int = Field(ge=1, description="context of the pretraining, tokens")


class LinearScaling(BaseModel):
    """Position interpolation: every position divided by one factor."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["linear"] = "linear"
    factor: float = Field(ge=1, description="divisor of all frequencies")


class RopeConfig(BaseModel):
    """Rotate-half rotary embedding over the whole head."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    theta: float = Field(gt=0, description="base of the wavelengths")
    scaling: Llama3Scaling | LinearScaling | None = Field(default=None, discriminator="kind")


def parse_rope(raw: RawConfig, default_theta: float = 10000.0) -> RopeConfig:
    """From `rope_parameters`, or `rope_theta` with `rope_scaling`. Raises UnsupportedModelError for another type."""
    section = raw.section("rope_parameters") if raw.get("rope_parameters") else raw.section("rope_scaling")
    theta = section.number("rope_theta", raw.number("rope_theta", default_theta))
    for where in (raw, section):
        if where.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"{where.source}: partial rotary embedding is not supported")
    kind = section.get("rope_type", section.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=LinearScaling(factor=section.number("factor")))
    if kind == "llama3":
        original = raw.integer("original_max_position_embeddings", raw.integer("max_position_embeddings"))
        scaling = Llama3Scaling(
            factor=section.number("factor"),
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
            original_context=section.integer("original_max_position_embeddings", original),
        )
        return RopeConfig(theta=theta, scaling=scaling)
    raise UnsupportedModelError(
        f"{section.source}: rope type {kind!r} is not supported; supported: default, linear, llama3"
    )
