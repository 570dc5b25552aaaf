"""The frozen description of a model, read from its folder. No torch, so that any process can read it quickly."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import CheckpointError, UnsupportedModelError
from .hf_config import RawConfig, read_json
from .registry import FamilyConfig, parse_family

_SAMPLE_BYTES = 4096
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit; a file that is not safetensors may claim any length."""


class ModelSpec(BaseModel):
    """What every process knows of the model. `fingerprint` is the same on every stage that has the same files."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    architecture: str
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_layers: int = Field(ge=1)
    max_context: int = Field(ge=1, description="longest prompt with its first token, in tokens")
    rms_norm_eps: float = Field(gt=0)
    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="dtype of the checkpoint")
    eos_token_ids: tuple[int, ...]
    tie_word_embeddings: bool
    fingerprint: str = Field(description="hex digest of the configuration and of a sample of the weights")
    family: FamilyConfig = Field(discriminator="kind")


def load_spec(folder: Path) -> ModelSpec:
    """Read `config.json` in `folder`; weights need not be there.

    Raises UnsupportedModelError for what is not implemented, CheckpointError for missing or malformed keys.
    """
    raw = read_json(folder / "config.json")
    try:
        architecture, family = parse_family(raw)
        return ModelSpec(
            architecture=architecture,
            vocab_size=raw.integer("vocab_size"),
            hidden_size=raw.integer("hidden_size"),
            num_layers=raw.integer("num_hidden_layers"),
            max_context=_max_context(raw),
            rms_norm_eps=raw.number("rms_norm_eps", 1e-6),
            dtype=_checkpoint_dtype(raw),
            eos_token_ids=_eos_token_ids(folder, raw),
            tie_word_embeddings=raw.flag("tie_word_embeddings", False),
            fingerprint=fingerprint(folder),
            family=family,
        )
    except ValidationError as error:
        raise CheckpointError(f"{raw.source}: {error}") from error


def fingerprint(folder: Path) -> str:
    """Digest of config.json and, per safetensors file, its name, size, header and the ends of its data.

    Reads a few KiB a file, so two checkpoints that differ only inside a file's middle are not told apart.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            header = file.read(8)
            length = min(int.from_bytes(header, "little"), _MAX_HEADER_BYTES)
            digest.update(header + file.read(length + _SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def _checkpoint_dtype(raw: RawConfig) -> Literal["float32", "bfloat16", "float16"]:
    dtype = raw.get("dtype", raw.get("torch_dtype", "float32"))
    if dtype in ("float32", "bfloat16", "float16"):
        return dtype
    raise UnsupportedModelError(f"{raw.source}: dtype {dtype!r} is not supported")


def _max_context(raw: RawConfig) -> int:
    return raw.integer("max_position_embeddings" if raw.get("model_max_length") is None else "model_max_length")


def _eos_token_ids(folder: Path, raw: RawConfig) -> tuple[int, ...]:
    """config.json's first, then what generation_config.json adds."""
    ids = raw.integers("eos_token_id", ())
    path = folder / "generation_config.json"
    if path.exists():
        ids += read_json(path).integers("eos_token_id", ())
    return tuple(dict.fromkeys(ids))
