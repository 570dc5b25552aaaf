"""What the executor hands to a stage's model for one wave: spans, and where their state lives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

Activations = dict[str, torch.Tensor]
"""The named set of tensors that one hop carries; each is `[tokens of the wave, ...]`."""

LayerPools = Mapping[str, Mapping[str, torch.Tensor]]
"""Layer name -> tensor name -> storage: `[pages, B, ...]` (attention) or `[slots, ...]` (recurrent)."""


@dataclass(frozen=True, slots=True)
class SpanState:
    """One span (request, start, length) and its state on this stage.

    `pages` are the attention pages of blocks `0 .. ceil((start + length) / B) - 1`; empty on a stage without
    attention layers. `slot` is the live recurrent slot, -1 where the stage has no recurrent layer. At
    `start == 0` the recurrent state is zero whatever the slot holds; else it is read from the slot. After the
    span the slot holds the state after exactly `start + length` tokens. `snapshots` are `(position, slot)` with
    `start < position <= start + length`, ascending: the state after exactly `position` tokens is copied to `slot`.
    """

    start: int
    length: int
    pages: Sequence[int]
    slot: int
    snapshots: Sequence[tuple[int, int]] = ()

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class WaveBatch:
    """The spans of one wave, laid one after the other along the token axis."""

    spans: Sequence[SpanState]
    block_size: int

    @property
    def num_tokens(self) -> int:
        return sum(span.length for span in self.spans)

    def offsets(self) -> list[int]:
        """Row where each span starts on the token axis, and the total at the end."""
        rows = [0]
        for span in self.spans:
            rows.append(rows[-1] + span.length)
        return rows
