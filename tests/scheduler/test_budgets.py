"""Budgets against the paper's equations, evaluated piece by piece."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.budgets import Pieces, budget_chain, choose_budget

lengths = st.lists(st.integers(1, 70), min_size=1, max_size=12)
chains = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6)).map(
    lambda drawn: budget_chain(max(drawn[:2]) * drawn[2], min(drawn[:2]) * drawn[2], drawn[2])
)


def waves_by_definition(pieces: list[int], budget: int) -> Fraction:
    return max(Fraction(sum(pieces), budget), Fraction(sum(2 * piece > budget for piece in pieces)))


@pytest.mark.parametrize(
    ("most", "least", "block", "chain"),
    [
        (16_384, 8_192, 64, (16_384, 8_192)),
        (16_384, 1_024, 64, (16_384, 8_192, 4_096, 2_048, 1_024)),
        (1_000, 200, 100, (1_000, 500, 200)),
        (700, 100, 100, (700, 300, 100)),
        (256, 256, 64, (256,)),
        (320, 192, 64, (320, 192)),
    ],
)
def test_budgets_are_halved_and_aligned_down_to_the_floor(
    most: int, least: int, block: int, chain: tuple[int, ...]
) -> None:
    assert budget_chain(most, least, block) == chain


@settings(max_examples=150, deadline=None)
@given(pieces=lengths, budget=st.integers(1, 80), larger=st.integers(1, 80))
def test_waves_and_splits_are_counted_as_defined(pieces: list[int], budget: int, larger: int) -> None:
    counted = Pieces(pieces)
    assert counted.waves(budget) == pytest.approx(float(waves_by_definition(pieces, budget)))
    if budget <= larger:
        assert counted.newly_split(budget, larger) == sum(piece for piece in pieces if budget < piece <= larger)


@settings(max_examples=200, deadline=None)
@given(pieces=lengths, chain=chains, ring=st.integers(2, 16), more=st.integers(-4, 8), limit=st.integers(0, 8))
def test_the_largest_sufficient_budget_that_thinning_allows_is_chosen(
    pieces: list[int], chain: tuple[int, ...], ring: int, more: int, limit: int
) -> None:
    target = max(0, ring + more)

    def allowed(budget: int) -> bool:
        """No larger budget gives R waves, or from the largest that does, little of W is newly split."""
        supplied = [larger for larger in chain if larger > budget and waves_by_definition(pieces, larger) >= ring]
        if not supplied:
            return True
        split = sum(piece for piece in pieces if budget < piece <= max(supplied))
        return Fraction(split) <= Fraction(limit, 8) * sum(pieces)

    candidates = [budget for budget in chain if allowed(budget)]
    enough = [budget for budget in candidates if waves_by_definition(pieces, budget) >= target]
    chosen = chain[choose_budget(chain, Pieces(pieces), target, ring, limit / 8)]
    assert chosen == (max(enough) if enough else min(candidates))


def test_two_full_budgets_on_four_stages_make_two_waves_or_four() -> None:
    """The paper's example of figure 6."""
    work = Pieces([16_384, 16_384])
    assert (work.waves(16_384), work.waves(8_192)) == (2, 4)
    chain = budget_chain(16_384, 8_192, 64)
    assert chain[choose_budget(chain, work, target=4, ring=8, thinning_limit=0.125)] == 8_192


def test_pieces_above_half_a_wave_count_each() -> None:
    assert Pieces([9_000] * 8).waves(16_384) == 8
    assert Pieces([8_192] * 8).waves(16_384) == 4


def test_thinning_stops_where_it_would_mainly_split_whole_requests() -> None:
    """Sixteen requests of 13,107 tokens give R = 16 waves: S = 24 must not cut each of them in two."""
    chain = budget_chain(16_384, 8_192, 64)
    assert choose_budget(chain, Pieces([13_107] * 16), 24, 16, 0.125) == 0
    assert choose_budget(chain, Pieces([13_107] * 16), 24, 16, 1.0) == 1
    assert choose_budget(chain, Pieces([13_107] * 15), 24, 16, 0.125) == 1
    assert choose_budget(chain, Pieces([13_107] * 2 + [262_144]), 24, 16, 0.125) == 1
