"""Short convolutions and the gated delta rule (KDA) over spans, in float32.

Both resume each span from its slot, leave the state after its last token there, and copy the state at each
snapshot's position to the snapshot's slot.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch.nn import functional

from ..batch import SpanState
from ..wave import Wave
from .cpu_kda import CHUNK, kda_chunks, kda_step

_STATE_BYTES = 1 << 18
"""States that one thread works on at once: half of a small second-level cache."""

_SEGMENT = 512
"""Tokens whose chunks are worked on at once; a multiple of CHUNK, so that cutting there changes no rounding."""


def short_conv(wave: Wave, x: torch.Tensor, weight: torch.Tensor, states: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """See `Kernels.short_conv`."""
    taps, width = weight.shape
    history = taps - 1
    out = torch.empty(x.shape[0], width, dtype=torch.float32, device=x.device)
    parts = [state.shape[-1] for state in states]
    for span, (first, last) in zip(wave.batch.spans, pairwise(wave.offsets), strict=True):
        extended = torch.empty(history + span.length, width, dtype=torch.float32, device=x.device)
        extended[history:] = x[first:last]
        if span.start == 0:
            extended[:history] = 0
        else:
            torch.cat([state[span.slot] for state in states], -1, out=extended[:history])
        rows = out[first:last]
        torch.mul(extended[: span.length], weight[0], out=rows)
        for tap in range(1, taps):
            rows.addcmul_(extended[tap : tap + span.length], weight[tap])
        for position, slot in (*span.snapshots, (span.end, span.slot)):
            after = position - span.start
            for state, part in zip(states, extended[after : after + history].split(parts, -1), strict=True):
                state[slot] = part
    return functional.silu(out, inplace=True)


def kda(
    wave: Wave,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
) -> torch.Tensor:
    """See `Kernels.kda`. Spans of one token are taken all at once."""
    out = v.new_empty(v.shape)
    tensors = (q, k, v, log_decay, beta)
    single: list[tuple[int, SpanState]] = []
    for span, (first, last) in zip(wave.batch.spans, pairwise(wave.offsets), strict=True):
        if span.length == 1:
            single.append((first, span))
        else:
            _kda_span(span, [tensor[first:last] for tensor in tensors], states, out[first:last])
    if single:
        rows, slots = [row for row, _ in single], [span.slot for _, span in single]
        before = states[slots]
        before[[index for index, (_, span) in enumerate(single) if span.start == 0]] = 0
        out[rows], after = kda_step([tensor[rows] for tensor in tensors], before)
        states[slots] = after
        for (_, span), state in zip(single, after, strict=True):
            for _, slot in span.snapshots:
                states[slot] = state
    return out


def _kda_span(span: SpanState, tensors: Sequence[torch.Tensor], states: torch.Tensor, out: torch.Tensor) -> None:
    """A few heads at a time, whose states and tensors stay in the cache."""
    slots = {position - span.start: slot for position, slot in span.snapshots}
    cuts = list(segments(span.length, list(slots)))
    heads = max(1, _STATE_BYTES // (states[0, 0].numel() * states.element_size())) * torch.get_num_threads()
    for some in torch.arange(states.shape[1]).split(heads):
        own = slice(int(some[0]), int(some[-1]) + 1)
        state = states[span.slot, own].clone() if span.start else torch.zeros_like(states[span.slot, own])
        for start, stop in cuts:
            marks = [mark for mark in slots if start < mark <= stop]
            part = [tensor[start:stop, own] for tensor in tensors]
            captured = kda_chunks(part, state, [mark - start for mark in marks], out[start:stop, own])
            for mark, snapshot in zip(marks, captured, strict=True):
                states[slots[mark], own] = snapshot
        states[span.slot, own] = state


def segments(length: int, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut `0..length` where chunks counted from the last cut would not end at a mark, and at every `_SEGMENT`."""
    start = 0
    for mark in (*marks, length):
        while mark - start > _SEGMENT:
            yield start, start + _SEGMENT
            start += _SEGMENT
        if mark > start and (mark == length or (mark - start) % CHUNK):
            yield start, mark
            start = mark
