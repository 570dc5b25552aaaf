"""How a stage serves pulls of finished state."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_WILDCARDS = ("0.0.0.0", "::", "*")


class TransferConfig(BaseModel):
    """Owned by the transfer thread of each stage. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1, description="address on which a stage listens for pulls")
    port: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="port for pulls of rank 0, the next ones for the other ranks; 0 takes any free ones",
    )
    advertise_host: str = Field(default="", description="host that pullers are told to connect to; host when empty")
    pull_timeout_s: float = Field(
        default=60.0, gt=0, le=86_400, description="longest life of one pull, from OPEN to COMPLETE"
    )
    open_wait_s: float = Field(
        default=30.0, ge=0, le=86_400, description="longest wait of an OPEN for an unfinished prefill"
    )
    max_open_pulls: int = Field(
        default=256, ge=1, le=1_000_000, description="pulls that may be open or waiting on a stage"
    )
    max_blocks_per_read: int = Field(default=64, ge=1, le=65_536, description="blocks that one READ may ask for")
    max_reads_in_flight: int = Field(
        default=8, ge=1, le=1_024, description="READs of one puller that may be under way at once"
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.host in _WILDCARDS and not self.advertise_host:
            raise ValueError(f"host {self.host} listens everywhere: advertise_host must say where pullers connect to")
        return self

    def of_rank(self, rank: int) -> TransferConfig:
        """Ranks on one host must not share a port. Raises ValueError for a port beyond 65,535."""
        if not self.port or not rank:
            return self
        return TransferConfig.model_validate(self.model_dump() | {"port": self.port + rank})
