"""A stage that caches and sends like a model's, and computes nothing."""

from pathlib import Path

import torch

from ..cache.layout import TensorSpec
from .batch import Activations, LayerPools, WaveBatch
from .config import ModelSpec, load_spec
from .kernels.interface import kernels_for
from .layout import dtype_name
from .stage_model import HIDDEN, StageModel, StageParts

EMULATED_WIDTH = 16
"""Numbers a token that a hop carries, whatever the model's own would be."""
STAMP_BYTES = 16
"""The first bytes of a wave's activations are not ours: whoever runs the stage may write there."""
_TOKEN_BYTES = slice(STAMP_BYTES, STAMP_BYTES + 4)


class EmulatedStage(StageModel):
    """The layers `layers` of a model that is only described: its config says what they cache, weights are not read.

    Pages and states are never written, so that what is pulled is zero throughout. The first token depends on the last
    token of the prompt alone, whatever was cached and however the prompt was divided. Owner: the LOOP thread."""

    def __init__(self, spec: ModelSpec, layers: range, dtype: torch.dtype) -> None:
        device = torch.device("cpu")
        super().__init__(spec, layers, StageParts((), None, None, None, None), kernels_for(device), dtype, device)

    @property
    def weight_bytes(self) -> int:
        return 0

    def hop_from(self, layers: range) -> tuple[TensorSpec, ...]:
        """A few bytes a token instead of the model's own."""
        return (TensorSpec(HIDDEN, (EMULATED_WIDTH,), dtype_name(self.dtype)),) if super().hop_from(layers) else ()

    def forward(
        self, batch: WaveBatch, pools: LayerPools, tokens: torch.Tensor | None, inputs: Activations
    ) -> Activations:
        """Hands the wave's T tokens on, `{"hidden": [T, EMULATED_WIDTH]}`. Raises ValueError when what came in has
        another length than the batch."""
        del pools
        if not self.is_first:
            hidden = inputs[HIDDEN]
        elif tokens is None:
            raise ValueError("the first stage needs the wave's tokens")
        else:
            hidden = torch.zeros((len(tokens), EMULATED_WIDTH), dtype=self.dtype)
            hidden.view(torch.uint8)[:, _TOKEN_BYTES] = tokens.to(torch.int32).view(torch.uint8).view(-1, 4)
        if len(hidden) != batch.num_tokens:
            raise ValueError(f"the wave has {batch.num_tokens} tokens, its activations are {tuple(hidden.shape)}")
        # The receive buffer is given back when the wave is settled, and it may be sent only after that.
        return {HIDDEN: hidden if self.is_first else hidden.clone()}

    def logits(self, outputs: Activations, rows: torch.Tensor) -> torch.Tensor:
        """float32 `[R, vocab_size]`: for each of the rows `[R]` noise that is drawn by the row's token."""
        tokens = outputs[HIDDEN].view(torch.uint8)[rows][:, _TOKEN_BYTES].contiguous().view(torch.int32)
        return torch.stack([self._noise(token) for token in tokens.flatten().tolist()])

    def _noise(self, seed: int) -> torch.Tensor:
        return torch.randn(self.spec.vocab_size, generator=torch.Generator().manual_seed(seed))


def emulate_stage(folder: Path, layers: range, dtype: torch.dtype) -> EmulatedStage:
    """Raises what `load_spec` raises; ValueError for layers outside the model."""
    spec = load_spec(folder)
    if not 0 <= layers.start < layers.stop <= spec.num_layers or layers.step != 1:
        raise ValueError(f"layers {layers} are not a part of the model's {spec.num_layers}")
    return EmulatedStage(spec, layers, dtype)
