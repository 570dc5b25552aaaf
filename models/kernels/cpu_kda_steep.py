"""Chunks of KDA whose log decays span too many e-folds for one reference.

Scores there are computed by halves: the later half of a stretch with the earlier half, both decayed to the boundary
between them, then each half in the same way. So every factor is the exponential of a sum of decays that is not
positive, taken directly: where it is not negligible it is short, and float32 is exact enough.
"""

from dataclasses import dataclass
from functools import cache

import torch

CHUNK = 32
_HALVES = tuple(CHUNK >> level for level in range(1, CHUNK.bit_length()))
"""Lengths of a half: 16, 8, 4, 2, 1."""

_LOWEST = -80.0
"""What would be denormal is raised to e^-80: exp is twenty times slower there."""

_AT_ONCE = 32
"""Chunks whose factors, seven of a token, are held at once."""


@dataclass(frozen=True, slots=True)
class SteepChunks:
    """Of n chunks: `rows` `[n, 2 CHUNK, K]`, keys, then queries, decayed from the chunk's start; `keys` `[n, CHUNK, K]`
    decayed to its end; `scores` `[n, 2 CHUNK, CHUNK]` of both with the keys, for keys without the diagonal; `decay`
    `[n, K]` of the whole chunk."""

    rows: torch.Tensor
    keys: torch.Tensor
    scores: torch.Tensor
    decay: torch.Tensor


def steep_chunks(q: torch.Tensor, k: torch.Tensor, log_decay: torch.Tensor) -> SteepChunks:
    """q, k, log_decay float32 `[n, CHUNK, K]`."""
    size, _, width = k.shape
    result = SteepChunks(
        rows=k.new_empty(size, 2 * CHUNK, width),
        keys=k.new_empty(k.shape),
        scores=k.new_zeros(size, 2 * CHUNK, CHUNK),
        decay=k.new_empty(size, width),
    )
    for first in range(0, size, _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        both = torch.stack([k[part], q[part]], 1)
        sums = torch.bmm(_sums().expand(both.shape[0], -1, -1), log_decay[part])
        factors = sums.clamp_(min=_LOWEST).exp_().unflatten(1, (-1, CHUNK))
        from_start, to_end = factors[:, 0], factors[:, 1]
        torch.mul(both, from_start.unsqueeze(1), out=result.rows[part].unflatten(1, (2, CHUNK)))
        torch.mul(k[part], to_end, out=result.keys[part])
        result.decay[part] = from_start[:, -1]
        scores = result.scores[part].unflatten(1, (2, CHUNK))
        for level, half in enumerate(_HALVES):
            _between_halves(both, factors[:, 2 + level], half, scores)
        scores[:, 1].diagonal(dim1=1, dim2=2).copy_((q[part] * k[part]).sum(-1))
    return result


def _between_halves(both: torch.Tensor, factors: torch.Tensor, half: int, scores: torch.Tensor) -> None:
    """Fill `scores` `[n, 2, CHUNK, CHUNK]` with those of the later halves of `both` `[n, 2, CHUNK, K]` with the keys of
    the halves before them; `factors` `[n, CHUNK, K]`."""
    cut = (-1, 2, half)
    decay = factors.unflatten(1, cut)
    pieces = both.unflatten(2, cut)
    earlier = pieces[:, 0, :, 0] * decay[:, :, 0]
    later = pieces[:, :, :, 1] * decay[:, :, 1].unsqueeze(1)
    later = later.transpose(1, 2).flatten(0, 1).flatten(1, 2)
    product = torch.bmm(later, earlier.flatten(0, 1).transpose(1, 2))
    stretches = scores.unflatten(3, cut).unflatten(2, cut).diagonal(dim1=2, dim2=5)
    # [n, kind, later half, row, earlier half, column, stretch]
    stretches[:, :, 1, :, 0] = product.view(both.shape[0], -1, 2, half, half).permute(0, 2, 3, 4, 1)


@cache
def _sums() -> torch.Tensor:
    """`[7 CHUNK, CHUNK]`: times a chunk's log decays, their sums from its start, to its end, and to the boundaries."""
    token = torch.arange(CHUNK)
    row, column = token.unsqueeze(1), token.unsqueeze(0)
    parts = [column <= row, column > row]
    for half in _HALVES:
        boundary = row // (2 * half) * (2 * half) + half
        to_boundary, from_boundary = (column > row) & (column < boundary), (column >= boundary) & (column <= row)
        parts.append(torch.where(row < boundary, to_boundary, from_boundary))
    return torch.cat(parts).float()
