"""A stage's own tensors from safetensors files, by name.

A stage is built twice from one description: first with a `TensorPlan`, which only records the names, shapes and
dtypes asked for, then with `StageWeights`, which reads them. So what is missing is known before anything is read.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Protocol, Self

import torch
from safetensors import safe_open

from .errors import CheckpointError, UnsupportedModelError
from .hf_config import read_json

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all)."""

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
_NAMED_IN_ERROR = 8


class TensorSource(Protocol):
    """Where layers take their tensors from while they are built."""

    dtype: torch.dtype
    device: torch.device

    def take(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor stored under one of `names`, in `shape`, cast to `dtype` (default: the stage's)."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """A source with a name prefix, or several that checkpoints use for the same tensor."""

    source: TensorSource
    prefixes: tuple[str, ...] = ("",)

    def scope(self, *names: str) -> "Scope":
        return Scope(self.source, tuple(f"{prefix}{name}." for prefix, name in product(self.prefixes, names)))

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.source.take([prefix + name for prefix in self.prefixes], shape, dtype)

    def empty(self, *shape: int) -> torch.Tensor:
        """Room for a tensor that is put together from several."""
        return torch.empty(shape, dtype=self.source.dtype, device=self.source.device)


@dataclass(slots=True)
class TensorPlan:
    """Records what a stage asks for; the tensors it gives have no storage."""

    dtype: torch.dtype
    device: torch.device = field(default_factory=lambda: torch.device("meta"))
    wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...], torch.dtype]] = field(default_factory=dict)

    def take(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        dtype = dtype or self.dtype
        self.wanted[names[0]] = (tuple(names), tuple(shape), dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stage's weights in memory."""
        return sum(prod(shape) * dtype.itemsize for _, shape, dtype in self.wanted.values())


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of a safetensors header."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


class StageWeights:
    """Reads the planned tensors of one stage; a context manager, which closes the files. Owner: the loading thread.

    Raises CheckpointError naming every planned tensor that is missing or has another shape.
    """

    def __init__(self, folder: Path, plan: TensorPlan, device: torch.device, on_progress: Progress | None = None):
        self.dtype = plan.dtype
        self.device = device
        self.bytes_read = 0
        self._on_progress = on_progress
        self._stored = _planned(folder, plan)
        self._resolved = {names[0]: next(n for n in names if n in self._stored) for names, _, _ in plan.wanted.values()}
        self.bytes_total = sum(self._stored[name].num_bytes for name in set(self._resolved.values()))
        self._files: dict[Path, safe_open] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._files.clear()
        self._stack.close()

    def take(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        name = self._resolved[names[0]]
        stored = self._stored[name]
        if stored.path not in self._files:
            self._files[stored.path] = self._stack.enter_context(safe_open(stored.path, framework="pt", device="cpu"))
        mapped = self._files[stored.path].get_tensor(name)
        # A copy, so that the file is read now and in order, and not page by page during the first wave.
        out = torch.empty(tuple(shape), dtype=dtype or self.dtype, device=self.device)
        out.copy_(mapped.reshape(tuple(shape)))
        self.bytes_read += stored.num_bytes
        if self._on_progress is not None:
            self._on_progress(self.bytes_read, self.bytes_total)
        return out


def _planned(folder: Path, plan: TensorPlan) -> dict[str, StoredTensor]:
    """The stored tensors under any planned name, checked against the plan."""
    files = _files_of(folder)
    names = {name for alternatives, _, _ in plan.wanted.values() for name in alternatives}
    paths = {files[name] for name in names if name in files} if files else set(_single_file(folder))
    stored: dict[str, StoredTensor] = {}
    for path in sorted(paths):
        stored.update((name, entry) for name, entry in _read_header(path).items() if name in names)
    missing: list[str] = []
    for first, (alternatives, shape, _) in plan.wanted.items():
        entry = next((stored[name] for name in alternatives if name in stored), None)
        if entry is None:
            missing.append(first)
        elif entry.dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{entry.path}: {first} has dtype {entry.dtype}, supported: {', '.join(_DTYPES)}"
            )
        elif _squeezed(entry.shape) != _squeezed(shape):
            raise CheckpointError(f"{entry.path}: {first} has shape {entry.shape}, the configuration asks for {shape}")
    if missing:
        more = f" and {len(missing) - _NAMED_IN_ERROR} more" if len(missing) > _NAMED_IN_ERROR else ""
        raise CheckpointError(f"{folder}: missing tensors {', '.join(missing[:_NAMED_IN_ERROR])}{more}")
    return stored


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _files_of(folder: Path) -> dict[str, Path]:
    """Tensor name -> file of a sharded checkpoint; empty for a single file."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {}
    weight_map = read_json(index).section("weight_map").values
    return {name: folder / str(file) for name, file in weight_map.items()}


def _single_file(folder: Path) -> list[Path]:
    path = folder / "model.safetensors"
    if not path.exists():
        raise CheckpointError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    return [path]


def _read_header(path: Path) -> dict[str, StoredTensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= size else None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if any(entry["data_offsets"][1] + 8 + length > size for entry in entries.values()):
        raise CheckpointError(f"{path} is shorter than its header says; was it copied in full?")
    return {
        name: StoredTensor(
            path, tuple(entry["shape"]), entry["dtype"], entry["data_offsets"][1] - entry["data_offsets"][0]
        )
        for name, entry in entries.items()
    }
