"""Everything a stage process must be told to take its place, as one JSON document."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ..admission.config import AdmissionConfig
from ..cache.config import CacheConfig
from ..scheduler.config import SchedulerConfig
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
