"""The ring: waves in flight, in order."""

import pytest
from wavepp.scheduler.ring import Ring, RingFull, UnknownWave, WaveOutOfOrder
from wavepp.scheduler.span import Span, WavePlan


def wave(number: int, *spans: tuple[int, int, int]) -> WavePlan:
    return WavePlan(number, tuple(Span(request, start, length, last=False) for request, start, length in spans))


def test_waves_leave_in_the_order_in_which_they_came() -> None:
    ring = Ring(3)
    for number in range(3):
        ring.add(wave(number, (number, 0, 4)))
    assert ring.full
    assert [ring.complete(number)[0].request for number in range(3)] == [0, 1, 2]
    assert (len(ring), ring.full) == (0, False)


def test_a_full_ring_takes_no_wave() -> None:
    ring = Ring(1)
    ring.add(wave(0, (1, 0, 4)))
    with pytest.raises(RingFull):
        ring.add(wave(1, (1, 4, 4)))
    assert [plan.wave for plan in ring] == [0]


def test_waves_out_of_order_are_errors_with_a_name() -> None:
    ring = Ring(4)
    ring.add(wave(3, (1, 0, 4)))
    ring.add(wave(4, (1, 4, 4)))
    with pytest.raises(WaveOutOfOrder):
        ring.add(wave(4, (1, 8, 4)))
    with pytest.raises(WaveOutOfOrder):
        ring.complete(4)
    with pytest.raises(UnknownWave):
        ring.complete(5)
    ring.complete(3)
    with pytest.raises(UnknownWave):
        ring.complete(3)
    assert len(ring) == 1


def test_the_last_wave_of_a_request_is_the_newest_in_flight() -> None:
    ring = Ring(4)
    ring.add(wave(0, (1, 0, 4), (2, 0, 8)))
    ring.add(wave(1, (1, 4, 12)))
    assert [ring.last_wave_of(request) for request in (1, 2, 3)] == [1, 0, -1]
    assert sorted(ring.latest_chunks()) == [8, 12]
    ring.complete(0)
    assert [ring.last_wave_of(request) for request in (1, 2)] == [1, -1]
    ring.complete(1)
    assert ring.last_wave_of(1) == -1
    assert ring.latest_chunks() == ()


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot carry"):
        Ring(0)
