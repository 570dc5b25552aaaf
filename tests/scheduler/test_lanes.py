"""Lanes: who is next, and where each one stands."""

import pytest
from wavepp.scheduler.lanes import DuplicateLane, Lanes, PositionMismatch
from wavepp.scheduler.span import Span


def lanes_of(*requests: tuple[int, int, int]) -> Lanes:
    lanes = Lanes(block_size=4)
    for request, endpoint, num_tokens in requests:
        lanes.add(request, attempt=0, endpoint=endpoint, num_tokens=num_tokens)
    return lanes


def test_lanes_stand_in_the_order_of_admission() -> None:
    lanes = lanes_of((7, 0, 10), (3, 4, 6), (5, 0, 1))
    assert [(lane.request, lane.position, lane.remaining) for lane in lanes] == [(7, 0, 10), (3, 4, 2), (5, 0, 1)]


def test_a_lane_advances_by_spans_and_leaves_with_the_last() -> None:
    lanes = lanes_of((1, 4, 14), (2, 0, 3))
    lanes.advance(Span(1, 4, 4, last=False), wave=0)
    lane = lanes.get(1)
    assert lane is not None
    assert (lane.position, lane.last_wave, lane.endpoint) == (8, 0, 4)
    lanes.advance(Span(1, 8, 6, last=True), wave=1)
    assert lanes.get(1) is None
    assert [lane.request for lane in lanes] == [2]


@pytest.mark.parametrize(
    "span",
    [
        Span(9, 0, 4, last=False),
        Span(1, 0, 4, last=False),
        Span(1, 8, 4, last=False),
        Span(1, 4, 0, last=False),
        Span(1, 4, 3, last=False),
        Span(1, 4, 6, last=False),
        Span(1, 4, 4, last=True),
        Span(1, 4, 8, last=True),
    ],
    ids=["no lane", "behind", "ahead", "empty", "unaligned", "unmarked end", "no end", "beyond the end"],
)
def test_a_span_that_does_not_continue_its_lane_is_a_mismatch(span: Span) -> None:
    lanes = lanes_of((1, 4, 10))
    with pytest.raises(PositionMismatch):
        lanes.advance(span, wave=0)
    assert [(lane.position, lane.last_wave) for lane in lanes] == [(4, -1)]


@pytest.mark.parametrize(("endpoint", "num_tokens"), [(2, 10), (12, 12), (12, 10), (-4, 10), (0, 0)])
def test_an_endpoint_must_be_aligned_and_leave_a_token(endpoint: int, num_tokens: int) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        lanes_of((1, endpoint, num_tokens))


def test_a_request_has_one_lane() -> None:
    with pytest.raises(DuplicateLane):
        lanes_of((1, 0, 10), (1, 4, 10))
