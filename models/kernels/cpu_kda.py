"""The gated delta rule of Kimi Delta Attention, chunk-parallel (Kimi Linear, arXiv 2510.26692, section 3).

Per head and token, with decay a = exp(g) per key channel:
    S <- diag(a) S;  S <- S + beta k (v - S^T k)^T;  o = S^T q / sqrt(K)
Within a chunk the updates U of all tokens solve one unit lower triangular system (the WY form), so only the step from
chunk to chunk is sequential. With G the log decays summed from the chunk's start, row by row:
    (1 + beta tril(K~ K^)) U = beta (V - K~ S),  K~ = k exp(G - m),  K^ = k exp(m - G),  S already decayed by exp(m)
The reference m is the sum up to the chunk's middle: each exponent is then a sum of decays of one sign, without
cancellation, and exp(m - G) is a reciprocal. Chunks that decay too far for that are computed by `steep_chunks`.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch.nn import functional

from .cpu_kda_steep import CHUNK, steep_chunks

_MIDDLE = CHUNK // 2 - 1
_REACH = 30.0
"""Log decay on either side of the middle up to which the factors exp(±30) lose nothing and cannot overflow."""

_LOWEST = -80.0
"""What would be denormal is raised to e^-80: exp is twenty times slower there."""


def kda_chunks(
    tokens: Sequence[torch.Tensor], state: torch.Tensor, marks: Sequence[int], out: torch.Tensor
) -> list[torch.Tensor]:
    """tokens: q, k `[T, H, K]`, v `[T, H, V]`, log_decay `[T, H, K]`, beta `[T, H]`; state `[H, K, V]`; all float32.

    Fills `out` `[T, H, V]`, leaves in `state` that after T tokens, and returns copies of those after each of `marks`
    tokens, which ascend and are multiples of CHUNK or T.
    """
    length = out.shape[0]
    if length % CHUNK:
        # Padding tokens have k = 0, beta = 0 and g = 0: they change nothing.
        padding = -length % CHUNK
        tokens = [functional.pad(x, (0, 0) * (x.dim() - 1) + (0, padding)) for x in tokens]
        padded = out.new_empty(length + padding, *out.shape[1:])
        captured = kda_chunks(tokens, state, [-(-mark // CHUNK) * CHUNK for mark in marks], padded)
        out.copy_(padded[:length])
        return captured
    return _run(_Chunks(tokens), state, {mark // CHUNK for mark in marks}, _chunked(out))


def kda_step(tokens: Sequence[torch.Tensor], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of each of N sequences: q, k, log_decay `[N, H, K]`, v `[N, H, V]`, beta `[N, H]`; states
    `[N, H, K, V]`. Returns the outputs `[N, H, V]` and the new states."""
    q, k, v, log_decay, beta = tokens
    heads = states.shape[:2]
    decayed = (states * log_decay.exp().unsqueeze(-1)).flatten(0, 1)
    q, k, v = (x.flatten(0, 1).unsqueeze(1) for x in (q, k, v))
    error = (v - torch.bmm(k, decayed)) * beta.flatten().view(-1, 1, 1)
    updated = decayed.baddbmm_(k.transpose(1, 2), error)
    out = torch.bmm(q * q.shape[-1] ** -0.5, updated)
    return out.squeeze(1).unflatten(0, heads), updated.unflatten(0, heads)


