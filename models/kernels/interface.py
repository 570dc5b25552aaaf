"""What a device must compute for the mixers. Everything around it (projections, norms, experts) is plain torch."""

from typing import Protocol

import torch

from ..errors import UnsupportedModelError
from ..wave import Wave


class Kernels(Protocol):
    """The mixers of one device. All methods run on the LOOP thread and write the wave's tokens into the pools."""

    def begin(self, wave: Wave) -> None:
        """Called once per wave, before its first layer."""
        ...

    def gqa(
        self,
        wave: Wave,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention over pages. q `[T, H, D]`; k, v `[T, Hkv, D]`; pages `[pages, B, Hkv, D]` -> `[T, H, D]`."""
        ...

    def mla(
        self,
        wave: Wave,
        q: torch.Tensor,
        ckv: torch.Tensor,
        kpe: torch.Tensor,
        ckv_pages: torch.Tensor,
        kpe_pages: torch.Tensor,
        kv_b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Causal latent attention. q `[T, H, nope + rope]`; ckv `[T, R]`; kpe `[T, rope]`; pages `[pages, B, R]` and
        `[pages, B, rope]`; kv_b `[H, nope + v, R]` -> `[T, H, v]`."""
        ...

    def short_conv(
        self, wave: Wave, x: torch.Tensor, weight: torch.Tensor, states: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Depthwise causal convolution, then SiLU. x `[T, D]`; weight float32 `[W, D]`; states float32
        `[slots, W - 1, D_i]`, whose widths add up to D -> float32 `[T, D]`."""
        ...

    def kda(
        self,
        wave: Wave,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        states: torch.Tensor,
    ) -> torch.Tensor:
        """Gated delta rule. All float32: q, k, log_decay `[T, H, K]`; v `[T, H, V]`; beta `[T, H]`; states
        `[slots, H, K, V]` -> `[T, H, V]`. q and k are normalised, q not yet scaled."""
        ...


def kernels_for(device: torch.device) -> Kernels:
    """Raises UnsupportedModelError for a device without kernels."""
    if device.type == "cpu":
        from .cpu import CpuKernels

        return CpuKernels()
    raise UnsupportedModelError(f"no kernels for device {device.type!r}; supported: cpu")
