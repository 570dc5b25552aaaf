"""What a family of models tells about itself without its weights. No torch."""

from pydantic import BaseModel, ConfigDict

from ..cache.layout import LayerCache, TensorSpec
from .rope import RopeConfig

HIDDEN = "hidden"
"""The name of the residual stream among a hop's tensors."""


class Family(BaseModel):
    """Base of every family's frozen description. `kind` tells them apart, and `models/builders.py` knows how to build
    each kind's layers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def layer_cache(self, layer: int, dtype: str) -> LayerCache:
        """What layer `layer` keeps; `dtype` is that of attention state."""
        raise NotImplementedError

    def hop(self, boundary: int, hidden_size: int, dtype: str) -> tuple[TensorSpec, ...]:
        """Per-token tensors that travel between the stages that end before layer `boundary` and begin at it."""
        del boundary
        return (TensorSpec(HIDDEN, (hidden_size,), dtype),)

    @property
    def rotary(self) -> tuple[RopeConfig, int] | None:
        """Rotary embedding and the width that it turns; None for families without position encoding."""
        return None

    @property
    def expert_share(self) -> float:
        """Which part of a layer's routed experts one token passes; 1 where there are none."""
        return 1.0

    def pair_macs(self, layer: int) -> int:
        """Multiply-adds of one token with one before it in this layer's attention, over all heads."""
        del layer
        return 0

    @property
    def roots(self) -> tuple[str, ...]:
        """What the names of a checkpoint's tensors begin with; the first that is there counts."""
        return ("",)