class _Chunks:
    """What does not depend on the state, for n chunks of H heads at once. Owner: the LOOP thread.

    `rows` `[n, H, 2 CHUNK, K]`: K~, then q likewise; `keys` `[n, H, CHUNK, K]`: K^; `v` `[n, H, CHUNK, V]`; `inverse`
    `[n, H, CHUNK, CHUNK]`, of the system, times beta; `scores` `[n, H, CHUNK, CHUNK]`, of queries with keys. A chunk
    multiplies the state by `before` `[n, H, K, 1]`, then, where `steep`, by `between` ahead of the update, and by
    `after` at the end.
    """

    def __init__(self, tokens: Sequence[torch.Tensor]) -> None:
        q, k, self.v = (_chunked(x) for x in tokens[:3])
        g = tokens[3].flatten(1).unflatten(0, (-1, CHUNK))
        n, heads = q.shape[:2]
        # Products with a constant matrix: several times as fast as cumsum across rows.
        sums = torch.bmm(_sums_from_middle().expand(n, -1, -1), g)
        by_head = sums.unflatten(2, (heads, -1))
        reach = torch.maximum(by_head[:, 0].amax(-1), by_head[:, CHUNK - 1].amin(-1).neg_())
        steep = (reach > _REACH).flatten().nonzero().squeeze(1)
        sums[:, :CHUNK].clamp_(-_REACH, _REACH)
        sums[:, CHUNK].clamp_(min=_LOWEST)
        factors = sums.exp_().unflatten(2, (heads, -1)).transpose(1, 2)
        self.before, self.after = factors[:, :, CHUNK].unsqueeze(-1), factors[:, :, CHUNK - 1].unsqueeze(-1)
        factors = factors[:, :, :CHUNK]
        self.rows = q.new_empty(n, heads, 2 * CHUNK, q.shape[-1])
        torch.mul(k, factors, out=self.rows[:, :, :CHUNK])
        torch.mul(q, factors, out=self.rows[:, :, CHUNK:])
        self.keys = torch.div(k, factors, out=q.new_empty(k.shape))
        scores = torch.bmm(self.rows.flatten(0, 1), self.keys.flatten(0, 1).transpose(1, 2))
        self.steep: frozenset[int] = frozenset()
        if steep.numel():
            self._replace(steep, tokens, scores)
        scores = scores.mul_(_lower()).unflatten(0, (n, heads))
        beta = _chunked(tokens[4].unsqueeze(-1))
        system = scores[:, :, :CHUNK] * beta
        # The inverse by substitution and products with it are faster than substitution on wide right-hand sides.
        inverse = torch.linalg.solve_triangular(system, torch.eye(CHUNK), upper=False, unitriangular=True)
        self.inverse = inverse * beta.transpose(2, 3)
        self.scores = scores[:, :, CHUNK:]

    def _replace(self, steep: torch.Tensor, tokens: Sequence[torch.Tensor], scores: torch.Tensor) -> None:
        heads = self.rows.shape[1]
        q, k, g = (_chunked(tokens[index])[steep // heads, steep % heads] for index in (0, 1, 3))
        part = steep_chunks(q, k, g)
        self.rows.flatten(0, 1)[steep] = part.rows
        self.keys.flatten(0, 1)[steep] = part.keys
        scores[steep] = part.scores
        self.between = torch.ones_like(self.before)
        self.before, self.after = self.before.contiguous(), self.after.contiguous()
        self.between.flatten(0, 1)[steep] = part.decay.unsqueeze(-1)
        self.before.flatten(0, 1)[steep] = 1.0
        self.after.flatten(0, 1)[steep] = 1.0
        self.steep = frozenset((steep // heads).tolist())


def _run(parts: _Chunks, state: torch.Tensor, wanted: set[int], out: torch.Tensor) -> list[torch.Tensor]:
    """The sequential part: `out` `[n, H, CHUNK, V]`; returns copies of the states after the `wanted` chunks."""
    captured: list[torch.Tensor] = []
    scale = state.shape[1] ** -0.5
    for chunk in range(out.shape[0]):
        state.mul_(parts.before[chunk])
        read = torch.bmm(parts.rows[chunk], state)
        updates = torch.bmm(parts.inverse[chunk], parts.v[chunk] - read[:, :CHUNK])
        if chunk in parts.steep:
            state.mul_(parts.between[chunk])
        state.baddbmm_(parts.keys[chunk].transpose(1, 2), updates).mul_(parts.after[chunk])
        out[chunk] = torch.baddbmm(read[:, CHUNK:], parts.scores[chunk], updates, beta=scale, alpha=scale)
        if chunk + 1 in wanted:
            captured.append(state.clone())
    return captured


def _chunked(x: torch.Tensor) -> torch.Tensor:
    """`[n CHUNK, H, D]` -> a view `[n, H, CHUNK, D]`."""
    return x.unflatten(0, (-1, CHUNK)).transpose(1, 2)


@cache
def _sums_from_middle() -> torch.Tensor:
    """`[CHUNK + 1, CHUNK]`: times the log decays, their sums relative to the middle, and last that of the middle."""
    ones = torch.ones(CHUNK, CHUNK).tril()
    return torch.cat([ones - ones[_MIDDLE], ones[_MIDDLE : _MIDDLE + 1]])


@cache
def _lower() -> torch.Tensor:
    """`[2 CHUNK, CHUNK]`: a key acts on later keys, and on its own query and later ones."""
    ones = torch.ones(CHUNK, CHUNK)
    return torch.cat([ones.tril(-1), ones.tril()])
