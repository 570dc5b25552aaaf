"""KDA as matrix products over chunks, differentiable by autograd: for training on a CPU.

With S the state `[K, V]`, every token does S = diag(e^g) S, then S += beta k (v - S^T k)^T, and reads
o = S^T q / sqrt(K). Over a chunk, G is the running sum of g, and the writes solve a unit lower-triangular system (the
WY form of the Kimi Linear report's chunkwise KDA).
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 16
# Splitting e^(G_i - G_j) into two factors keeps fp32 finite only while a chunk's decay stays within e^-160. A channel
# that decays by e^-10 a token has forgotten everything anyway.
DECAY_FLOOR = -10.0


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def differentiable_kda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Outputs `[B, T, H, V]` in `query`'s dtype and, if asked for, the final state `[B, H, K, V]` fp32.

    query, key `[B, T, H, K]`, value `[B, T, H, V]`, g `[B, T, H, K]` log decay a token (below -10 counts as -10),
    beta `[B, T, H]` in (0, 1). The signature is that of the function which it replaces in transformers.
    """
    dtype = query.dtype
    B, T, H, K = query.shape
    V = value.shape[-1]
    pad = -T % CHUNK
    NT = (T + pad) // CHUNK

    def chunked(x: Tensor) -> Tensor:
        x = functional.pad(x.float(), (0, 0, 0, 0, 0, pad))
        return x.view(B, NT, CHUNK, H, x.shape[-1]).permute(1, 0, 3, 2, 4).reshape(NT * B * H, CHUNK, x.shape[-1])

    q, k, v, b = chunked(query), chunked(key), chunked(value), chunked(beta.unsqueeze(-1))
    if use_qk_l2norm_in_kernel:
        q, k = _normalise(q), _normalise(k)
    q = q * K**-0.5
    G = chunked(g.clamp(min=DECAY_FLOOR)).cumsum(1)
    middle = G[:, CHUNK // 2 : CHUNK // 2 + 1]
    grown, decayed = (middle - G).exp(), (G - middle).exp()
    k_grown = (k * grown).transpose(1, 2)
    scores_qk = torch.bmm(q * decayed, k_grown).tril()
    scores_kk = torch.bmm(k * decayed, k_grown).tril(-1) * b

    from_start = G.exp()
    written = _solve_unit_lower(scores_kk, torch.cat([k * from_start, v], -1) * b)
    w, u = written[..., :K], written[..., K:]
    to_end = G[:, -1:]
    reads = torch.cat([w, q * from_start], 1).view(NT, B * H, 2 * CHUNK, K)
    k_end = (k * (to_end - G).exp()).transpose(1, 2).reshape(NT, B * H, K, CHUNK)
    kept = to_end.exp().view(NT, B * H, K, 1)
    u = u.reshape(NT, B * H, CHUNK, V)

    state = q.new_zeros(B * H, K, V) if initial_state is None else initial_state.float().reshape(B * H, K, V)
    news, inters = [], []
    for r, u_chunk, k_chunk, keep in zip(reads.unbind(), u.unbind(), k_end.unbind(), kept.unbind(), strict=True):
        from_state = torch.bmm(r, state)
        new = u_chunk - from_state[:, :CHUNK]
        news.append(new)
        inters.append(from_state[:, CHUNK:])
        state = torch.baddbmm(state * keep, k_chunk, new)
    out = torch.baddbmm(torch.cat(inters), scores_qk, torch.cat(news))
    out = out.view(NT, B, H, CHUNK, V).permute(1, 0, 3, 2, 4).reshape(B, NT * CHUNK, H, V)[:, :T]
    return out.to(dtype), state.view(B, H, K, V) if output_final_state else None


def _solve_unit_lower(strictly_lower: Tensor, rhs: Tensor) -> Tensor:
    """(I + L)^-1 rhs for L `[N, C, C]` strictly lower: L^C = 0, so (I - L)(I + L^2)(I + L^4)... ends exactly."""
    power = -strictly_lower
    solution = rhs + torch.bmm(power, rhs)
    reached = 2
    while reached < CHUNK:
        power = torch.bmm(power, power)
        solution = solution + torch.bmm(power, solution)
        reached *= 2
    return solution
