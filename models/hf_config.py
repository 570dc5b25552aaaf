"""Typed, named-error access to the raw JSON of a Hugging Face `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError, UnsupportedModelError

_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class RawConfig:
    """The keys of one JSON object and where it was read from; a key with the value null counts as absent."""

    values: Mapping[str, Any]
    source: str

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int = _REQUIRED) -> int:
        value = self._need(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise CheckpointError(f"{self.source}: {key} must be an integer, not {value!r}")
        return value

    def number(self, key: str, default: float = _REQUIRED) -> float:
        value = self._need(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.source}: {key} must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        value = self._need(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.source}: {key} must be true or false, not {value!r}")
        return value

    def integers(self, key: str, default: tuple[int, ...] = _REQUIRED) -> tuple[int, ...]:
        """A list of integers; a single integer counts as a list of one."""
        value = self._need(key, default)
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise CheckpointError(f"{self.source}: {key} must hold integers, not {value!r}")
        return items

    def section(self, key: str) -> "RawConfig":
        """The object under `key`, empty when absent."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.source}: {key} must be an object, not {value!r}")
        return RawConfig(value, f"{self.source}: {key}")

    def only(self, key: str, allowed: Any, default: Any = None) -> None:
        """Refuse, by name, an option whose value is not the one implemented."""
        value = self.get(key, allowed if default is None else default)
        if value != allowed:
            raise UnsupportedModelError(f"{self.source}: {key} = {value!r} is not supported, only {allowed!r}")

    def _need(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is _REQUIRED:
            raise CheckpointError(f"{self.source}: {key} is missing")
        return value


def read_json(path: Path) -> RawConfig:
    """The JSON object in `path`. Raises CheckpointError when absent or not an object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; MODEL must be a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return RawConfig(values, str(path))
