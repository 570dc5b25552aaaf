"""What one page or slot holds on one stage: the tensors of each layer, by window."""

from dataclasses import dataclass
from enum import StrEnum
from math import prod


class Window(StrEnum):
    """A cache kind with its own pool and tree on a stage."""

    ATTENTION = "attention"
    RECURRENT = "recurrent"


_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor of a layer's cache.

    `shape` is per token for an attention window (storage `[pages, B, *shape]`) and per state for a recurrent
    window (storage `[slots, *shape]`). `dtype` is torch's name for it, for instance `"float32"`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * _DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer. `name` is the layer's public address, for instance `model.layers.3.self_attn`;
    `kind` names the mixer (`gqa`, `mla`, `kda`), so that a puller can refuse by name what it cannot take."""

    layer: int
    name: str
    kind: str
    window: Window
    tensors: tuple[TensorSpec, ...]


def bytes_per_token(layers: tuple[LayerCache, ...]) -> int:
    """Attention bytes that one token takes over all these layers."""
    return sum(t.num_bytes for layer in layers if layer.window is Window.ATTENTION for t in layer.tensors)


def bytes_per_state(layers: tuple[LayerCache, ...]) -> int:
    """Recurrent bytes that one snapshot takes over all these layers."""
    return sum(t.num_bytes for layer in layers if layer.window is Window.RECURRENT for t in layer.tensors)
