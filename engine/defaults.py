"""Defaults that depend on the device: what suits a GPU would keep a CPU's stages waiting for seconds a wave."""

from __future__ import annotations

from typing import Any

# What a token takes beside its context on one of two stages, one thread each, of `demo` and `demo-hybrid`: least in
# waves of 512 to 768 tokens (1.8 ms and 84 µs, 512 within 4% of that), about a tenth more at 256 and at 1,024, and a
# seventh to a half more at 128. So nothing is gained above 512, and mpu should not go below 256.
_CPU: dict[str, dict[str, Any]] = {
    "scheduler": {"max_wave_tokens": 512, "min_wave_tokens": 256},
    "admission": {"snapshot_interval": 256},
}

EMULATED_MODEL: dict[str, dict[str, Any]] = {"cache": {"num_pages": 131_072, "num_slots": 2_048}}
"""Of the model that is described only: 8 million tokens, in 800 MB over all stages together."""


def device_defaults(device: str) -> dict[str, dict[str, Any]]:
    """Values by config and field that replace the configs' own defaults, which are those of `cuda`."""
    return _CPU if device == "cpu" else {}
