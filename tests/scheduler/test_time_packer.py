"""Packing by time."""

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.cost_model import StageProfile
from wavepp.scheduler.lanes import Lane
from wavepp.scheduler.span import Span
from wavepp.scheduler.time_packer import STRETCH, TimePacker

BLOCK = 4
EVEN = StageProfile(wave_s=0, token_s=1)
STEEP = StageProfile(wave_s=0, token_s=1, context_s=0.25)


def lanes_of(*remaining: int, start: int = 8) -> list[Lane]:
    return [Lane(request, 0, start, start, start + tokens) for request, tokens in enumerate(remaining)]


@settings(max_examples=150, deadline=None)
@given(
    remaining=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    start=st.integers(0, 20).map(lambda blocks: blocks * BLOCK),
    work=st.floats(0.1, 120),
    max_tokens=st.integers(1, 12).map(lambda blocks: blocks * BLOCK),
    max_spans=st.integers(1, 4),
    profile=st.sampled_from([EVEN, STEEP]),
)
def test_a_wave_keeps_its_limits_and_leaves_no_room_for_a_block(
    remaining: list[int], start: int, work: float, max_tokens: int, max_spans: int, profile: StageProfile
) -> None:
    lanes = lanes_of(*remaining, start=start)
    spans = TimePacker(profile, BLOCK, max_tokens, max_spans).pack(lanes, work)
    assert spans
    assert spans[0].request == 0
    assert [span.request for span in spans] == sorted({span.request for span in spans})
    assert len(spans) <= max_spans
    tokens = sum(span.length for span in spans)
    assert tokens <= max_tokens
    for span in spans:
        assert span.start == start
        assert 0 < span.length <= remaining[span.request]
        assert span.last == (span.length == remaining[span.request])
        assert span.last or span.length % BLOCK == 0
    done = sum(profile.work(span.start, span.end) for span in spans)
    longest = max(span.end for span in spans)
    block = profile.work(longest, longest + BLOCK)
    assert done <= work * (1 + STRETCH) + block or (len(spans) == 1 and tokens <= BLOCK)
    left_over = work - done
    if len(spans) < min(max_spans, len(remaining)) and max_tokens - tokens >= BLOCK:
        unserved = next(lane for lane in range(len(remaining)) if lane not in {span.request for span in spans})
        assert left_over <= max(STRETCH * work, profile.work(start, start + min(BLOCK, remaining[unserved])))


def test_long_contexts_make_shorter_spans_of_the_same_time() -> None:
    packer = TimePacker(STEEP, BLOCK, 1_000, 8)
    early = packer.pack(lanes_of(400, start=0), 1_000.0)[0]
    late = packer.pack(lanes_of(400, start=400), 1_000.0)[0]
    assert (early.length, late.length) == (88, 8)
    assert abs(STEEP.work(early.start, early.end) - STEEP.work(late.start, late.end)) < 250


def test_a_request_that_all_but_fits_is_taken_whole() -> None:
    packer = TimePacker(EVEN, BLOCK, 1_000, 8)
    assert packer.pack(lanes_of(45, 50), 40.0) == (Span(0, 8, 45, True),)
    assert packer.pack(lanes_of(46, 50), 40.0) == (Span(0, 8, 40, False),)


def test_a_sliver_is_not_cut_from_the_next_request() -> None:
    packer = TimePacker(EVEN, BLOCK, 1_000, 8)
    assert packer.pack(lanes_of(36, 50), 40.0) == (Span(0, 8, 36, True),)
    assert packer.pack(lanes_of(32, 50), 40.0) == (Span(0, 8, 32, True), Span(1, 8, 8, False))
