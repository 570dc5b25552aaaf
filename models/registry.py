"""Which architectures are implemented, by the name in `config.json`. No torch."""

from collections.abc import Callable

from .dense_config import DenseConfig, parse_dense
from .errors import UnsupportedModelError
from .hf_config import RawConfig
from .kimi_linear_config import KimiLinearConfig, parse_kimi_linear

FamilyConfig = DenseConfig | KimiLinearConfig

ARCHITECTURES: dict[str, Callable[[str, RawConfig], FamilyConfig]] = {
    "LlamaForCausalLM": parse_dense,
    "MistralForCausalLM": parse_dense,
    "Qwen2ForCausalLM": parse_dense,
    "Qwen3ForCausalLM": parse_dense,
    "KimiLinearForCausalLM": parse_kimi_linear,
}


def parse_family(raw: RawConfig) -> tuple[str, FamilyConfig]:
    """The architecture's name and its parsed description. Raises UnsupportedModelError listing what is supported."""
    named = raw.get("architectures", [])
    for architecture in named:
        if architecture in ARCHITECTURES:
            if raw.get("quantization_config"):
                method = raw.section("quantization_config").get("quant_method", "unnamed")
                raise UnsupportedModelError(f"{raw.source}: quantized weights ({method}) are not supported")
            return architecture, ARCHITECTURES[architecture](architecture, raw)
    raise UnsupportedModelError(
        f"{raw.source}: architecture {', '.join(map(str, named)) or '(none named)'} is not supported; "
        f"supported: {', '.join(sorted(ARCHITECTURES))}"
    )
