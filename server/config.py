"""How the front end listens, whom it lets in and how long it waits; and the document that it is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ServerConfig(BaseModel):
    """Owned by the front end process. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65_535, description="port to listen on; 0 takes any free one")
    api_key: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="key that clients must send as a Bearer token; open when not given",
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="name under which the model is served; MODEL when not given",
    )
    max_body_bytes: int = Field(default=16_777_216, ge=1_024, le=2**31 - 1, description="largest request body")
    body_timeout_s: float = Field(
        default=60.0, gt=0, le=86_400, description="longest wait for a request body to arrive"
    )
    max_in_flight: int = Field(default=1_024, ge=1, le=1_000_000, description="prompts in work or waiting; then 429")
    retry_after_s: int = Field(default=1, ge=0, le=3_600, description="Retry-After sent with 429 and 503")
    request_timeout_s: float = Field(
        default=600.0, gt=0, le=86_400, description="longest life of one request; then 504"
    )
    call_timeout_s: float = Field(default=10.0, gt=0, le=3_600, description="longest wait for an answer about a handle")
    scrape_timeout_s: float = Field(default=1.0, gt=0, le=60, description="longest wait of /metrics for fresh numbers")
    stall_timeout_s: float = Field(
        default=120.0, gt=0, le=86_400, description="admitted work without any progress for this long makes /health bad"
    )
    drain_timeout_s: float = Field(
        default=30.0, ge=0, le=86_400, description="longest wait for work in flight at shutdown"
    )
    tokenizer_threads: int = Field(default=2, ge=1, le=256, description="prompts tokenized at once")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="least severity to log")


FRONT_END_ENV = "WAVEPP_FRONT_END"
"""Environment variable that carries the `FrontEndSettings` document: unlike argv, other users cannot read it."""


class FrontEndSettings(BaseModel):
    """All that `python -m wavepp.server.front_end` needs, as one JSON document.

    `address` is the ZMQ endpoint that the front end binds for `ToFrontEnd` messages; a wildcard port is resolved
    and announced. `model` is the local folder with the tokenizer,
    `model_name` what it is served as. `max_model_len` is the model's context in
    tokens, `vocab_size` the number of token ids that the model knows. The lives of handles are those of rank 0's
    `AdmissionConfig`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: ServerConfig = ServerConfig()
    address: str = Field(min_length=1)
    model: Path
    model_name: str = Field(min_length=1)
    max_model_len: int = Field(ge=1)
    vocab_size: int = Field(ge=1, le=2**31)
    default_ttl_s: float = Field(gt=0)
    max_ttl_s: float = Field(gt=0)
