"""Paged attention against the full matrix: pages in any order, past in several stretches, absorbed and not."""

import pytest
import torch
from wavepp.models.batch import SpanState, WaveBatch
from wavepp.models.kernels import cpu_attention
from wavepp.models.wave import Wave, prepare_wave

from .naive import causal_attention

BLOCK = 8
PAGES = 32


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def wave_of(*spans: SpanState) -> Wave:
    return prepare_wave(WaveBatch(spans, BLOCK), torch.device("cpu"), attention=True, recurrent=False, rotary=None)


def pages_for(end: int, first: int = 0) -> list[int]:
    shuffled = torch.randperm(PAGES, generator=torch.Generator().manual_seed(3)).tolist()
    return shuffled[first : first + -(-end // BLOCK)]


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that a past of a hundred tokens takes several."""
    monkeypatch.setattr(cpu_attention, "_PAST_TOKENS", 24)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 16), (6, 2, 24), (8, 1, 10)])
@pytest.mark.parametrize("cuts", [[90], [40, 90], [1, 2, 33, 34, 90], [8, 24, 89, 90]])
def test_gqa_over_any_cuts_equals_the_full_matrix(cuts: list[int], heads: int, kv_heads: int, dim: int) -> None:
    q, k, v = randn(90, heads, dim), randn(90, kv_heads, dim, seed=1), randn(90, kv_heads, dim, seed=2)
    k_pages, v_pages = torch.full((2, PAGES, BLOCK, kv_heads, dim), float("nan"))
    parts = []
    for start, stop in zip([0, *cuts], cuts, strict=False):
        wave = wave_of(SpanState(start, stop - start, pages_for(stop), -1))
        rows = slice(start, stop)
        parts.append(cpu_attention.gqa(wave, q[rows], k[rows], v[rows], k_pages, v_pages, dim**-0.5))
    expected = causal_attention(q, k, v, dim**-0.5)
    torch.testing.assert_close(torch.cat(parts).double(), expected, atol=2e-6, rtol=1e-5)
    assert torch.equal(k_pages[pages_for(90)].flatten(0, 1)[:90], k)
    assert torch.equal(v_pages[pages_for(90)].flatten(0, 1)[:90], v)


def test_gqa_spans_of_one_wave_see_only_their_own_pages() -> None:
    k_pages, v_pages = randn(PAGES, BLOCK, 2, 16, seed=7), randn(PAGES, BLOCK, 2, 16, seed=8)
    first, second = pages_for(50), pages_for(27, first=7)
    q, k, v = randn(37, 4, 16), randn(37, 2, 16, seed=1), randn(37, 2, 16, seed=2)
    wave = wave_of(SpanState(40, 10, first, -1), SpanState(0, 27, second, -1))
    past_k, past_v = (pages[first].flatten(0, 1)[:40].clone() for pages in (k_pages, v_pages))
    out = cpu_attention.gqa(wave, q, k, v, k_pages, v_pages, 0.25)
    resumed = causal_attention(q[:10], torch.cat([past_k, k[:10]]), torch.cat([past_v, v[:10]]), 0.25)
    torch.testing.assert_close(out[:10].double(), resumed, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(out[10:].double(), causal_attention(q[10:], k[10:], v[10:], 0.25), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("absorbed_queries", [0, 1, 1000])
@pytest.mark.parametrize(("nope", "rope", "v_dim"), [(16, 8, 16), (8, 4, 20)])
@pytest.mark.parametrize("cuts", [[70], [1, 30, 31, 70], [55, 70]])
def test_mla_expanded_and_absorbed_equal_attention_over_the_expanded_heads(
    cuts: list[int], nope: int, rope: int, v_dim: int, absorbed_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_attention, "_ABSORBED_QUERIES", absorbed_queries)
    heads, rank = 3, 12
    q, ckv, kpe = randn(70, heads, nope + rope), randn(70, rank, seed=1), randn(70, rope, seed=2)
    kv_b = randn(heads, nope + v_dim, rank, seed=4)
    ckv_pages = torch.full((PAGES, BLOCK, rank), float("nan"))
    kpe_pages = torch.full((PAGES, BLOCK, rope), float("nan"))
    parts = []
    for start, stop in zip([0, *cuts], cuts, strict=False):
        wave = wave_of(SpanState(start, stop - start, pages_for(stop), -1))
        rows = slice(start, stop)
        parts.append(cpu_attention.mla(wave, q[rows], ckv[rows], kpe[rows], ckv_pages, kpe_pages, kv_b, 0.2))
    expanded = torch.einsum("nr,hdr->nhd", ckv.double(), kv_b.double())
    keys = torch.cat([expanded[..., :nope], kpe.double().unsqueeze(1).expand(-1, heads, -1)], -1)
    expected = causal_attention(q, keys, expanded[..., nope:], 0.2)
    torch.testing.assert_close(torch.cat(parts).double(), expected, atol=5e-6, rtol=2e-5)
    assert torch.equal(ckv_pages[pages_for(70)].flatten(0, 1)[:70], ckv)
    assert torch.equal(kpe_pages[pages_for(70)].flatten(0, 1)[:70], kpe)
