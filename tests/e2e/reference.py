"""What transformers makes of a prompt, and how a pulled state must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from wavepp.client.decoder import ReferenceDecoder
from wavepp.client.http import PrefillClient
from wavepp.client.pull import pull_state

TOLERANCE = 1e-4
"""Relative and absolute, of float32 logits."""
NEAR_TIE = 1e-3
"""Where the reference's own two best logits lie closer than this, the choice between them is rounding."""


@dataclass(frozen=True)
class Continuation:
    """Greedy `tokens` and, for each, the float32 logits `[vocab]` that it was chosen from."""

    tokens: tuple[int, ...]
    logits: tuple[torch.Tensor, ...]

    def near_tie(self, step: int) -> bool:
        best = self.logits[step].topk(2).values
        return bool(best[0] - best[1] < NEAR_TIE)


class Reference:
    """transformers' own generation, on the same weights in float32; each prompt is computed once."""

    def __init__(self, folder: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._model: Any = model.eval()
        self._known: dict[tuple[tuple[int, ...], int], Continuation] = {}

    @torch.inference_mode()
    def continuation(self, prompt: Sequence[int], length: int) -> Continuation:
        key = (tuple(prompt), length)
        if key not in self._known:
            made = self._model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                # The processors of a model's generation config would change what is compared.
                repetition_penalty=1.0,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            tokens = tuple(made.sequences[0, len(prompt) :].tolist())
            self._known[key] = Continuation(tokens, tuple(line[0].float() for line in made.logits))
        return self._known[key]


def check_first_token(answer: dict, expected: Continuation) -> None:
    """The answer of `POST /v1/prefill` against the reference, logprob included."""
    token, logprob = answer["first_token"]["id"], answer["first_token"]["logprob"]
    logprobs = expected.logits[0].log_softmax(-1)
    assert token == expected.tokens[0] or expected.near_tie(0)
    torch.testing.assert_close(torch.tensor(logprob), logprobs[token], atol=TOLERANCE, rtol=TOLERANCE)


def check_pulled_state(
    client: PrefillClient, decoder: ReferenceDecoder, handle: str, expected: Continuation, num_tokens: int
) -> None:
    """Pulls the handle's state from every stage and continues from it along the reference's tokens: every step's
    logits must agree, and where they are no near tie, so must the token that they choose."""
    state = decoder.new_state()
    try:
        manifest = client.manifest(handle)
        assert manifest.num_tokens == num_tokens
        pull_state(manifest, state, timeout_s=60)
        for step, token in enumerate(expected.tokens[:-1], start=1):
            logits = decoder.step(state, token)
            torch.testing.assert_close(logits, expected.logits[step], atol=TOLERANCE, rtol=TOLERANCE)
            assert int(logits.argmax()) == expected.tokens[step] or expected.near_tie(step)
    finally:
        state.free()
