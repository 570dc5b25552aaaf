import pytest
import torch
from wavepp.engine.header import HEADER_BYTES, HeaderError, WaveHeader, WaveSpan, decode_header, encode_header
from wavepp.scheduler.config import SchedulerConfig


def header(spans: int) -> WaveHeader:
    return WaveHeader(7, 41, tuple(WaveSpan(2**40 + i, 3, 128_000, 131_072, 16_384, i == 0) for i in range(spans)))


def test_a_header_survives_the_wire() -> None:
    assert decode_header(encode_header(header(3))) == header(3)


def test_a_header_has_one_size_whatever_it_carries() -> None:
    assert {encode_header(header(n)).numel() for n in (1, 16, 128)} == {HEADER_BYTES}


def test_as_many_long_spans_fit_as_may_be_configured() -> None:
    most = next(limit.le for limit in SchedulerConfig.model_fields["max_spans"].metadata if hasattr(limit, "le"))
    assert decode_header(encode_header(header(most))).num_tokens == most * 16_384


def test_a_header_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(HeaderError, match="wave 41 takes"):
        encode_header(header(2_000))


def test_a_torn_header_is_an_error_and_not_a_wave() -> None:
    frame = encode_header(header(3)).clone()
    frame[5:9] = 255
    with pytest.raises(HeaderError):
        decode_header(frame)
    with pytest.raises(HeaderError, match="claims"):
        decode_header(torch.full((HEADER_BYTES,), 255, dtype=torch.uint8))
