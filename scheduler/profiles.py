"""Known stage profiles, by name."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from .cost_model import StageProfile

KIMI_K3_GB300 = StageProfile(
    name="kimi-k3-gb300",
    wave_s=0.0221,
    # 92 x 896 experts at 4.25 bits over eight stages, read at 8 TB/s.
    weight_s=0.0226,
    token_s=18.0e-6,
    context_s=0.114e-9,
    stages=8,
)
"""Kimi K3 on eight GB300: fitted by `simulator/fit.py` to the paper's cold runs, but for weight_s."""

PROFILES = {profile.name: profile for profile in (KIMI_K3_GB300,)}


def _named(value: object) -> object:
    """A name stands for its profile, and other text is JSON or names a file of it."""
    if not isinstance(value, str):
        return value
    if value in PROFILES:
        return PROFILES[value]
    if value.lstrip().startswith("{"):
        return StageProfile.model_validate_json(value)
    if value.endswith(".json"):
        try:
            return StageProfile.model_validate_json(Path(value).read_text())
        except OSError as error:
            raise ValueError(f"the profile {value} cannot be read: {error.strerror}") from None
    raise ValueError(
        f"no profile is named {value!r}; there are {', '.join(PROFILES)}, a JSON object, or a file that ends in .json"
    )


Profile = Annotated[StageProfile, BeforeValidator(_named)]
"""A field of a config: a `StageProfile`, the name of one, its fields as a JSON object, or a file of that."""
