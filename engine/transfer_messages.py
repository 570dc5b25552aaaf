"""Pulling state from a stage over ZMQ: a DEALER asks, the stage's ROUTER answers.

Every request is one frame (a tagged struct). Every answer is one frame, and after a `Data` come the raw bytes,
one frame for each tensor, C-contiguous and little-endian.
"""

from msgspec import Struct


class Open(Struct, frozen=True, tag="open"):
    """Pins the handle's state on this stage until COMPLETE, or for the stage's pull deadline. `epoch` must match."""

    handle: str
    epoch: int


class TensorInfo(Struct, frozen=True):
    """`shape` is per token (attention) or per state (recurrent); `dtype` is torch's name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class LayerInfo(Struct, frozen=True):
    """`window` is `attention` (`num_blocks` pages of B tokens) or `recurrent` (one state)."""

    name: str
    kind: str
    window: str
    tensors: tuple[TensorInfo, ...]


class Opened(Struct, frozen=True, tag="opened"):
    pull: int
    epoch: int
    rank: int
    num_tokens: int
    block_size: int
    layers: tuple[LayerInfo, ...]


class Read(Struct, frozen=True, tag="read"):
    """Asks for blocks `first .. first + count - 1` of an attention layer (`[count, B, *shape]` a tensor), or, with
    `count` 0, for the state of a recurrent layer (`shape` a tensor)."""

    pull: int
    layer: str
    first: int = 0
    count: int = 0


class Data(Struct, frozen=True, tag="data"):
    pull: int
    layer: str
    first: int
    count: int


class Complete(Struct, frozen=True, tag="complete"):
    """Ends the pull. What was read may be used only when the answer is `Valid`."""

    pull: int


class Valid(Struct, frozen=True, tag="valid"):
    pull: int


class Refusal(Struct, frozen=True, tag="refusal"):
    """`code` is one of `unknown_handle`, `wrong_epoch`, `expired`, `failed`, `unknown_pull`, `unknown_layer`,
    `bad_range`, `malformed`."""

    code: str
    message: str


ToStage = Open | Read | Complete
FromStage = Opened | Data | Valid | Refusal
