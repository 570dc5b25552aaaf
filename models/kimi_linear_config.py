"""Kimi Linear: KDA and MLA layers with a mixture of experts, as one frozen description. No torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ..cache.layout import LayerCache, TensorSpec, Window
from .errors import CheckpointError
from .family import Family
from .hf_config import RawConfig

Mixer = Literal["kda", "mla"]


class KdaConfig(BaseModel):
    """Kimi Delta Attention: heads of width `head_dim` for keys and values alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1, description="width of a head's keys and of its values")
    conv_width: int = Field(ge=1, description="taps of the depthwise causal convolution")


class MlaConfig(BaseModel):
    """Multi-head latent attention without position encoding."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_heads: int = Field(ge=1)
    q_lora_rank: int | None = Field(default=None, description="rank of the query projection, none for a full one")
    kv_lora_rank: int = Field(ge=1, description="width of the cached latent")
    nope_dim: int = Field(ge=1, description="width of a key head that comes from the latent")
    rope_dim: int = Field(ge=1, description="width of the key part that all heads share; never rotated here")
    v_dim: int = Field(ge=1, description="width of a value head")

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim


class MoeConfig(BaseModel):
    """Sigmoid router with a selection bias, optional groups, and shared experts."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    num_experts: int = Field(ge=1)
    top_k: int = Field(ge=1, description="experts per token")
    intermediate_size: int = Field(ge=1, description="width of one expert")
    num_shared: int = Field(ge=0, description="experts that every token passes, as one MLP of their joint width")
    num_groups: int = Field(ge=1, description="groups of experts; divides num_experts")
    top_groups: int = Field(ge=1, description="groups that a token may choose from")
    renormalize: bool = Field(description="divide the chosen scores by their sum")
    scaling: float = Field(description="factor on the chosen scores")


class KimiLinearConfig(Family):
    """One mixer and one kind of MLP per layer."""

    kind: Literal["kimi_linear"] = "kimi_linear"
    mixers: tuple[Mixer, ...]
    sparse: tuple[bool, ...] = Field(description="per layer: mixture of experts rather than a dense MLP")
    intermediate_size: int = Field(ge=1, description="width of the dense MLP")
    kda: KdaConfig
    mla: MlaConfig
    moe: MoeConfig

    def layer_cache(self, layer: int, dtype: str) -> LayerCache:
        """KDA: the fp32 state and the last inputs of the convolutions. MLA: latent and shared key per token."""
        name = f"model.layers.{layer}.self_attn"
        if self.mixers[layer] == "mla":
            latent = TensorSpec("ckv", (self.mla.kv_lora_rank,), dtype)
            shared = TensorSpec("kpe", (self.mla.rope_dim,), dtype)
            return LayerCache(layer, name, "mla", Window.ATTENTION, (latent, shared))
        heads, dim, taps = self.kda.num_heads, self.kda.head_dim, self.kda.conv_width
        state = TensorSpec("state", (heads, dim, dim), "float32")
        convs = tuple(TensorSpec(f"conv_{part}", (taps - 1, heads * dim), "float32") for part in "qkv")
        return LayerCache(layer, name, "kda", Window.RECURRENT, (state, *convs))

    @property
    def expert_share(self) -> float:
        return self.moe.top_k / self.moe.num_experts

    def pair_macs(self, layer: int) -> int:
        return self.mla.num_heads * (self.mla.qk_dim + self.mla.v_dim) if self.mixers[layer] == "mla" else 0


