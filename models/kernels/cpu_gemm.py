"""Matrix products with bfloat16 weights on processors that have no instructions for bfloat16.

There a bfloat16 product runs at about a seventh of float32's speed. So the weights are widened tile by tile, each
tile just before its product while it is in the cache, and the sums are float32 throughout. With such instructions
(AVX-512 BF16, AMX) the product is torch's own.
"""

import functools
import platform

import torch
from torch.nn import functional

_TILE = 1 << 19
"""Weights widened at once: 2 MiB of float32."""

_FEW_ROWS = 2
"""Up to so many rows the product waits for memory, and bfloat16 weights are half as much of it."""


@functools.cache
def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, wide: bool = False
) -> torch.Tensor:
    """x `[..., K]`, weight `[N, K]`, bias `[N]` -> `[..., N]` in the weight's dtype.

    x may be float32 where the weight is bfloat16. With `wide` the result stays float32 where it was computed in it.
    """
    if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and not native_bf16():
        rows = x.numel() // x.shape[-1]
        if rows > _FEW_ROWS or x.dtype != weight.dtype:
            return _widened(x, weight, bias, torch.float32 if wide else weight.dtype)
    return functional.linear(x.to(weight.dtype), weight, bias)


def _widened(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    count, width = weight.shape
    rows = x.reshape(-1, width).float()
    out = rows.new_empty(rows.shape[0], count, dtype=dtype)
    tile = min(count, max(16, _TILE // width))
    widened = rows.new_empty(tile, width)
    narrow = None if dtype == torch.float32 else rows.new_empty(rows.shape[0] * tile)
    for first in range(0, count, tile):
        part = slice(first, min(first + tile, count))
        size = part.stop - first
        own = torch.narrow(widened, 0, 0, size)
        own.copy_(weight[part])
        if narrow is None:
            _product(rows, own, bias, part, out[:, part])
        else:
            result = narrow[: rows.shape[0] * size].view(-1, size)
            _product(rows, own, bias, part, result)
            out[:, part] = result
    return out.unflatten(0, x.shape[:-1])


def _product(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, part: slice, out: torch.Tensor
) -> None:
    if bias is None:
        torch.mm(rows, weight.T, out=out)
    else:
        torch.addmm(bias[part].float(), rows, weight.T, out=out)


def widest(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which `linear` will read it with this weight, for when many products share it."""
    wide = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and not native_bf16()
    return x.float() if wide else x
