"""Building Kimi Linear's layers from their tensors."""

from dataclasses import dataclass

from .config import ModelSpec
from .kernels.interface import Kernels
from .kimi_linear_config import KimiLinearConfig
from .layers.decoder import DecoderLayer
from .layers.final import FinalNorm, load_final_norm
from .layers.kda import load_kda
from .layers.mla import load_mla
from .layers.mlp import load_mlp
from .layers.moe import load_moe
from .weights import Scope


@dataclass(frozen=True, slots=True)
class KimiLinearBuilder:
    spec: ModelSpec
    family: KimiLinearConfig
    model: Scope
    kernels: Kernels

    def layer(self, layer: int) -> DecoderLayer:
        scope, hidden, eps = self.model.scope(f"layers.{layer}"), self.spec.hidden_size, self.spec.rms_norm_eps
        family, attention = self.family, scope.scope("self_attn")
        # Checkpoints put either kind of MLP under either name.
        block = scope.scope("block_sparse_moe", "mlp")
        if family.mixers[layer] == "kda":
            mixer = load_kda(attention, family.kda, hidden, eps, self.kernels)
        else:
            mixer = load_mla(attention, family.mla, hidden, self.kernels)
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

    def leave(self) -> FinalNorm:
        return load_final_norm(self.model, self.spec)
