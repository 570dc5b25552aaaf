"""How the stage group runs: its size, its device, its time limits."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class EngineConfig(BaseModel):
    """Owned by the supervisor; every stage gets the same copy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pp: int = Field(default=2, ge=1, le=64, description="pipeline stages, one process each")
    device: Literal["auto", "cpu", "cuda", "emulated"] = Field(
        default="auto",
        description="where the stages compute; auto is cpu while there are no kernels for cuda; emulated stages do all "
        "but that, and take the time that stage_profile says",
    )
    emulation_speed: float = Field(
        default=1.0, ge=0.01, le=100, description="how many times faster than modelled the emulated stages run"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="weights and attention caches; auto is float32 on cpu, else bfloat16"
    )
    max_model_len: int | None = Field(
        default=None, ge=1, le=16_777_216, description="longest prompt in tokens; the model's own limit when not given"
    )
    partition: str | None = Field(
        default=None,
        description="layers of each stage: even; balanced, by what stage_profile or the model's description says that "
        "layers take; or by hand, as 0-3,4-11 (inclusive); even when not given",
    )
    threads_per_stage: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="CPU threads a stage computes with; the cores shared out when not given",
    )
    switch_interval_s: float = Field(
        default=0.0005,
        ge=0.00001,
        le=1,
        description="how long a stage's thread may keep Python's interpreter while another one waits for it: admission "
        "must not wait for the executor's steps, nor the executor long for admission's",
    )
    host_batch_pages: int = Field(
        default=64, ge=1, le=1_000_000, description="most pages or states brought from the host tier between two waves"
    )
    start_timeout_s: float = Field(
        default=600.0, gt=0, le=86_400, description="longest wait for all stages to be ready"
    )
    stop_timeout_s: float = Field(
        default=10.0, gt=0, le=3_600, description="longest wait for a stage to leave when asked"
    )
    max_failures: int = Field(
        default=5, ge=0, le=1_000_000, description="failed epochs within failure_window_s before serving is given up"
    )
    failure_window_s: float = Field(
        default=120.0, gt=0, le=86_400, description="how long a failed epoch is held against us"
    )
    max_frame_bytes: int = Field(
        default=268_435_456, ge=65_536, le=2**33, description="largest control frame taken from another process"
    )
    trace: str | None = Field(
        default=None, description="write Chrome trace events of every thread and rank to this file"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least severity to log")

    @model_validator(mode="after")
    def _partition_is_for_us(self) -> Self:
        if self.partition is None or self.partition in ("even", "balanced"):
            return self
        if len(self.partition.split(",")) != self.pp:
            raise ValueError(f"partition names {len(self.partition.split(','))} stages, but pp is {self.pp}")
        return self

    def resolved_device(self) -> Literal["cpu", "cuda", "emulated"]:
        return "cpu" if self.device == "auto" else self.device

    def resolved_dtype(self) -> Literal["float32", "bfloat16"]:
        if self.dtype != "auto":
            return self.dtype
        return "float32" if self.resolved_device() == "cpu" else "bfloat16"

    def resolved_threads(self) -> int:
        return self.threads_per_stage or max(1, (os.cpu_count() or 1) // self.pp)
