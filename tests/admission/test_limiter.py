"""What may be admitted at once, by tokens and by number, and what commits must leave."""

import pytest
from wavepp.admission.capacity import GroupCapacity
from wavepp.admission.config import AdmissionConfig
from wavepp.admission.limiter import Limiter, floors
from wavepp.admission.messages import Hello


def capacity(*pages: int, recurrent: bool = False, block: int = 10) -> GroupCapacity:
    windows = ("recurrent",) if recurrent else ("attention",)
    return GroupCapacity(
        [Hello(rank, "1", "f", "", (0, 1), windows, count, 8, 0, 0, "") for rank, count in enumerate(pages)], block
    )


def limiter(*pages: int, tokens: int = 200, recurrent: bool = False, headroom: float = 1.0, most: int = 128) -> Limiter:
    config = AdmissionConfig(headroom=headroom, max_batch=most)
    return Limiter(config, capacity(*pages, recurrent=recurrent), tokens)


def test_suffixes_fill_the_smallest_rank_but_for_the_headroom() -> None:
    bound = limiter(100, 300)  # 1000 tokens, less 200.
    bound.take(1, 500)
    assert bound.allows(300) and not bound.allows(301)
    bound.take(2, 300)
    assert not bound.allows(1)
    bound.give(1)
    assert bound.allows(500) and not bound.allows(501)


def test_the_headroom_is_at_most_half_of_the_cache_and_scales_with_its_factor() -> None:
    for headroom, most in ((1.0, 500), (0.1, 900), (0.0, 1000)):
        bound = limiter(100, tokens=1000, headroom=headroom)
        bound.take(1, 1)
        assert bound.allows(most - 1) and not bound.allows(most)


def test_alone_any_request_is_allowed() -> None:
    bound = limiter(100, tokens=1000)
    assert bound.allows(1000)
    bound.take(1, 1000)
    assert not bound.allows(1)
    bound.give(1)
    assert bound.allows(1000)


def test_a_request_that_is_lowered_counts_with_its_longer_suffix() -> None:
    bound = limiter(100)
    bound.take(1, 88)
    bound.take(1, 104)
    bound.take(2, 0)
    assert bound.allows(696) and not bound.allows(697)
    bound.give(1)
    bound.give(1)
    assert bound.allows(800) and not bound.allows(801)


def test_without_attention_only_max_batch_bounds() -> None:
    bound = limiter(0, recurrent=True, most=2)
    bound.take(1, 10**9)
    assert bound.places == 1 and bound.allows(10**9)
    bound.take(2, 1)
    assert bound.places == 0 and not bound.allows(1)


@pytest.mark.parametrize(
    ("pages", "slots", "group_tokens", "config", "expected"),
    [
        (1000, 100, 640, {}, (10, 1)),
        (1000, 100, 641, {}, (11, 1)),
        (1000, 100, 16_400, {}, (257, 3)),
        (1000, 100, 10**6, {}, (500, 25)),
        (0, 7, 10**6, {}, (0, 1)),
        (1000, 100, 640, {"headroom": 0.0}, (0, 0)),
        (1000, 100, 640, {"headroom": 2.0}, (20, 1)),
    ],
)
def test_floors_keep_the_same_headroom_on_a_rank(
    pages: int, slots: int, group_tokens: int, config: dict[str, float], expected: tuple[int, int]
) -> None:
    kept = floors(AdmissionConfig.model_validate(config), pages, slots, 64, group_tokens)
    assert (kept.pages, kept.slots) == expected
