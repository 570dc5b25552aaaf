"""What a pull moved."""

import msgspec


class PullStats(msgspec.Struct, frozen=True):
    """`num_bytes` counts raw state, the unused rest of the last block included."""

    num_tokens: int
    num_stages: int
    num_bytes: int
    seconds: float
