"""The gated delta rule of Kimi Delta Attention, chunk-parallel (Kimi Linear, arXiv 2510.26692, section 3).

Per head and token, with decay a = exp(g) per key channel:
    S <- diag(a) S;  S <- S + beta k (v - S^T k)^T;  o = S^T q / sqrt(K)
Within a chunk the updates of all tokens solve one unit lower triangular system (the WY form), so only the step
from chunk to chunk is sequential.

Cumulative decays span hundreds of e-folds, and their small differences decide. So they are summed in float64, within
sub-blocks, and every factor that reaches across sub-blocks is an exponential of a non-positive sum.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

CHUNK = 32
_SUB = 16
_BLOCKS = CHUNK // _SUB

_SAFE_DECAY = 60.0
"""A sub-block whose cumulative log decay stays within this is factored about its middle: exp(±30) loses nothing."""

_LOWEST = -80.0

_DIRECT_BATCH = 128
"""Sub-blocks computed pair by pair at once, which takes _SUB² · K floats each."""


def kda_chunks(
    tokens: Sequence[torch.Tensor], state: torch.Tensor, marks: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """tokens: q, k `[T, H, K]`, v `[T, H, V]`, log_decay `[T, H, K]`, beta `[T, H]`; state `[H, K, V]`; all float32.

    Returns the outputs `[T, H, V]`, the state after T tokens, and the states after each of `marks` tokens, which
    ascend and are multiples of CHUNK or T. Padding tokens have k = 0, beta = 0 and g = 0: they change nothing.
    """
    length, heads, k_dim = tokens[0].shape
    q, k, v, log_decay = (_chunked(tensor) for tensor in tokens[:4])
    beta = _chunked(tokens[4].unsqueeze(-1))
    chunks = k.shape[0]
    q = q * k_dim**-0.5
    within = log_decay.unflatten(2, (_BLOCKS, _SUB)).cumsum(3, dtype=torch.float64)
    totals = within[..., -1, :]
    before = totals.cumsum(2) - totals
    from_start = _exp((within + before.unsqueeze(3)).flatten(2, 3))
    query_scores, key_scores, to_end = _scores(q.flatten(0, 1), k.flatten(0, 1), within.flatten(0, 1))

    system = key_scores.mul_(beta.flatten(0, 1)).tril_(-1)
    right = torch.cat([k * from_start, v], -1).mul_(beta).flatten(0, 1)
    # The inverse by substitution and one product is faster than substitution on the wide right-hand side.
    inverse = torch.linalg.solve_triangular(system, torch.eye(CHUNK), upper=False, unitriangular=True)
    correction, update = torch.bmm(inverse, right).unflatten(0, (chunks, heads)).split([k_dim, v.shape[-1]], -1)

    reads = torch.cat([correction, q * from_start], 2)
    to_end = to_end.unflatten(0, (chunks, heads)).transpose(-1, -2)
    decay = _exp(totals.sum(2)).unsqueeze(-1)
    out, updates = torch.empty_like(v), torch.empty_like(v)
    wanted = {-(-mark // CHUNK) for mark in marks}
    captured: list[torch.Tensor] = []
    for chunk in range(chunks):
        read = torch.bmm(reads[chunk], state)
        torch.sub(update[chunk], read[:, :CHUNK], out=updates[chunk])
        out[chunk] = read[:, CHUNK:]
        state = torch.baddbmm(state * decay[chunk], to_end[chunk], updates[chunk])
        if chunk + 1 in wanted:
            captured.append(state)
    out.flatten(0, 1).baddbmm_(query_scores, updates.flatten(0, 1))
    return out.transpose(1, 2).flatten(0, 1)[:length], state, captured


def kda_step(tokens: Sequence[torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: q, k `[H, K]`, v `[H, V]`, log_decay `[H, K]`, beta `[H]`; state `[H, K, V]` -> `[H, V]`, state."""
    q, k, v, log_decay, beta = tokens
    decayed = state * log_decay.exp().unsqueeze(-1)
    error = v - torch.bmm(k.unsqueeze(1), decayed).squeeze(1)
    state = torch.baddbmm(decayed, k.unsqueeze(2), (error * beta.unsqueeze(-1)).unsqueeze(1))
    return torch.bmm(q.unsqueeze(1) * q.shape[-1] ** -0.5, state).squeeze(1), state


def _exp(log_decay: torch.Tensor) -> torch.Tensor:
    """float64 -> float32; what would be denormal is raised to e^-80, since exp is twenty times slower there."""
    return log_decay.float().clamp_(min=_LOWEST).exp_()


def _chunked(x: torch.Tensor) -> torch.Tensor:
    """`[T, H, D]` -> `[chunks, H, CHUNK, D]`, padded with zeros."""
    padding = -x.shape[0] % CHUNK
    if padding:
        x = functional.pad(x, (0, 0, 0, 0, 0, padding))
    return x.unflatten(0, (-1, CHUNK)).transpose(1, 2).contiguous()


def _scores(q: torch.Tensor, k: torch.Tensor, within: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For rows i and columns j <= i of each chunk: sum over channels of x_i k_j exp(G_i - G_j), x being q, then k.

    q, k `[n, CHUNK, K]`; within float64 `[n, blocks, SUB, K]`, log decays summed in each sub-block. Returns both scores
    `[n, CHUNK, CHUNK]`, zero above the diagonal, and the keys decayed to the end of the chunk `[n, CHUNK, K]`.
    """
    size = k.shape[0]
    scores = k.new_zeros(2, size, CHUNK, CHUNK)
    earlier = k[:, :0]
    for block in range(_BLOCKS):
        rows = slice(block * _SUB, (block + 1) * _SUB)
        decay, keys = within[:, block], k[:, rows]
        total = decay[:, -1:]
        both = torch.stack([q[:, rows], keys], 1)
        from_start = _exp(decay)
        if block:
            reach = (both * from_start.unsqueeze(1)).flatten(1, 2)
            product = torch.bmm(reach, earlier.transpose(1, 2)).unflatten(1, (2, _SUB))
            scores[:, :, rows, : rows.start] = product.transpose(0, 1)
        scores[:, :, rows, rows] = _diagonal_scores(both, keys, decay)
        earlier = torch.cat([earlier * from_start[:, -1:], keys * _exp(total - decay)], 1)
    scores.tril_()
    return scores[0], scores[1], earlier


def _diagonal_scores(both: torch.Tensor, keys: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """The scores inside a sub-block, `[2, n, SUB, SUB]`, from both `[n, 2, SUB, K]`; meaningless above the diagonal."""
    middle = decay[:, -1:] / 2
    shifted = (decay - middle).float().clamp_(-_SAFE_DECAY, _SAFE_DECAY)
    rows = (both * shifted.exp().unsqueeze(1)).flatten(1, 2)
    scores = torch.bmm(rows, (keys * shifted.neg_().exp_()).transpose(1, 2)).unflatten(1, (2, _SUB)).transpose(0, 1)
    steep = (decay[:, -1].amin(-1) < -_SAFE_DECAY).nonzero().squeeze(1)
    for part in steep.split(_DIRECT_BATCH):
        cumulative = decay[part]
        pairs = (cumulative.unsqueeze(2) - cumulative.unsqueeze(1)).clamp_(max=0)
        pairs = _exp(pairs).mul_(keys[part].unsqueeze(1))
        scores[:, part] = (pairs @ both[part].permute(0, 2, 3, 1)).permute(3, 0, 1, 2)
    return scores
