"""What a stage caches and sends, from the model's description alone. No torch."""

from typing import TYPE_CHECKING

from ..cache.layout import LayerCache, TensorSpec
from .config import ModelSpec

if TYPE_CHECKING:
    import torch


def dtype_name(dtype: "torch.dtype | str") -> str:
    """`"float32"` for `torch.float32` and for `"float32"`."""
    return str(dtype).removeprefix("torch.")


def cache_layout(spec: ModelSpec, layers: range, dtype: "torch.dtype | str") -> tuple[LayerCache, ...]:
    """The caches of these layers, in order. Recurrent state is float32 whatever `dtype`."""
    return tuple(spec.family.layer_cache(layer, dtype_name(dtype)) for layer in layers)


def hop_spec(spec: ModelSpec, layers: range, dtype: "torch.dtype | str") -> tuple[TensorSpec, ...]:
    """Per-token tensors that the stage with these layers sends to the next; empty for the last stage."""
    if layers.stop == spec.num_layers:
        return ()
    return spec.family.hop(layers.stop, spec.hidden_size, dtype_name(dtype))
