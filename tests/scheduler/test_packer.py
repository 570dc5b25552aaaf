"""Packing against brute force: of all waves that the rules allow, the one that serves the earliest lanes most."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.lanes import Lane
from wavepp.scheduler.packer import Packer
from wavepp.scheduler.span import Span

BLOCK = 4


def lanes_of(*remaining: int, start: int = 8) -> list[Lane]:
    return [
        Lane(request, attempt=0, endpoint=start, position=start, end=start + tokens)
        for request, tokens in enumerate(remaining)
    ]


def best_by_brute_force(
    remaining: list[int], budget: int, max_spans: int, floor: int | None, overdue: frozenset[int]
) -> tuple[int, ...]:
    """Lengths by lane, 0 for none: the lexicographic maximum, which is what first come, first served means."""

    def allowed(lengths: tuple[int, ...]) -> bool:
        if sum(lengths) > budget or sum(length > 0 for length in lengths) > max_spans:
            return False
        for lane, (length, left) in enumerate(zip(lengths, remaining, strict=True)):
            leftover = any(lengths[:lane])
            cut = 0 < length < left
            if cut and leftover and floor is not None and lane not in overdue and length < max(floor, budget / 2):
                return False
        return True

    choices = [[*range(0, left, BLOCK), left] for left in remaining]
    return max(lengths for lengths in product(*choices) if allowed(lengths))


@settings(max_examples=400, deadline=None)
@given(
    remaining=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    budget=st.integers(BLOCK, 40),
    max_spans=st.integers(1, 4),
    floor=st.none() | st.integers(1, 32),
    overdue=st.frozensets(st.integers(0, 3)),
)
def test_a_wave_is_the_best_that_the_rules_allow(
    remaining: list[int], budget: int, max_spans: int, floor: int | None, overdue: frozenset[int]
) -> None:
    spans = Packer(BLOCK, max_spans, floor).pack(lanes_of(*remaining), budget, overdue)
    got = {span.request: span.length for span in spans}
    want = best_by_brute_force(remaining, budget, max_spans, floor, overdue)
    assert tuple(got.get(lane, 0) for lane in range(len(remaining))) == want
    assert spans
    assert all(span.start == 8 and span.last == (span.length == remaining[span.request]) for span in spans)
    assert [span.request for span in spans] == sorted(got)


def test_a_small_leftover_is_not_filled_with_a_piece_of_a_larger_request() -> None:
    lanes = lanes_of(20, 30, 12)
    assert Packer(BLOCK, 8, None).pack(lanes, 32) == (Span(0, 8, 20, True), Span(1, 8, 12, False))
    assert Packer(BLOCK, 8, 8).pack(lanes, 32) == (Span(0, 8, 20, True), Span(2, 8, 12, True))


def test_a_leftover_of_half_the_budget_is_filled() -> None:
    assert Packer(BLOCK, 8, 8).pack(lanes_of(16, 30), 32) == (Span(0, 8, 16, True), Span(1, 8, 16, False))
    assert Packer(BLOCK, 8, 20).pack(lanes_of(16, 30), 32) == (Span(0, 8, 16, True),)


def test_a_request_that_has_waited_too_long_takes_any_leftover() -> None:
    packed = Packer(BLOCK, 8, 8).pack(lanes_of(20, 30, 12), 32, overdue=frozenset({1}))
    assert packed == (Span(0, 8, 20, True), Span(1, 8, 12, False))


def test_room_below_a_block_is_left_to_a_prompts_last_tokens() -> None:
    assert Packer(BLOCK, 8).pack(lanes_of(13, 9, 3), 16) == (Span(0, 8, 13, True), Span(2, 8, 3, True))


def test_a_budget_below_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="below one block"):
        Packer(BLOCK, 8).pack(lanes_of(3), BLOCK - 1)
