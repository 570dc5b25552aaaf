"""A sink that remembers every byte."""

from collections.abc import Sequence

import torch
from wavepp.cache.layout import LayerCache


class RecordingSink:
    """Checks that every token of every tensor comes exactly once, and keeps what came."""

    def __init__(self, layers: Sequence[LayerCache]) -> None:
        self._layers = tuple(layers)
        self.num_tokens = -1
        self.tokens: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
        self.states: dict[tuple[str, str], torch.Tensor] = {}

    @property
    def layers(self) -> Sequence[LayerCache]:
        return self._layers

    def begin(self, num_tokens: int) -> None:
        assert self.num_tokens == -1
        self.num_tokens = num_tokens

    def put_tokens(self, layer: str, tensor: str, start: int, values: torch.Tensor) -> None:
        rows = self.tokens.setdefault((layer, tensor), {})
        for offset, value in enumerate(values):
            assert start + offset not in rows
            rows[start + offset] = value.clone()

    def put_state(self, layer: str, tensor: str, values: torch.Tensor) -> None:
        assert (layer, tensor) not in self.states
        self.states[layer, tensor] = values.clone()

    def rows(self, layer: str, tensor: str) -> torch.Tensor:
        """`[num_tokens, *shape]`."""
        rows = self.tokens[layer, tensor]
        assert sorted(rows) == list(range(self.num_tokens))
        return torch.stack([rows[index] for index in range(self.num_tokens)])
