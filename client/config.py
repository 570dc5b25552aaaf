"""How the reference decoder computes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DecoderConfig(BaseModel):
    """Owned by the decoder. `dtype` must be that of the server's stages: state is never converted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where the decoder computes")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="weights and state; as on the server")
    block_size: int = Field(default=64, ge=1, le=1024, description="tokens in a block of the decoder's own storage")
    capacity_tokens: int = Field(
        default=16_384, ge=1, le=16_777_216, description="tokens of state, of all prompts together"
    )
    max_states: int = Field(default=4, ge=1, le=4_096, description="prompts whose state is held at once")
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads to compute with; torch's choice if not given"
    )


class DecodeConfig(BaseModel):
    """Owned by the decode worker: whom it asks, and what it does when a job does not say. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(default="http://127.0.0.1:8000", min_length=1, description="the prefill server")
    api_key: str | None = Field(default=None, min_length=1, repr=False, description="key that the server asks for")
    max_tokens: int = Field(
        default=64, ge=1, le=16_777_216, description="most tokens to decode, the first one included"
    )
    temperature: float = Field(default=0.0, ge=0, le=100, description="0 is greedy")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the sampling when temperature is not 0")
    ignore_eos: bool = Field(default=False, description="decode on after an end-of-sequence token")
    keep: bool = Field(default=False, description="leave the handle alive instead of releasing it")
    pull_timeout_s: float = Field(default=60.0, gt=0, le=86_400, description="longest time that a pull may take")
    http_timeout_s: float = Field(default=600.0, gt=0, le=86_400, description="longest wait for the server's answer")
