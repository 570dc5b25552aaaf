"""KDA and the short convolutions against token-by-token references, over spans that resume and snapshot."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wavepp.models.batch import SpanState, WaveBatch
from wavepp.models.kernels.cpu_kda import CHUNK
from wavepp.models.kernels.cpu_recurrent import kda, segments, short_conv
from wavepp.models.wave import Wave, prepare_wave

from .naive import causal_conv, kda_recurrence

HEADS, K_DIM, V_DIM = 3, 16, 12
DECAYS = ["none", "mild", "strong", "mixed", "very strong"]


def wave_of(*spans: SpanState) -> Wave:
    return prepare_wave(WaveBatch(spans, 16), torch.device("cpu"), attention=False, recurrent=True, rotary=None)


KdaInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def rows_of(inputs: KdaInputs, start: int, stop: int) -> KdaInputs:
    q, k, v, g, beta = (tensor[start:stop] for tensor in inputs)
    return q, k, v, g, beta


def kda_inputs(length: int, decay: str, seed: int = 0) -> KdaInputs:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(length, HEADS, dim, generator=generator) for dim in (K_DIM, K_DIM, V_DIM))
    q, k = (tensor / tensor.norm(dim=-1, keepdim=True) for tensor in (q, k))
    uniform = torch.rand(length, HEADS, K_DIM, generator=generator)
    g = {
        "none": torch.zeros_like(uniform),
        "mild": -0.1 * uniform,
        "strong": -8 * uniform,
        # Tokens that wipe the state stand between tokens that keep nearly all of it.
        "mixed": torch.where(uniform < 0.1, -150 * uniform / 0.1, -0.01 * uniform),
        "very strong": -400 * uniform,
    }[decay]
    return q, k, v, g, torch.rand(length, HEADS, generator=generator)


def run_kda(inputs: KdaInputs, states: torch.Tensor, *spans: SpanState) -> torch.Tensor:
    q, k, v, g, beta = inputs
    return kda(wave_of(*spans), q, k, v, g, beta, states)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("length", [1, 2, 15, 16, 31, 32, 33, 64, 100, 193])
def test_kda_from_nothing_equals_the_recurrence(length: int, decay: str) -> None:
    inputs = kda_inputs(length, decay)
    states = torch.full((3, HEADS, K_DIM, V_DIM), float("nan"))
    out = run_kda(inputs, states, SpanState(0, length, [], 1))
    expected, after = kda_recurrence(*inputs, torch.zeros(HEADS, K_DIM, V_DIM))
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(states[1].double(), after[-1], atol=2e-6, rtol=1e-5)
    assert states[[0, 2]].isnan().all()


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("marks", [[], [32, 64, 96], [1, 40, 41, 72, 100], [100], [99]])
def test_kda_resumes_from_a_slot_and_snapshots_on_the_way(marks: list[int], decay: str) -> None:
    inputs = kda_inputs(100, decay)
    start_state = torch.randn(HEADS, K_DIM, V_DIM, generator=torch.Generator().manual_seed(5))
    states = torch.zeros(16, HEADS, K_DIM, V_DIM)
    states[3] = start_state
    snapshots = [(500 + mark, 5 + index) for index, mark in enumerate(marks)]
    out = run_kda(inputs, states, SpanState(500, 100, [], 3, snapshots))
    expected, after = kda_recurrence(*inputs, start_state)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(states[3].double(), after[-1], atol=2e-6, rtol=1e-5)
    for mark, (_, slot) in zip(marks, snapshots, strict=True):
        torch.testing.assert_close(states[slot].double(), after[mark - 1], atol=2e-6, rtol=1e-5)


def test_kda_with_identical_keys_and_no_decay_stays_accurate() -> None:
    """The worst case for solving a chunk by powers of its matrix, whose entries reach 10^8 here."""
    q, k, v, g, beta = kda_inputs(96, "none")
    inputs = (q, k[:1].expand_as(k), v, g, torch.ones_like(beta))
    states = torch.zeros(1, HEADS, K_DIM, V_DIM)
    out = run_kda(inputs, states, SpanState(0, 96, [], 0))
    expected, after = kda_recurrence(*inputs, torch.zeros(HEADS, K_DIM, V_DIM))
    torch.testing.assert_close(out.double(), expected, atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(states[0].double(), after[-1], atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("decay", ["mild", "strong"])
def test_kda_cut_at_chunk_boundaries_is_bit_exact(decay: str) -> None:
    inputs = kda_inputs(10 * CHUNK, decay)
    states = torch.zeros(2, HEADS, K_DIM, V_DIM)
    whole = run_kda(inputs, states, SpanState(0, 10 * CHUNK, [], 0))
    parts = []
    for start, stop in [(0, 3 * CHUNK), (3 * CHUNK, 4 * CHUNK), (4 * CHUNK, 10 * CHUNK)]:
        part = rows_of(inputs, start, stop)
        parts.append(run_kda(part, states, SpanState(start, stop - start, [], 1)))
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(states[0], states[1])


def test_kda_spans_of_one_wave_do_not_mix() -> None:
    lengths, inputs = [40, 1, 65], kda_inputs(106, "mild")
    states = torch.randn(6, HEADS, K_DIM, V_DIM, generator=torch.Generator().manual_seed(1))
    before = states.clone()
    spans = [SpanState(7, 40, [], 4), SpanState(0, 1, [], 2), SpanState(0, 65, [], 5)]
    out = run_kda(inputs, states, *spans)
    first = 0
    for span, length in zip(spans, lengths, strict=True):
        part = rows_of(inputs, first, first + length)
        expected, after = kda_recurrence(*part, before[span.slot] if span.start else torch.zeros_like(before[0]))
        torch.testing.assert_close(out[first : first + length].double(), expected, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(states[span.slot].double(), after[-1], atol=2e-6, rtol=1e-5)
        first += length
    assert torch.equal(states[[0, 1, 3]], before[[0, 1, 3]])


@given(st.integers(1, 5000), st.sets(st.integers(1, 5000), max_size=8))
def test_segments_cover_the_span_and_every_mark_ends_a_chunk(length: int, drawn: set[int]) -> None:
    marks = sorted(mark for mark in drawn if mark <= length)
    cuts = list(segments(length, marks))
    assert [start for start, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
    assert cuts[-1][1] == length
    for mark in marks:
        start, stop = next((start, stop) for start, stop in cuts if start < mark <= stop)
        assert mark == stop or (mark - start) % CHUNK == 0


@pytest.mark.parametrize("cuts", [[30], [1, 2, 3, 4, 5, 30], [17, 30], [2, 29, 30]])
def test_short_conv_over_spans_equals_one_pass_and_keeps_its_last_inputs(cuts: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(30, 12, generator=generator), torch.randn(4, 12, generator=generator)
    states = tuple(torch.full((3, 3, width), float("nan")) for width in (4, 4, 4))
    parts = []
    for start, stop in zip([0, *cuts], cuts, strict=False):
        snapshots = [(stop, 2)] if stop == 30 else []
        wave = wave_of(SpanState(start, stop - start, [], 1, snapshots))
        parts.append(short_conv(wave, x[start:stop], weight, states))
    torch.testing.assert_close(torch.cat(parts), causal_conv(x, weight), atol=1e-5, rtol=1e-5)
    for slot in (1, 2):
        assert torch.equal(torch.cat([state[slot] for state in states], -1), x[-3:])
    assert all(state[0].isnan().all() for state in states)


def test_short_conv_snapshots_inside_a_span_hold_the_inputs_before_them() -> None:
    x, weight = torch.arange(1.0, 21.0).unsqueeze(1), torch.ones(4, 1)
    states = (torch.zeros(4, 3, 1),)
    short_conv(wave_of(SpanState(0, 20, [], 0, [(1, 1), (2, 2), (16, 3)])), x, weight, states)
    assert states[0].squeeze(-1).tolist() == [[18, 19, 20], [0, 0, 1], [0, 1, 2], [14, 15, 16]]
