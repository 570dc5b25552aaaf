"""Which READs bring everything, and what their bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from ..cache.layout import TensorSpec, Window
from ..engine.transfer_messages import LayerInfo, Opened, Read, TensorInfo

_READ_BYTES = 8 << 20
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def plan_reads(opened: Opened) -> Iterator[Read]:
    """Layer by layer, in batches of about 8 MiB (one block at least, and never more than the stage allows)."""
    blocks = -(-opened.num_tokens // opened.block_size)
    for layer in opened.layers:
        if layer.window == Window.RECURRENT:
            yield Read(opened.pull, layer.name)
            continue
        count = max(1, min(opened.max_blocks, _READ_BYTES // max(1, _token_bytes(layer) * opened.block_size)))
        for first in range(0, blocks, count):
            yield Read(opened.pull, layer.name, first, min(count, blocks - first))


def token_rows(buffer: memoryview, tensor: TensorInfo, read: Read, opened: Opened) -> torch.Tensor:
    """A tensor on the received bytes: `[n, *shape]` for the `n` tokens that count, or `[*shape]` for a state.

    Raises ValueError when there are not exactly as many bytes as the read must bring.
    """
    rows = read.count * opened.block_size
    shape = (rows, *tensor.shape) if read.count else tensor.shape
    expected = prod(shape) * _DTYPES[tensor.dtype].itemsize
    if buffer.nbytes != expected:
        raise ValueError(f"{buffer.nbytes} bytes instead of {expected}")
    values = torch.frombuffer(buffer, dtype=_DTYPES[tensor.dtype]).view(shape)
    return values[: opened.num_tokens - read.first * opened.block_size] if read.count else values


def _token_bytes(layer: LayerInfo) -> int:
    return sum(TensorSpec(t.name, tuple(t.shape), t.dtype).num_bytes for t in layer.tensors)
