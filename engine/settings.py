"""Everything a stage process must be told to take its place, as one JSON document."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from ..admission.config import AdmissionConfig
from ..cache.config import CacheConfig
from ..scheduler.config import SchedulerConfig, check_block_alignment
from .config import EngineConfig
from .transfer_config import TransferConfig


class GroupSettings(BaseModel):
    """The same for every rank of a group."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    model_name: str
    engine: EngineConfig = EngineConfig()
    cache: CacheConfig = CacheConfig()
    admission: AdmissionConfig = AdmissionConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    transfer: TransferConfig = TransferConfig()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        check_block_alignment(self.scheduler, self.cache.block_size)
        self.cache.check_ranks(self.engine.pp)
        interval, block = self.admission.snapshot_interval, self.cache.block_size
        if interval % block:
            raise ValueError(f"snapshot_interval must be a multiple of the block size, {block}; it is {interval}")
        return self

    @property
    def emulated(self) -> str:
        """What the stages take instead of computing, for people; empty where they compute."""
        if self.engine.device != "emulated":
            return ""
        speed = self.engine.emulation_speed
        pace = "" if speed == 1 else f", {speed:g} times as fast"
        return f"the forward passes alone, which take what the profile {self.scheduler.profile} says{pace}"

    def digest(self) -> str:
        """What all ranks must agree on; where each finds the model on its disk is its own affair."""
        text = self.model_dump_json(exclude={"model": True, "transfer": True, "engine": {"trace", "log_level"}})
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class StageSettings(BaseModel):
    """One rank of one epoch. `leader` is the ZMQ endpoint of the rounds plane, which rank 0 binds; `front_end`
    is where rank 0 reports (empty: nowhere), and `submit` the endpoint it binds for submissions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: GroupSettings
    rank: int
    leader: str
    epoch: int = 1
    front_end: str = ""
    submit: str = ""
    host: str = "127.0.0.1"