def parse_kimi_linear(architecture: str, raw: RawConfig) -> KimiLinearConfig:
    """Raises UnsupportedModelError for unknown options, CheckpointError for missing or contradictory keys."""
    del architecture
    raw.only("hidden_act", "silu")
    raw.only("moe_router_activation_func", "sigmoid")
    raw.only("mla_use_nope", True)
    raw.only("attention_bias", False)
    linear = raw.section("linear_attn_config")
    num_layers = raw.integer("num_hidden_layers")
    mla = MlaConfig(
        num_heads=raw.integer("num_attention_heads"),
        q_lora_rank=raw.get("q_lora_rank"),
        kv_lora_rank=raw.integer("kv_lora_rank"),
        nope_dim=raw.integer("qk_nope_head_dim"),
        rope_dim=raw.integer("qk_rope_head_dim"),
        v_dim=raw.integer("v_head_dim"),
    )
    kda = KdaConfig(
        num_heads=linear.integer("num_heads", raw.get("linear_num_heads", 32)),
        head_dim=linear.integer("head_dim", raw.get("linear_head_dim", 128)),
        conv_width=linear.integer("short_conv_kernel_size", raw.get("linear_conv_kernel_dim", 4)),
    )
    return KimiLinearConfig(
        mixers=_mixers(raw, linear, num_layers),
        sparse=_sparse(raw, num_layers),
        intermediate_size=raw.integer("intermediate_size"),
        kda=kda,
        mla=mla,
        moe=_moe(raw),
    )


def _moe(raw: RawConfig) -> MoeConfig:
    moe = MoeConfig(
        num_experts=raw.integer("num_experts"),
        top_k=raw.integer("num_experts_per_token"),
        intermediate_size=raw.integer("moe_intermediate_size"),
        num_shared=raw.integer("num_shared_experts", 0),
        num_groups=raw.integer("num_expert_group", 1),
        top_groups=raw.integer("topk_group", 1),
        renormalize=raw.flag("moe_renormalize", True),
        scaling=raw.number("routed_scaling_factor", 1.0),
    )
    if moe.num_experts % moe.num_groups or moe.top_groups > moe.num_groups:
        raise CheckpointError(
            f"{raw.source}: {moe.num_experts} experts cannot form {moe.num_groups} groups, {moe.top_groups} chosen"
        )
    if moe.top_k > moe.num_experts // moe.num_groups * moe.top_groups:
        raise CheckpointError(f"{raw.source}: num_experts_per_token = {moe.top_k} exceeds the experts on offer")
    return moe


def _mixers(raw: RawConfig, linear: RawConfig, num_layers: int) -> tuple[Mixer, ...]:
    """From the 1-based lists of `linear_attn_config`, else from `layer_types`; they must agree where both stand."""
    listed = _listed_mixers(linear, num_layers) if linear.get("kda_layers") or linear.get("full_attn_layers") else None
    names: dict[str, Mixer] = {"linear_attention": "kda", "full_attention": "mla"}
    layer_types = raw.get("layer_types")
    if layer_types is None:
        if listed is None:
            raise CheckpointError(f"{raw.source}: neither linear_attn_config's layer lists nor layer_types are given")
        return listed
    if len(layer_types) != num_layers or any(kind not in names for kind in layer_types):
        raise CheckpointError(f"{raw.source}: layer_types must name {num_layers} layers, each one of {sorted(names)}")
    typed: tuple[Mixer, ...] = tuple(names[kind] for kind in layer_types)
    if listed is not None and listed != typed:
        raise CheckpointError(f"{raw.source}: linear_attn_config and layer_types disagree")
    return typed


def _listed_mixers(linear: RawConfig, num_layers: int) -> tuple[Mixer, ...]:
    kda = linear.integers("kda_layers", ())
    full = linear.integers("full_attn_layers", ())
    if sorted(kda + full) != list(range(1, num_layers + 1)):
        raise CheckpointError(
            f"{linear.source}: kda_layers and full_attn_layers must name each of layers 1..{num_layers} once"
        )
    mixers: list[Mixer] = ["kda" if layer in kda else "mla" for layer in range(1, num_layers + 1)]
    return tuple(mixers)


def _sparse(raw: RawConfig, num_layers: int) -> tuple[bool, ...]:
    kinds = raw.get("mlp_layer_types")
    if kinds is not None:
        if len(kinds) != num_layers or any(kind not in ("dense", "sparse") for kind in kinds):
            raise CheckpointError(f"{raw.source}: mlp_layer_types must name {num_layers} layers, dense or sparse")
        return tuple(kind == "sparse" for kind in kinds)
    first, every = raw.integer("first_k_dense_replace", 1), raw.integer("moe_layer_freq", 1)
    return tuple(layer >= first and layer % every == 0 for layer in range(num_layers))
