"""A decode worker in its plainest form: the whole model in one process, one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..cache.device_pools import DevicePools
from ..models.batch import SpanState, WaveBatch
from ..models.config import load_spec
from ..models.runtime import prepare_torch
from ..models.stage_model import load_stage
from .config import DecoderConfig
from .decode_state import DecodeState, FreeList


class ReferenceDecoder:
    """Continues prompts whose state was pulled. Everything is called from one thread; several states may be held at
    once and their generators interleaved."""

    def __init__(self, folder: Path, config: DecoderConfig | None = None) -> None:
        """Loads the model from its folder. Raises what `load_stage` raises."""
        self.config = config or DecoderConfig()
        device = torch.device(self.config.device)
        prepare_torch(device, self.config.threads)
        self.spec = load_spec(folder)
        dtype = getattr(torch, self.config.dtype)
        self._model = load_stage(folder, range(self.spec.num_layers), dtype=dtype, device=device)
        block_size = self.config.block_size
        num_pages = -(-self.config.capacity_tokens // block_size) + self.config.max_states
        self._pools = DevicePools(
            self._model.cache_layout(),
            num_pages=num_pages,
            num_slots=self.config.max_states,
            block_size=block_size,
            device=device,
        )
        self._pages = FreeList(num_pages, "pages")
        self._slots = FreeList(self.config.max_states, "recurrent slots")

    def new_state(self) -> DecodeState:
        """An empty place to pull into; `free` it when done."""
        return DecodeState(self._pools, self._pages, self._slots)

    def generate(
        self,
        state: DecodeState,
        first_token: int,
        max_tokens: int,
        *,
        ignore_eos: bool = False,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Iterator[int]:
        """Yields `first_token` and then what follows, `max_tokens` in all; ends after an end-of-sequence token.

        `state` is that of the whole prompt and grows by each token that is fed to it. Temperature 0 is greedy; else
        tokens are drawn with a generator of this seed. Raises `DecoderFullError` when the pools are full.
        """
        generator = torch.Generator().manual_seed(seed)
        token = first_token
        for count in range(1, max_tokens + 1):
            yield token
            if count == max_tokens or (token in self.spec.eos_token_ids and not ignore_eos):
                return
            token = _choose(self.step(state, token), temperature, generator)

    def step(self, state: DecodeState, token: int) -> torch.Tensor:
        """Feeds one token, and gives the float32 logits `[vocab]` of the next one, on the CPU."""
        return self.steps((state,), (token,))[0]

    def steps(self, states: Sequence[DecodeState], tokens: Sequence[int]) -> torch.Tensor:
        """One step of several sequences at once: feeds each its token, and gives the float32 logits `[n, vocab]` of
        what comes next, on the CPU."""
        spans: list[SpanState] = []
        for state in states:
            position = state.num_tokens
            state.grow(position + 1)
            spans.append(SpanState(start=position, length=1, pages=state.pages, slot=state.slot))
        batch = WaveBatch(spans, self.config.block_size)
        outputs = self._model.forward(batch, self._pools.pools, torch.tensor(tokens), {})
        return self._model.logits(outputs, torch.arange(len(spans))).cpu()


def _choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # Measured from the maximum, so that small temperatures do not overflow.
    probabilities = torch.softmax((logits.double() - logits.max()) / temperature, dim=0)
    return int(torch.multinomial(probabilities, 1, generator=generator))
