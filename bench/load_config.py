"""What `wavepp bench` sends, where to and how."""

from __future__ import annotations

from pydantic import Field

from ..simulator.traffic_config import TrafficConfig


class LoadConfig(TrafficConfig):
    """One run."""

    url: str = Field(default="http://127.0.0.1:8000", min_length=1, description="the prefill server")
    api_key: str | None = Field(default=None, min_length=1, repr=False, description="key that the server asks for")
    vocab_size: int | None = Field(
        default=None, ge=2, description="token ids to draw from; all of the server's if unset"
    )
    timeout_s: float = Field(default=600.0, gt=0, le=86_400, description="longest wait for an answer")
