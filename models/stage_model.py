"""One stage's layers, ready to run waves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

from ..cache.layout import LayerCache, TensorSpec, Window
from .batch import Activations, LayerPools, WaveBatch
from .builders import Leave, builder_of
from .config import ModelSpec, load_spec
from .errors import UnsupportedModelError
from .family import HIDDEN
from .kernels import cpu_gemm
from .kernels.interface import Kernels, kernels_for
from .layers.decoder import Layer, LayerPool
from .layers.rotary import Rotary
from .layout import cache_layout, hop_spec
from .wave import Wave, prepare_wave
from .weights import Progress, Scope, StageWeights, TensorPlan, TensorSource


@dataclass(frozen=True, slots=True)
class StageParts:
    """The tensors of a stage: `embedding` on the first only, `leave`, which normalises what the last
    layer leaves, and `head` on the last only."""

    layers: tuple[Layer, ...]
    rotary: Rotary | None
    embedding: torch.Tensor | None
    leave: Leave | None
    head: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Watched:
    """A layer that tells when it begins."""

    layer: Layer
    begins: Callable[[], None]

    def __call__(self, stream: Activations, wave: Wave, pools: Mapping[str, LayerPool]) -> None:
        self.begins()
        self.layer(stream, wave, pools)


class StageModel:
    """Runs the layers `layers` of a model on one device. Owner: the LOOP thread."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: range,
        parts: StageParts,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.spec = spec
        self.layers = layers
        self.dtype = dtype
        self.device = device
        self._parts = parts
        self._kernels = kernels
        windows = {layer.window for layer in self.cache_layout()}
        self._attention = Window.ATTENTION in windows
        self._recurrent = Window.RECURRENT in windows

    @property
    def is_first(self) -> bool:
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        return self.layers.stop == self.spec.num_layers

    def cache_layout(self) -> tuple[LayerCache, ...]:
        """The caches of this stage's layers, in order."""
        return cache_layout(self.spec, self.layers, self.dtype)

    @property
    def weight_bytes(self) -> int:
        """What the weights of this stage's layers take."""
        return plan_stage(self.spec, self.layers, self.dtype).num_bytes

    def hop_spec(self) -> tuple[TensorSpec, ...]:
        """Per-token tensors that this stage sends to the next; empty on the last."""
        return self.hop_from(self.layers)

    def hop_from(self, layers: range) -> tuple[TensorSpec, ...]:
        """What a stage of the same kind with these layers sends to the next."""
        return hop_spec(self.spec, layers, self.dtype)

    def watched(self, on_layer: Callable[[int], None]) -> "StageModel":
        """This stage, with the same weights; calls `on_layer` with a layer's number just before it runs."""
        numbered = zip(self.layers, self._parts.layers, strict=True)
        layers = tuple(_Watched(layer, partial(on_layer, number)) for number, layer in numbered)
        parts = replace(self._parts, layers=layers)
        return StageModel(self.spec, self.layers, parts, self._kernels, self.dtype, self.device)

    @torch.inference_mode()
    def forward(
        self, batch: WaveBatch, pools: LayerPools, tokens: torch.Tensor | None, inputs: Activations
    ) -> Activations:
        """Run one wave of T tokens, writing its state into `pools`.

        `tokens`: int64 `[T]` on the first stage, None elsewhere; `inputs`: what the stage before sent, empty on the
        first. Returns what `hop_spec` says or, on the last stage, what `logits` takes, before the final norm. Raises
        ValueError when the shapes, pages or slots do not fit the batch.
        """
        wave = prepare_wave(
            batch, self.device, attention=self._attention, recurrent=self._recurrent, rotary=self._parts.rotary
        )
        hidden = self._enter(tokens, inputs)
        if hidden.shape != (batch.num_tokens, self.spec.hidden_size):
            raise ValueError(f"the wave has {batch.num_tokens} tokens, its activations are {tuple(hidden.shape)}")
        self._kernels.begin(wave)
        stream = {**inputs, HIDDEN: hidden}
        for layer in self._parts.layers:
            layer(stream, wave, pools)
        return stream

    @torch.inference_mode()
    def logits(self, outputs: Activations, rows: torch.Tensor) -> torch.Tensor:
        """Last stage only: float32 `[R, vocab_size]` for the int64 rows `[R]` of the wave's token axis."""
        if self._parts.leave is None or self._parts.head is None:
            raise ValueError("only the last stage has logits")
        rows = rows.to(self.device)
        chosen = {name: tensor.index_select(0, rows) for name, tensor in outputs.items()}
        return cpu_gemm.linear(self._parts.leave(chosen), self._parts.head, wide=True).float()

    def _enter(self, tokens: torch.Tensor | None, inputs: Activations) -> torch.Tensor:
        if self._parts.embedding is None:
            return inputs[HIDDEN].to(self.dtype)
        if tokens is None:
            raise ValueError("the first stage needs the wave's tokens")
        return functional.embedding(tokens.to(self.device), self._parts.embedding)


def load_stage(
    folder: Path, layers: range, *, dtype: torch.dtype, device: torch.device, on_progress: Progress | None = None
) -> StageModel:
    """Read the tensors of `layers` from the model folder, with the embedding on the first stage and the head on the
    last, cast to `dtype` (float32 or bfloat16).

    Raises UnsupportedModelError and CheckpointError (see there); ValueError for layers outside the model.
    """
    spec = load_spec(folder)
    plan = plan_stage(spec, layers, dtype)
    kernels = kernels_for(device)
    with torch.inference_mode(), StageWeights(folder, plan, device, on_progress) as weights:
        return StageModel(spec, layers, _build(spec, layers, weights, kernels), kernels, dtype, device)


def plan_stage(spec: ModelSpec, layers: range, dtype: torch.dtype) -> TensorPlan:
    """The tensors that a stage will read, and so the bytes of its weights, without reading them."""
    if not 0 <= layers.start < layers.stop <= spec.num_layers or layers.step != 1:
        raise ValueError(f"layers {layers} are not a part of the model's {spec.num_layers}")
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModelError(f"dtype {dtype} is not supported; supported: float32, bfloat16")
    plan = TensorPlan(dtype)
    _build(spec, layers, plan, kernels_for(torch.device("cpu")))
    return plan


def _build(spec: ModelSpec, layers: range, source: TensorSource, kernels: Kernels) -> StageParts:
    root = Scope(source, spec.family.roots)
    is_first, is_last = layers.start == 0, layers.stop == spec.num_layers
    builder = builder_of(spec, root.scope("model"), kernels)
    table = (spec.vocab_size, spec.hidden_size)
    tied = is_last and spec.tie_word_embeddings
    embedding = root.scope("model").take("embed_tokens.weight", *table) if is_first or tied else None
    head = embedding if tied else root.take("lm_head.weight", *table) if is_last else None
    rotary = spec.family.rotary
    return StageParts(
        layers=tuple(builder.layer(layer) for layer in layers),
        rotary=None if rotary is None else Rotary(*rotary, source.device),
        embedding=embedding if is_first else None,
        leave=builder.leave() if is_last else None,
        head=head,
    )
