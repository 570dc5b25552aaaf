"""The wave header of the data plane: which spans a wave carries and which tensors follow it."""

import msgspec
import torch
from msgspec import Struct

HEADER_BYTES = 16_384
"""Fixed size, so that a receive can be posted before anything is known of the wave; 128 spans take about 5 KB."""


class HeaderError(RuntimeError):
    """A header that does not decode, does not fit, or belongs to another epoch or wave."""


class WaveSpan(Struct, frozen=True, array_like=True):
    """A span and the admission it belongs to; a rank that has not committed exactly this one must not run it."""

    request: int
    attempt: int
    endpoint: int
    start: int
    length: int
    last: bool

    @property
    def end(self) -> int:
        return self.start + self.length


class WaveHeader(Struct, frozen=True):
    epoch: int
    wave: int
    spans: tuple[WaveSpan, ...]

    @property
    def num_tokens(self) -> int:
        return sum(span.length for span in self.spans)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WaveHeader)


def encode_header(header: WaveHeader) -> torch.Tensor:
    """uint8 `[HEADER_BYTES]`: four bytes of length, then the struct. Raises HeaderError when it does not fit."""
    body = _encoder.encode(header)
    if len(body) + 4 > HEADER_BYTES:
        raise HeaderError(f"the header of wave {header.wave} takes {len(body)} bytes, the limit is {HEADER_BYTES - 4}")
    frame = bytearray(HEADER_BYTES)
    frame[:4] = len(body).to_bytes(4, "little")
    frame[4 : 4 + len(body)] = body
    return torch.frombuffer(frame, dtype=torch.uint8)


def decode_header(frame: torch.Tensor) -> WaveHeader:
    raw = frame.numpy().tobytes()
    length = int.from_bytes(raw[:4], "little")
    if length + 4 > HEADER_BYTES:
        raise HeaderError(f"a wave header claims {length} bytes, the limit is {HEADER_BYTES - 4}")
    try:
        return _decoder.decode(raw[4 : 4 + length])
    except msgspec.MsgspecError as error:
        raise HeaderError(f"a wave header does not decode: {error}") from error
