"""Token-by-token and full-matrix references in float64, written from the equations."""

import torch


def kda_recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[T, H, ...]` each, state `[H, K, V]`: outputs `[T, H, V]` and the states after each token `[T, H, K, V]`."""
    q, k, v, g, beta, state = (tensor.double() for tensor in (q, k, v, g, beta, state))
    outputs, states = [], []
    for token in range(q.shape[0]):
        state = g[token].exp().unsqueeze(-1) * state
        recalled = torch.einsum("hkv,hk->hv", state, k[token])
        state = state + torch.einsum("hk,hv->hkv", k[token], beta[token].unsqueeze(-1) * (v[token] - recalled))
        outputs.append(torch.einsum("hkv,hk->hv", state, q[token]) / q.shape[-1] ** 0.5)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """The last `L` positions of a context: q `[L, H, D]`; k, v `[n, Hkv, D]` -> float64 `[L, H, Dv]`."""
    groups = q.shape[1] // k.shape[1]
    k, v = (tensor.double().repeat_interleave(groups, 1) for tensor in (k, v))
    scores = torch.einsum("lhd,nhd->hln", q.double(), k) * scale
    hidden = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).triu(k.shape[0] - q.shape[0] + 1)
    return torch.einsum("hln,nhd->lhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def causal_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x `[T, D]` from the very first token; weight `[W, D]`, the last tap on the token itself."""
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for tap in range(weight.shape[0]):
            source = token - (weight.shape[0] - 1) + tap
            if source >= 0:
                out[token] += weight[tap] * x[source]
    return out / (1 + (-out).exp())
