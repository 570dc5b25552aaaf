"""Checks of what callers pass to the stage cache, made before its mutex is taken."""

from __future__ import annotations

from collections.abc import Sequence as Keys
from itertools import pairwise


def check_prompt(keys: Keys[bytes], num_tokens: int, block_size: int) -> None:
    """Raises ValueError unless there is a key for every full block."""
    if num_tokens < 1 or len(keys) != num_tokens // block_size:
        raise ValueError(f"{len(keys)} keys for {num_tokens} tokens in blocks of {block_size}")


def check_endpoint(endpoint: int, num_tokens: int, block_size: int) -> None:
    """Raises ValueError unless it ends a block and leaves a token to compute."""
    if not 0 <= endpoint < num_tokens or endpoint % block_size:
        raise ValueError(f"endpoint {endpoint} of {num_tokens} tokens in blocks of {block_size}")


def check_snapshots(snapshots: tuple[int, ...], block_size: int) -> None:
    """Raises ValueError unless they are ends of blocks, ascending."""
    if any(position % block_size or position <= 0 for position in snapshots):
        raise ValueError(f"snapshots {snapshots} in blocks of {block_size}")
    if any(after <= before for before, after in pairwise(snapshots)):
        raise ValueError(f"snapshots {snapshots} are not ascending")
