"""Where pulled state goes: the decode side says what it takes and puts it in place."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from ..cache.layout import LayerCache
from ..engine.transfer_messages import LayerInfo
from .errors import SinkMismatchError


class StateSink(Protocol):
    """Takes the state of one prompt. All calls come from the thread that pulls.

    State is addressed by layer name, tensor name and token, so the sink's own blocks may be of any size. The values
    are CPU tensors on the receive buffer: copy them, do not keep them. Until `pull_state` has returned, nothing that
    was put may be used.
    """

    @property
    def layers(self) -> Sequence[LayerCache]:
        """Every layer that the sink expects: no more and no less will do."""
        ...

    def begin(self, num_tokens: int) -> None:
        """The state is of this many tokens. Raises when there is no room; nothing was read yet."""
        ...

    def put_tokens(self, layer: str, tensor: str, start: int, values: torch.Tensor) -> None:
        """`values` `[n, *shape]` belong to tokens `start .. start + n - 1` of an attention layer."""
        ...

    def put_state(self, layer: str, tensor: str, values: torch.Tensor) -> None:
        """`values` `[*shape]` is the recurrent state after all tokens."""
        ...


def check_layers(expected: Sequence[LayerCache], offered: Mapping[int, Sequence[LayerInfo]]) -> None:
    """`offered` is what each rank has. Raises `SinkMismatchError` that names the first difference."""
    wanted = {layer.name: layer for layer in expected}
    found: dict[str, int] = {}
    for rank, infos in offered.items():
        for info in infos:
            layer = wanted.get(info.name)
            if layer is None:
                raise SinkMismatchError(f"stage {rank} holds {info.name} ({info.kind}), for which there is no place")
            if info.name in found:
                raise SinkMismatchError(f"{info.name} is held by stage {found[info.name]} and by stage {rank}")
            found[info.name] = rank
            _check_layer(layer, info)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise SinkMismatchError(f"no stage holds {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}")


def _check_layer(layer: LayerCache, info: LayerInfo) -> None:
    if (info.kind, info.window) != (layer.kind, layer.window.value):
        held, wanted = f"{info.kind} ({info.window})", f"{layer.kind} ({layer.window.value})"
        raise SinkMismatchError(f"{layer.name} is {held} there and {wanted} here")
    held_names, wanted_names = [t.name for t in info.tensors], [t.name for t in layer.tensors]
    if sorted(held_names) != sorted(wanted_names):
        raise SinkMismatchError(f"{layer.name} has tensors {held_names} there and {wanted_names} here")
    specs = {spec.name: spec for spec in layer.tensors}
    for tensor in info.tensors:
        spec = specs[tensor.name]
        if tuple(tensor.shape) != tuple(spec.shape):
            raise SinkMismatchError(f"{layer.name} {tensor.name} is {tensor.shape} there and {spec.shape} here")
        if tensor.dtype != spec.dtype:
            message = f"{layer.name} {tensor.name} is {tensor.dtype} there and {spec.dtype} here"
            raise SinkMismatchError(message, tensor.dtype)
