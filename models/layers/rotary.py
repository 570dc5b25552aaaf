"""Rotary position embedding, rotate-half form, in float32."""

import math

import torch

from ..rope import Llama3Scaling, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 `[head_dim / 2]`; Llama 3.1's scaling interpolates smoothly between kept and divided frequencies."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    scaling = rope.scaling
    if scaling is None:
        return frequencies
    divided = frequencies / scaling.factor
    if not isinstance(scaling, Llama3Scaling):
        return divided
    # Rotations within the pretraining context decide: many are kept, few are divided.
    rotations = scaling.original_context * frequencies / (2 * math.pi)
    kept = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(divided, frequencies, kept.clamp(0, 1))


class Rotary:
    """The factors of a wave's positions. Owner: the LOOP thread."""

    def __init__(self, rope: RopeConfig, head_dim: int, device: torch.device):
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)

    def factors(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each float32 `[T, 1, head_dim / 2]`."""
        angles = torch.outer(positions.float(), self._frequencies).unsqueeze(1)
        return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, factors: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """x `[T, heads, head_dim]`, each pair (i, i + head_dim / 2) rotated; in x's dtype."""
    cos, sin = factors
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
