"""Building Kimi Linear's layers from their tensors."""

from .config import ModelSpec
from .kernels.interface import Kernels
from .kimi_linear_config import KimiLinearConfig
from .layers.decoder import DecoderLayer
from .layers.kda import load_kda
from .layers.mla import load_mla
from .layers.mlp import load_mlp
from .layers.moe import load_moe
from .weights import Scope


def load_kimi_layer(
    spec: ModelSpec, family: KimiLinearConfig, layer: int, model: Scope, kernels: Kernels
) -> DecoderLayer:
    """Layer `layer` under the scope `model.`."""
    scope, hidden, eps = model.scope(f"layers.{layer}"), spec.hidden_size, spec.rms_norm_eps
    attention = scope.scope("self_attn")
    # Checkpoints put either kind of MLP under either name.
    block = scope.scope("block_sparse_moe", "mlp")
    if family.mixers[layer] == "kda":
        mixer = load_kda(attention, family.kda, hidden, eps, kernels)
    else:
        mixer = load_mla(attention, family.mla, hidden, kernels)
    return DecoderLayer(
        name=f"model.layers.{layer}.self_attn",
        input_norm=scope.take("input_layernorm.weight", hidden),
        mixer=mixer,
        post_norm=scope.take("post_attention_layernorm.weight", hidden),
        mlp=load_moe(block, family.moe, hidden)
        if family.sparse[layer]
        else load_mlp(block, hidden, family.intermediate_size),
        eps=eps,
    )
