"""Pulling state from a stage over ZMQ: a DEALER asks, the stage's ROUTER answers.

Every request is one frame (a tagged struct). Every answer is one frame, and after a `Data` come the raw bytes,
one frame for each tensor, C-contiguous and little-endian. Answers to one connection come in the order of its requests,
but that an OPEN of a prefill that is not finished is answered when it is. A pull belongs to the connection that
opened it.
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
    """The state is pinned for `deadline_s` seconds more. One `Read` may ask for `max_blocks` blocks, and `max_reads`
    of them may be unanswered at once."""

    pull: int
    epoch: int
    rank: int
    num_tokens: int
    block_size: int
    layers: tuple[LayerInfo, ...]
    max_blocks: int
    max_reads: int
    deadline_s: float


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


class Abandon(Struct, frozen=True, tag="abandon"):
    """Ends whatever this connection has opened or waits for; what was read must not be used. Not answered."""


class Valid(Struct, frozen=True, tag="valid"):
    pull: int


class Refusal(Struct, frozen=True, tag="refusal"):
    """`code` is one of `unknown_handle`, `wrong_epoch`, `expired`, `not_finished` (the prefill did not end within the
    stage's limit), `busy` (too many pulls, or too many reads at once), `failed`, `unknown_pull`, `unknown_layer`,
    `bad_range`, `malformed`."""

    code: str
    message: str


ToStage = Open | Read | Complete | Abandon
FromStage = Opened | Data | Valid | Refusal
