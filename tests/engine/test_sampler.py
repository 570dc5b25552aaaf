"""The first token: its distribution against references that share no code with the sampler."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from wavepp.admission.request import Sampling
from wavepp.engine.sampler import SamplingError, process_logits, sample_first_token

VOCAB = 200
PROMPT = torch.tensor([3, 3, 3, 7, 150])
EOS = (5, 9)


def logits_of(seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: torch.Tensor, sampling: Sampling) -> int:
    return sample_first_token(logits, sampling, PROMPT, EOS).token


def numpy_weights(logits: np.ndarray, s: Sampling, prompt: list[int], eos: tuple[int, ...]) -> np.ndarray:
    """The probabilities, one token at a time, in plain loops."""
    x = [float(v) for v in logits]
    for token, bias in s.logit_bias.items():
        x[token] += bias
    if s.min_tokens >= 1:
        for token in eos:
            x[token] = -np.inf
    for token in set(prompt):
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        x[token] -= s.frequency_penalty * prompt.count(token) + s.presence_penalty
    p = np.exp((np.array(x) - max(x)) / s.temperature)
    if s.top_k:
        p[p < sorted(p, reverse=True)[min(s.top_k, len(p)) - 1]] = 0
    p /= p.sum()
    total = 0.0
    for token in sorted(range(len(p)), key=lambda t: (-p[t], t)):
        share, p[token] = p[token], p[token] if total < s.top_p else 0.0
        total += share
    p[p < s.min_p * p.max()] = 0
    return p / p.sum()


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.05, 3),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    min_tokens=st.integers(0, 2),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(SAMPLINGS, st.integers(0, 10_000))
def test_probabilities_are_those_of_the_plain_reference(sampling: Sampling, seed: int) -> None:
    logits = logits_of(seed)
    got = process_logits(logits, sampling, PROMPT, EOS).softmax(0).numpy()
    want = numpy_weights(logits.numpy(), sampling, PROMPT.tolist(), EOS)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    temperature=st.floats(0.1, 3),
    top_k=st.integers(1, VOCAB),
    top_p=st.floats(0.01, 0.999),
    min_p=st.floats(0.001, 1),
    penalty=st.floats(0.5, 2),
    seed=st.integers(0, 10_000),
)
def test_the_kept_tokens_are_those_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, seed: int
) -> None:
    logits = logits_of(seed).double()
    want: Any = logits[None]
    input_ids: Any = PROMPT[None]
    for warper in (
        RepetitionPenaltyLogitsProcessor(penalty),
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
        MinPLogitsWarper(min_p),
    ):
        want = warper(input_ids, want)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    got = process_logits(logits, sampling, PROMPT, EOS)
    assert torch.equal(got.isfinite(), want[0].isfinite())
    torch.testing.assert_close(got.softmax(0), want[0].softmax(0))


def test_draws_follow_the_distribution() -> None:
    logits = logits_of(1, vocab=12)
    sampling = Sampling(temperature=1.5, top_k=8, top_p=0.97, presence_penalty=0.5)
    want = numpy_weights(logits.numpy(), sampling, [3, 7], (5,))
    draws = 4_000
    counts = Counter(
        sample_first_token(
            logits,
            Sampling(temperature=1.5, top_k=8, top_p=0.97, presence_penalty=0.5, seed=seed),
            torch.tensor([3, 7]),
            (5,),
        ).token
        for seed in range(draws)
    )
    assert set(counts) <= set(np.flatnonzero(want).tolist())
    chi2 = sum((counts[t] - draws * want[t]) ** 2 / (draws * want[t]) for t in np.flatnonzero(want).tolist())
    assert np.count_nonzero(want) >= 5
    # The 99.9% point for 7 degrees of freedom, the most there can be here.
    assert chi2 < 24.3


def test_the_same_seed_gives_the_same_token_and_leaves_the_global_generator_alone() -> None:
    logits = logits_of(2)
    sampling = Sampling(temperature=1.0, seed=11)
    torch.manual_seed(0)
    first = draw(logits, sampling)
    state = torch.get_rng_state()
    torch.rand(5)
    before = torch.get_rng_state()
    assert draw(logits, sampling) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(state, before)


@pytest.mark.parametrize("stride", [1, 2**32, -1])
def test_seeds_differ_in_all_of_their_bits(stride: int) -> None:
    logits = torch.zeros(VOCAB)
    tokens = {draw(logits, Sampling(temperature=1.0, seed=stride * i)) for i in range(50)}
    assert len(tokens) > 35


def test_a_small_numeric_difference_does_not_change_the_draw() -> None:
    logits = logits_of(3)
    nudged = logits + 1e-5 * logits_of(4)
    sampled = [Sampling(temperature=1.0, seed=seed) for seed in range(200)]
    assert [draw(logits, s) for s in sampled] == [draw(nudged, s) for s in sampled]


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id() -> None:
    logits = torch.zeros(VOCAB)
    logits[[40, 30, 170]] = 2.0
    assert draw(logits, Sampling()) == 30
    assert draw(logits, Sampling(seed=99, top_k=1, top_p=0.1)) == 30


def test_equals_are_cut_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(10)
    halved = process_logits(logits, Sampling(temperature=1.0, top_p=0.5), PROMPT[:0], ())
    assert halved.isfinite().nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    tied_with_the_kth = process_logits(logits, Sampling(temperature=1.0, top_k=2), PROMPT[:0], ())
    assert bool(tied_with_the_kth.isfinite().all())


def test_the_likeliest_token_survives_every_cut() -> None:
    sampling = Sampling(temperature=1.0, top_k=1, top_p=1e-9, min_p=1.0)
    kept = process_logits(logits_of(5), sampling, PROMPT, EOS).isfinite()
    assert kept.nonzero().flatten().tolist() == [int(logits_of(5).argmax())]


def test_a_tiny_temperature_is_greedy() -> None:
    assert draw(logits_of(6), Sampling(temperature=1e-300, seed=5)) == int(logits_of(6).argmax())


def test_min_tokens_bans_the_end_of_sequence() -> None:
    logits = torch.zeros(VOCAB)
    logits[list(EOS)] = 50.0
    logits[8] = 1.0
    assert draw(logits, Sampling()) == EOS[0]
    assert draw(logits, Sampling(min_tokens=1, logit_bias={5: 100.0})) == 8
    assert all(draw(logits, Sampling(min_tokens=1, temperature=2.0, seed=s)) not in EOS for s in range(50))


def test_penalties_count_the_prompt() -> None:
    logits = torch.zeros(VOCAB)
    got = process_logits(logits + 1, Sampling(presence_penalty=0.25, frequency_penalty=0.5), PROMPT, EOS)
    assert got[[3, 7, 150, 0]].tolist() == [1 - 0.25 - 1.5, 0.25, 0.25, 1.0]
    assert draw(logits + 1, Sampling(repetition_penalty=0.5)) == 3


def test_logprobs_are_of_the_unprocessed_logits() -> None:
    logits = logits_of(7)
    sampling = Sampling(temperature=0.3, logit_bias={10: 100.0}, logprobs=4, seed=1, repetition_penalty=1.7)
    chosen = sample_first_token(logits, sampling, PROMPT, EOS)
    want = np.log(np.exp(logits.double().numpy()) / np.exp(logits.double().numpy()).sum())
    assert chosen.token == 10
    assert chosen.logprob == pytest.approx(want[10])
    assert [t for t, _ in chosen.top] == np.argsort(-want, kind="stable")[:4].tolist()
    assert [p for _, p in chosen.top] == pytest.approx(sorted(want, reverse=True)[:4])


@pytest.mark.parametrize(("asked", "given_back"), [(None, 0), (0, 0), (3, 3), (VOCAB + 9, VOCAB)])
def test_as_many_alternatives_as_asked_for(asked: int | None, given_back: int) -> None:
    assert len(sample_first_token(torch.zeros(VOCAB), Sampling(logprobs=asked), PROMPT, EOS).top) == given_back


def test_the_logits_are_left_as_they_are() -> None:
    logits = logits_of(8).double()
    before = logits.clone()
    draw(logits, Sampling(temperature=1.0, top_k=3, logit_bias={1: 5.0}, min_tokens=1, presence_penalty=1.0))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("logits", "sampling", "words"),
    [
        (torch.tensor([0.0, float("nan"), 1.0]), Sampling(), "nan"),
        (torch.tensor([0.0, float("inf")]), Sampling(), "inf"),
        (torch.full((3,), float("-inf")), Sampling(), "-inf"),
        (torch.zeros(2, 3), Sampling(), r"\[vocab\]"),
        (torch.zeros(3), Sampling(logit_bias={3: 1.0}), "logit_bias"),
        (torch.zeros(3), Sampling(presence_penalty=1.0), "prompt"),
        (torch.zeros(1), Sampling(min_tokens=1), "ban every token"),
    ],
)
def test_what_cannot_be_sampled_is_refused(logits: torch.Tensor, sampling: Sampling, words: str) -> None:
    with pytest.raises(SamplingError, match=words):
        sample_first_token(logits, sampling, torch.tensor([0, 7]), (0,))
