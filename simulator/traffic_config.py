"""What is sent, and at what pace: to a live server and to a simulated one alike."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .workloads import named


class TrafficConfig(BaseModel):
    """A named workload, from clients that never rest or as a stream of arrivals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: str = Field(default="reuse-131k", description="what is sent, by name")
    concurrency: int = Field(default=8, ge=1, le=4_096, description="clients, each with one request at a time")
    rate: float | None = Field(
        default=None, gt=0, le=10_000, description="requests a second, whatever has completed, instead of clients"
    )
    requests: int | None = Field(
        default=None, ge=1, le=1_000_000, description="how many; eight a client if unset, and 64 at least"
    )
    scale: float = Field(default=1.0, ge=1, le=1_000_000, description="divide the workload's lengths by this")
    prefixes: int | None = Field(
        default=None, ge=1, le=1_000_000, description="distinct prefixes of warm requests; one a client if unset"
    )
    shuffle: int | None = Field(default=None, ge=0, description="draw the order of a mixture by this seed")
    seed: int = Field(default=0, ge=0, description="of prompts and arrivals, and of whatever else is drawn")

    @field_validator("workload")
    @classmethod
    def _is_named(cls, name: str) -> str:
        return named(name).name

    @property
    def count(self) -> int:
        return self.requests or max(64, 8 * self.concurrency)

    @property
    def num_prefixes(self) -> int:
        return self.prefixes or self.concurrency
