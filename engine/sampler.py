"""The first token: from the last position's logits to a choice."""

from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from ..admission.request import Sampling


class SamplingError(ValueError):
    """These logits or these settings cannot give a token; the message says why."""


class SampledToken(NamedTuple):
    """`logprob` and `top` are natural logarithms of the model's own distribution (see `sample_first_token`)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@torch.inference_mode()
def sample_first_token(
    logits: Tensor, sampling: Sampling, prompt_tokens: Tensor, eos_token_ids: tuple[int, ...]
) -> SampledToken:
    """Chooses the token that follows the prompt: the likeliest by `process_logits` at temperature 0, else drawn from
    its softmax. Arguments and errors are those of `process_logits`.

    `logprob` is the token's log-softmax of the logits as given, before any processing (vLLM's `raw_logprobs`), and
    `top` holds the `sampling.logprobs` likeliest tokens of it, likeliest first.

    Depends on the arguments alone: the noise comes from `sampling.seed` and is drawn on the CPU for each token id
    (Gumbel-max), so the same request gives the same token in any batch, on any device, and small numeric differences
    rarely change it. Ties go to the lowest id. Reads nothing else, so any thread may call it."""
    scores = process_logits(logits, sampling, prompt_tokens, eos_token_ids)
    if sampling.temperature > 0:
        scores = scores + _noise(sampling.seed, scores.numel()).to(scores.device)
    token = int(scores.argmax())
    logprobs = logits.double().log_softmax(0)
    return SampledToken(token, float(logprobs[token]), _top(logprobs, sampling.logprobs or 0))


@torch.inference_mode()
def process_logits(logits: Tensor, sampling: Sampling, prompt_tokens: Tensor, eos_token_ids: tuple[int, ...]) -> Tensor:
    """The log weights of the first token, up to a constant: [vocab] float64 on the logits' device, −inf for what is
    excluded.

    `logits` is [vocab], floating, on any device, and is left as it is; `prompt_tokens` is [tokens] int64, anywhere.
    In the order of transformers, which is also vLLM's but for `min_p`, by which vLLM cuts before `top_k` and `top_p`:
    logit_bias; min_tokens (1 or more bans the end-of-sequence tokens, since this is the output's first);
    repetition, then frequency and presence penalties; temperature (at 0 the rest is skipped); top_k (ties with the
    k-th are kept); top_p (the shortest list, likeliest first, that reaches it; of equals the lowest ids); min_p.

    **The penalties count the prompt**, all three of them: nothing has been generated yet, so that a count over the
    output, as decoders keep it for presence and frequency, would never be anything but zero.

    Raises `SamplingError` on logits with NaN or without a finite maximum, on biased or penalised ids beyond the
    vocabulary, and when the settings ban every token."""
    _check_finite(logits)
    scores = _penalise(_bias(logits.double().clone(), sampling, eos_token_ids), sampling, prompt_tokens)
    largest = float(scores.max())
    if largest == float("-inf"):
        raise SamplingError("the settings ban every token of the vocabulary")
    if sampling.temperature == 0:
        return scores
    # Measured from the maximum, so that the smallest temperatures do not overflow.
    return _truncate((scores - largest) / sampling.temperature, sampling)


def _check_finite(logits: Tensor) -> None:
    if logits.dim() != 1 or logits.numel() == 0:
        raise SamplingError(f"logits must be [vocab], not {list(logits.shape)}")
    # The maximum of anything with NaN is NaN, so that one number tells of all.
    largest = float(logits.max())
    if largest != largest or largest in (float("inf"), float("-inf")):
        raise SamplingError(f"the largest logit is {largest}")


def _check_ids(ids: Tensor, vocab: int, what: str) -> None:
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab):
        raise SamplingError(f"{what} names a token outside the vocabulary of {vocab}")


def _bias(scores: Tensor, sampling: Sampling, eos_token_ids: tuple[int, ...]) -> Tensor:
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), dtype=torch.int64)
        _check_ids(ids, scores.numel(), "logit_bias")
        bias = torch.tensor(list(sampling.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        scores[ids.to(scores.device)] += bias
    if sampling.min_tokens > 0 and eos_token_ids:
        scores[torch.tensor(eos_token_ids, dtype=torch.int64, device=scores.device)] = float("-inf")
    return scores


def _penalise(scores: Tensor, sampling: Sampling, prompt_tokens: Tensor) -> Tensor:
    if (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) == (1.0, 0.0, 0.0):
        return scores
    _check_ids(prompt_tokens, scores.numel(), "the prompt")
    counts = torch.bincount(prompt_tokens.to(scores.device), minlength=scores.numel()).to(scores.dtype)
    seen = counts > 0
    penalty = sampling.repetition_penalty
    scores = torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)
    return scores - sampling.frequency_penalty * counts - sampling.presence_penalty * counts.clamp(max=1)


def _truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """`scores` with −inf for what top_k, top_p and min_p exclude; the likeliest token always stays."""
    if 0 < sampling.top_k < scores.numel():
        kth = scores.topk(sampling.top_k).values[-1]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, ids = scores.sort(descending=True, stable=True)
        probs = ordered.softmax(0)
        beyond = probs.cumsum(0) - probs >= sampling.top_p
        beyond[0] = False
        scores = scores.masked_fill(torch.zeros_like(beyond).scatter(0, ids, beyond), float("-inf"))
    if sampling.min_p > 0.0:
        relative = (scores - scores.max()).exp()
        scores = scores.masked_fill(relative < min(sampling.min_p, 1.0), float("-inf"))
    return scores


def _noise(seed: int, vocab: int) -> Tensor:
    """Standard Gumbel noise, [vocab] float64. Hashed first, since the generator itself looks at 32 bits only."""
    digest = blake2b((seed % 2**64).to_bytes(8, "little"), digest_size=4).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    uniform = torch.rand(vocab, dtype=torch.float64, generator=generator).clamp_(min=2.0**-54)
    return -torch.log(-torch.log(uniform))


def _top(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if count <= 0:
        return ()
    ordered, ids = logprobs.sort(descending=True, stable=True)
    return tuple(zip(ids[:count].tolist(), ordered[:count].tolist(), strict=True))
