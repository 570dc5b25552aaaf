"""What all layers of a stage share while one wave passes: positions, pages and rotary factors as tensors."""

from dataclasses import dataclass

import torch

from .batch import WaveBatch
from .layers.rotary import Rotary


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave on the device. `T` is its number of tokens.

    `positions` int64 `[T]`; `write_rows` int64 `[T]`, the row of each token in a pool viewed as
    `[pages * B, ...]`; `pages` int64 per span. The last two are None and empty on a stage without attention.
    `rotary` is (cos, sin), float32 `[T, 1, head_dim / 2]`, None for families without position encoding.
    """

    batch: WaveBatch
    offsets: list[int]
    positions: torch.Tensor
    write_rows: torch.Tensor | None
    pages: tuple[torch.Tensor, ...]
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None


def prepare_wave(
    batch: WaveBatch, device: torch.device, *, attention: bool, recurrent: bool, rotary: Rotary | None
) -> Wave:
    """Raises ValueError when a span's pages or slot do not fit its length and the stage's layers."""
    _check(batch, attention, recurrent)
    positions = torch.cat([torch.arange(span.start, span.end) for span in batch.spans])
    pages: tuple[torch.Tensor, ...] = ()
    write_rows = None
    if attention:
        size = batch.block_size
        tables = [torch.tensor(span.pages, dtype=torch.int64) for span in batch.spans]
        of_token = torch.cat(
            [table[torch.arange(span.start, span.end) // size] for table, span in zip(tables, batch.spans, strict=True)]
        )
        write_rows = (of_token * size + positions % size).to(device, non_blocking=True)
        pages = tuple(table.to(device, non_blocking=True) for table in tables)
    positions = positions.to(device, non_blocking=True)
    factors = None if rotary is None else rotary.factors(positions)
    return Wave(batch, batch.offsets(), positions, write_rows, pages, factors)


def _check(batch: WaveBatch, attention: bool, recurrent: bool) -> None:
    if not batch.spans:
        raise ValueError("a wave needs at least one span")
    for index, span in enumerate(batch.spans):
        if span.start < 0 or span.length < 1:
            raise ValueError(f"span {index} starts at {span.start} with length {span.length}")
        if attention and len(span.pages) != -(-span.end // batch.block_size):
            raise ValueError(
                f"span {index} ends at {span.end} with {len(span.pages)} pages of {batch.block_size} tokens"
            )
        if recurrent and span.slot < 0:
            raise ValueError(f"span {index} has no recurrent slot")
        positions = [position for position, _ in span.snapshots]
        if recurrent and positions and not span.start < positions[0] <= positions[-1] <= span.end:
            raise ValueError(f"span {index} ({span.start}..{span.end}) has snapshots at {positions}")
