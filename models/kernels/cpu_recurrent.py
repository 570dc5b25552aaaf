"""Short convolutions and the gated delta rule (KDA) over spans, in float32.

Both resume each span from its slot, leave the state after its last token there, and copy the state at each
snapshot's position to the snapshot's slot.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch.nn import functional

from ..wave import Wave
from .cpu_kda import CHUNK, kda_chunks, kda_step

_SEGMENT = 1024
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
    """See `Kernels.kda`."""
    out = torch.empty_like(v)
    tensors = (q, k, v, log_decay, beta)
    for span, (first, _) in zip(wave.batch.spans, pairwise(wave.offsets), strict=True):
        state = states[span.slot].clone() if span.start else torch.zeros_like(states[span.slot])
        slots = {position - span.start: slot for position, slot in span.snapshots}
        for start, stop in segments(span.length, list(slots)):
            rows = slice(first + start, first + stop)
            marks = [mark for mark in slots if start < mark <= stop]
            if stop - start == 1:
                out[first + start], state = kda_step([tensor[first + start] for tensor in tensors], state)
                captured = [state] * len(marks)
            else:
                part = [tensor[rows] for tensor in tensors]
                out[rows], state, captured = kda_chunks(part, state, [mark - start for mark in marks])
            for mark, snapshot in zip(marks, captured, strict=True):
                states[slots[mark]] = snapshot
        states[span.slot] = state
    return out


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
