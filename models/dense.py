"""Building dense GQA layers (Llama, Mistral, Qwen2, Qwen3) from their tensors."""

from .config import ModelSpec
from .dense_config import DenseConfig
from .kernels.interface import Kernels
from .layers.decoder import DecoderLayer
from .layers.gqa import load_gqa
from .layers.mlp import load_mlp
from .weights import Scope


def load_dense_layer(spec: ModelSpec, family: DenseConfig, layer: int, model: Scope, kernels: Kernels) -> DecoderLayer:
    """Layer `layer` under the scope `model.`."""
    scope, eps = model.scope(f"layers.{layer}"), spec.rms_norm_eps
    return DecoderLayer(
        name=f"model.layers.{layer}.self_attn",
        input_norm=scope.take("input_layernorm.weight", spec.hidden_size),
        mixer=load_gqa(scope.scope("self_attn"), family, spec.hidden_size, eps, kernels),
        post_norm=scope.take("post_attention_layernorm.weight", spec.hidden_size),
        mlp=load_mlp(scope.scope("mlp"), spec.hidden_size, family.intermediate_size, bias=family.mlp_bias),
        eps=eps,
    )
