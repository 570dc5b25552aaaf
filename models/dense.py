"""Building dense GQA layers (Llama, Mistral, Qwen2, Qwen3) from their tensors."""

from dataclasses import dataclass

from .config import ModelSpec
from .dense_config import DenseConfig
from .kernels.interface import Kernels
from .layers.decoder import DecoderLayer
from .layers.final import FinalNorm, load_final_norm
from .layers.gqa import load_gqa
from .layers.mlp import load_mlp
from .weights import Scope


@dataclass(frozen=True, slots=True)
class DenseBuilder:
    spec: ModelSpec
    family: DenseConfig
    model: Scope
    kernels: Kernels

    def layer(self, layer: int) -> DecoderLayer:
        scope, eps, hidden = self.model.scope(f"layers.{layer}"), self.spec.rms_norm_eps, self.spec.hidden_size
        return DecoderLayer(
            name=f"model.layers.{layer}.self_attn",
            input_norm=scope.take("input_layernorm.weight", hidden),
            mixer=load_gqa(scope.scope("self_attn"), self.family, hidden, eps, self.kernels),
            post_norm=scope.take("post_attention_layernorm.weight", hidden),
            mlp=load_mlp(scope.scope("mlp"), hidden, self.family.intermediate_size, bias=self.family.mlp_bias),
            eps=eps,
        )

    def leave(self) -> FinalNorm:
        return load_final_norm(self.model, self.spec)
