"""What everything but the model's own work costs on virtual time."""

from pydantic import BaseModel, ConfigDict, Field


class PlaneCosts(BaseModel):
    """Seconds. The defaults are what `bench/admission.py` measured of this code, and an Ethernet's latency."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    link_s: float = Field(
        default=50e-6, ge=0, le=60, description="a message's way between two ranks on the rounds plane"
    )
    round_s: float = Field(default=150e-6, ge=0, le=60, description="a rank's work on a round, whatever it holds")
    hash_block_s: float = Field(default=1.3e-6, ge=0, le=1, description="hashing a block of an announced prompt")
    walk_block_s: float = Field(default=0.3e-6, ge=0, le=1, description="walking, pinning and promising a block")
    copy_page_s: float = Field(default=8e-6, ge=0, le=10, description="a page's way between host and device")
    copy_slot_s: float = Field(default=1e-3, ge=0, le=10, description="a snapshot's way between host and device")
    launch_s: float = Field(default=0.0, ge=0, le=60, description="what LOOP adds to the device's time for a wave")
    front_s: float = Field(default=0.0, ge=0, le=60, description="the front end's share of a request's time")
