"""Defaults that depend on the device: what suits a GPU would keep a CPU's stages waiting for seconds a wave."""

from __future__ import annotations

from typing import Any

_CPU: dict[str, dict[str, Any]] = {
    "scheduler": {"max_wave_tokens": 512, "min_wave_tokens": 256},
    "admission": {"snapshot_interval": 256},
}

EMULATED_MODEL: dict[str, dict[str, Any]] = {"cache": {"num_pages": 131_072, "num_slots": 2_048}}
"""Of the model that is described only: 8 million tokens, in 800 MB over all stages together."""


def device_defaults(device: str) -> dict[str, dict[str, Any]]:
    """Values by config and field that replace the configs' own defaults, which are those of `cuda`."""
    return _CPU if device == "cpu" else {}
