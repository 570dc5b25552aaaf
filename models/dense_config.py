"""Dense GQA decoders: what of Llama, Mistral, Qwen2 and Qwen3 differs, as one frozen description. No torch."""

from typing import Literal

from pydantic import Field

from ..cache.layout import LayerCache, TensorSpec, Window
from .errors import UnsupportedModelError
from .family import Family
from .hf_config import RawConfig
from .rope import RopeConfig, parse_rope


class DenseConfig(Family):
    """GQA attention with rotary embedding and a gated SiLU MLP in every layer."""

    kind: Literal["dense"] = "dense"
    num_heads: int = Field(ge=1, description="query heads")
    num_kv_heads: int = Field(ge=1, description="key and value heads; divides num_heads")
    head_dim: int = Field(ge=2, multiple_of=2, description="width of one head")
    intermediate_size: int = Field(ge=1, description="width of the MLP")
    qk_norm: bool = Field(description="RMSNorm over each head of q and k, before the rotation")
    qkv_bias: bool = Field(description="bias on the q, k and v projections")
    output_bias: bool = Field(description="bias on the attention's output projection")
    mlp_bias: bool = Field(description="bias on the MLP's projections")
    rope: RopeConfig

    def layer_cache(self, layer: int, dtype: str) -> LayerCache:
        """Keys (after the rotation) and values, `(num_kv_heads, head_dim)` per token."""
        shape = (self.num_kv_heads, self.head_dim)
        tensors = (TensorSpec("k", shape, dtype), TensorSpec("v", shape, dtype))
        return LayerCache(layer, f"model.layers.{layer}.self_attn", "gqa", Window.ATTENTION, tensors)

    def pair_macs(self, layer: int) -> int:
        del layer
        return 2 * self.num_heads * self.head_dim

    @property
    def rotary(self) -> tuple[RopeConfig, int]:
        return self.rope, self.head_dim


def parse_dense(architecture: str, raw: RawConfig) -> DenseConfig:
    """Raises UnsupportedModelError for sliding windows and other activations, CheckpointError for missing keys."""
    raw.only("hidden_act", "silu")
    _refuse_sliding_window(architecture, raw)
    heads = raw.integer("num_attention_heads")
    kv_heads = raw.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UnsupportedModelError(f"{raw.source}: {heads} attention heads are not a multiple of {kv_heads} KV heads")
    qwen2 = architecture == "Qwen2ForCausalLM"
    qwen3 = architecture == "Qwen3ForCausalLM"
    attention_bias = raw.flag("attention_bias", False)
    return DenseConfig(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=raw.integer("head_dim", 128 if qwen3 else raw.integer("hidden_size") // heads),
        intermediate_size=raw.integer("intermediate_size"),
        qk_norm=qwen3,
        qkv_bias=qwen2 or attention_bias,
        output_bias=attention_bias and not qwen2,
        mlp_bias=raw.flag("mlp_bias", False),
        rope=parse_rope(raw),
    )


def _refuse_sliding_window(architecture: str, raw: RawConfig) -> None:
    layer_types = raw.get("layer_types", [])
    if any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModelError(f"{raw.source}: layer_types other than full_attention are not supported")
    if layer_types or architecture == "LlamaForCausalLM":
        return
    if architecture == "MistralForCausalLM":
        # An absent key means 4096 there, and an explicit null means none.
        window = raw.values.get("sliding_window", 4096)
    else:
        window = raw.get("sliding_window", 4096) if raw.flag("use_sliding_window", False) else None
    if window is not None and window < raw.integer("max_position_embeddings"):
        raise UnsupportedModelError(f"{raw.source}: sliding_window = {window} is not supported")
