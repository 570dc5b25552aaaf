"""Paged causal attention in torch: no mask, memory bounded by the span and one stretch of its past.

A span's queries see its past in full and themselves causally. The two parts, and the past's stretches, are joined
by their log-sum-exp, as in FlashAttention's split over keys.
"""

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from ..wave import Wave

_PAST_TOKENS = 4096
"""Tokens of past gathered at once. MLA expands each to all heads, which is what bounds it."""

_ABSORBED_QUERIES = 16
"""Up to so many queries, MLA works on the latents rather than expand the whole past for a few rows."""


def gqa(
    wave: Wave,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See `Kernels.gqa`."""
    write_pages(wave, k, k_pages)
    write_pages(wave, v, v_pages)
    out = torch.empty_like(q)
    for index, (first, last) in enumerate(zip(wave.offsets, wave.offsets[1:], strict=False)):
        past = (
            (gather_pages(k_pages, pages, tokens), gather_pages(v_pages, pages, tokens))
            for pages, tokens in past_stretches(wave, index)
        )
        out[first:last] = attend(q[first:last], k[first:last], v[first:last], past, scale)
    return out


def mla(
    wave: Wave,
    q: torch.Tensor,
    ckv: torch.Tensor,
    kpe: torch.Tensor,
    ckv_pages: torch.Tensor,
    kpe_pages: torch.Tensor,
    kv_b: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See `Kernels.mla`. Expands latents to keys and values but for a few queries (decode)."""
    write_pages(wave, ckv, ckv_pages)
    write_pages(wave, kpe, kpe_pages)
    nope = q.shape[-1] - kpe.shape[-1]
    v_dim = kv_b.shape[1] - nope
    out = q.new_empty(*q.shape[:2], v_dim)
    width = max(q.shape[-1], v_dim)

    def expand(latent: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = functional.linear(latent, kv_b.flatten(0, 1)).view(-1, *kv_b.shape[:2])
        keys = torch.cat([both[..., :nope], shared.unsqueeze(1).expand(-1, both.shape[1], -1)], -1)
        # The kernel wants one width for keys and values.
        return _padded(keys, width), _padded(both[..., nope:], width)

    for index, (first, last) in enumerate(zip(wave.offsets, wave.offsets[1:], strict=False)):
        rows = slice(first, last)
        if last - first <= _ABSORBED_QUERIES:
            end, pages = wave.batch.spans[index].end, wave.pages[index]
            latents, shared = gather_pages(ckv_pages, pages, end), gather_pages(kpe_pages, pages, end)
            out[rows] = _absorbed(q[rows], latents, shared, kv_b, scale)
            continue
        past = (
            expand(gather_pages(ckv_pages, pages, tokens), gather_pages(kpe_pages, pages, tokens))
            for pages, tokens in past_stretches(wave, index)
        )
        own_k, own_v = expand(ckv[rows], kpe[rows])
        out[rows] = attend(_padded(q[rows], width), own_k, own_v, past, scale)[..., :v_dim]
    return out


def _absorbed(
    q: torch.Tensor, latents: torch.Tensor, shared: torch.Tensor, kv_b: torch.Tensor, scale: float
) -> torch.Tensor:
    """Queries `[L, H, nope + rope]` at the end of a context of latents `[end, R]` and shared keys `[end, rope]`."""
    length, heads, _ = q.shape
    nope = q.shape[-1] - shared.shape[-1]
    up_k, up_v = kv_b[:, :nope], kv_b[:, nope:]
    q_latent = torch.einsum("lhn,hnr->lhr", q[..., :nope], up_k)
    keys = torch.cat([latents, shared], -1)
    scores = (torch.cat([q_latent, q[..., nope:]], -1).flatten(0, 1) @ keys.T).float().view(length, heads, -1) * scale
    if length > 1:
        future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores[..., -length:].masked_fill_(future.unsqueeze(1), float("-inf"))
    mixed = scores.softmax(-1).to(latents.dtype).flatten(0, 1) @ latents
    return torch.einsum("lhr,hvr->lhv", mixed.view(length, heads, -1), up_v)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    past: Iterator[tuple[torch.Tensor, torch.Tensor]],
    scale: float,
) -> torch.Tensor:
    """Attention of one span `[L, H, D]` to itself, causally, and to all of its past, in q's dtype."""
    out, weight = _flash(q, k, v, scale, causal=q.shape[0] > 1)
    for past_k, past_v in past:
        more, more_weight = _flash(q, past_k, past_v, scale, causal=False)
        joint = torch.logaddexp(weight, more_weight)
        out = torch.lerp(out.float(), more.float(), (more_weight - joint).exp().unsqueeze(-1))
        weight = joint
    return out[0].transpose(0, 1).to(q.dtype)


_flash_op: Callable[..., tuple[torch.Tensor, torch.Tensor]] = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator behind scaled_dot_product_attention on the CPU, which also gives the log-sum-exp.

    `[L, H, D]` in; `[1, H, L, D]` and float32 `[1, H, L]` out. Fewer KV heads than query heads are shared evenly.
    """
    heads = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return _flash_op(*heads, 0.0, causal, scale=scale)


def write_pages(wave: Wave, values: torch.Tensor, pages: torch.Tensor) -> None:
    """Store each token's row in the page of its block."""
    assert wave.write_rows is not None
    pages.flatten(0, 1).index_copy_(0, wave.write_rows, values.to(pages.dtype))


def gather_pages(storage: torch.Tensor, pages: torch.Tensor, tokens: int) -> torch.Tensor:
    """The first `tokens` rows of these pages, in order: `[tokens, ...]`."""
    return storage.index_select(0, pages).flatten(0, 1)[:tokens]


def past_stretches(wave: Wave, index: int) -> Iterator[tuple[torch.Tensor, int]]:
    """The pages before a span's start, in stretches, each with its number of tokens."""
    size, start = wave.batch.block_size, wave.batch.spans[index].start
    stretch = max(1, _PAST_TOKENS // size)
    for first in range(0, -(-start // size), stretch):
        yield wave.pages[index][first : first + stretch], min(start - first * size, stretch * size)


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    return x if x.shape[-1] == width else functional.pad(x, (0, width - x.shape[-1]))
