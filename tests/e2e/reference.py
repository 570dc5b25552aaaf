"""What transformers makes of a prompt, and how a pulled state must agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from wavepp.client.decode_state import DecodeState
from wavepp.client.decoder import ReferenceDecoder
from wavepp.client.http import PrefillClient
from wavepp.client.pull import pull_state

TOLERANCE = 1e-4
"""Relative and absolute, of float32 logits."""
NEAR_TIE = 1e-3
"""Where the reference's own two best logits lie closer than this, the choice between them is rounding."""
ROUTER_TIE = 2e-6
"""Where two experts' scores lie closer than this on the border between chosen and not, that choice is rounding too, and
what follows from it is not comparable: transformers then disagrees with itself between batch sizes."""


@dataclass(frozen=True)
class Continuation:
    """Greedy `tokens` [n] and the float32 logits `[n, vocab]` that they were chosen from."""

    tokens: tuple[int, ...]
    logits: torch.Tensor
    comparable: int
    """So many of the logits come before any router's near tie, those of the prompt included."""

    def near_tie(self, step: int) -> bool:
        best = self.logits[step].topk(2).values
        return bool(best[0] - best[1] < NEAR_TIE)


class RouterMargins:
    """How clearly a model's routers chose their experts, forward by forward."""

    def __init__(self) -> None:
        self._rows = 0
        self._steps: list[torch.Tensor] = []
        """For each forward, the least margin of each row over its positions and layers."""

    def watch(self, model: torch.nn.Module) -> None:
        routers = [module for module in model.modules() if hasattr(module, "e_score_correction_bias")]
        for number, router in enumerate(routers):
            router.register_forward_hook(lambda module, args, _, first=number == 0: self._note(module, args[0], first))

    def begin(self, rows: int) -> None:
        self._rows, self._steps = rows, []

    def comparable(self, row: int, length: int) -> int:
        steps = (step for step, margins in enumerate(self._steps) if margins[row] < ROUTER_TIE)
        return next(steps, length)

    def _note(self, router: Any, hidden: torch.Tensor, first: bool) -> None:
        scores = torch.nn.functional.linear(hidden.float(), router.weight.float()).sigmoid()
        best = (scores + router.e_score_correction_bias).topk(router.top_k + 1, dim=-1).values
        margins = (best[..., -2] - best[..., -1]).reshape(self._rows, -1).amin(dim=1)
        if first:
            self._steps.append(margins)
        else:
            self._steps[-1] = torch.minimum(self._steps[-1], margins)


class Reference:
    """transformers' own generation, on the same weights in float32; each prompt is computed once."""

    def __init__(self, folder: Path) -> None:
        self._margins = RouterMargins()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self._model: Any = model.eval()
        self._margins.watch(self._model)
        self._known: dict[tuple[tuple[int, ...], int], Continuation] = {}

    def continuation(self, prompt: Sequence[int], length: int) -> Continuation:
        return self.continuations([prompt], length)[0]

    def continuations(self, prompts: Sequence[Sequence[int]], length: int) -> list[Continuation]:
        """Prompts of one length are generated together, so nothing is ever padded."""
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for prompt in dict.fromkeys(map(tuple, prompts)):
            if (prompt, length) not in self._known:
                by_length.setdefault(len(prompt), []).append(prompt)
        for same in by_length.values():
            self._generate(same, length)
        return [self._known[tuple(prompt), length] for prompt in prompts]

    @torch.inference_mode()
    def _generate(self, prompts: list[tuple[int, ...]], length: int) -> None:
        ids = torch.tensor(prompts)
        self._margins.begin(len(prompts))
        made = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
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
        for row, prompt in enumerate(prompts):
            tokens = tuple(made.sequences[row, len(prompt) :].tolist())
            logits = torch.stack([step[row].float() for step in made.logits])
            self._known[prompt, length] = Continuation(tokens, logits, self._margins.comparable(row, length))


def check_first_token(answer: dict, expected: Continuation) -> None:
    """The answer of `POST /v1/prefill` against the reference, logprob included."""
    if not expected.comparable:
        return
    token, logprob = answer["first_token"]["id"], answer["first_token"]["logprob"]
    logprobs = expected.logits[0].log_softmax(-1)
    assert token == expected.tokens[0] or expected.near_tie(0)
    torch.testing.assert_close(torch.tensor(logprob), logprobs[token], atol=TOLERANCE, rtol=TOLERANCE)


def pull(client: PrefillClient, decoder: ReferenceDecoder, handle: str, num_tokens: int) -> DecodeState:
    """The state of the handle, pulled from every stage; `free` it when done."""
    state = decoder.new_state()
    manifest = client.manifest(handle)
    assert manifest.num_tokens == num_tokens
    pull_state(manifest, state, timeout_s=60)
    return state


@dataclass(frozen=True)
class Pulled:
    """A state that a decode worker holds, `how` its prompt was prefilled, and what must follow."""

    how: str
    state: DecodeState
    expected: Continuation


def check_pulled_states(decoder: ReferenceDecoder, pulled: Sequence[Pulled]) -> None:
    """Continues from every state at once, along the reference's tokens: at each step the logits must agree, and where
    they are no near tie, so must the token that they choose. Frees the states."""
    steps = len(pulled[0].expected.tokens) - 1
    compared = 0
    try:
        for step in range(1, steps + 1):
            logits = decoder.steps([one.state for one in pulled], [one.expected.tokens[step - 1] for one in pulled])
            for line, (how, expected) in zip(logits, ((one.how, one.expected) for one in pulled), strict=True):
                if step >= expected.comparable:
                    continue
                compared += 1
                said = f"step {step} after a prompt of {how!r}"
                torch.testing.assert_close(
                    line,
                    expected.logits[step],
                    atol=TOLERANCE,
                    rtol=TOLERANCE,
                    msg=lambda text, said=said: f"{said}: {text}",
                )
                assert int(line.argmax()) == expected.tokens[step] or expected.near_tie(step), said
        assert compared > 0.7 * steps * len(pulled), "router ties are meant to be rare"
    finally:
        for one in pulled:
            one.state.free()
