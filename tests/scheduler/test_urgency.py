"""Levels, deadlines, and until when they hold."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.urgency import Ageing

SECONDS = st.floats(0.001, 1e5)
TIMES = st.floats(0, 1e7)


def test_a_level_is_gained_whenever_the_waiting_has_lasted_as_long_again() -> None:
    urgency = Ageing(10.0).urgency
    assert urgency(3, None, 100.0, 100.0) == (3, math.inf, 110.0)
    assert urgency(3, None, 100.0, 109.9) == (3, math.inf, 110.0)
    assert urgency(3, None, 100.0, 110.0) == (2, math.inf, 120.0)
    assert urgency(-2, None, 100.0, 155.0) == (-7, math.inf, 160.0)
    assert urgency(0, None, 100.0, 90.0) == (0, math.inf, 110.0)


def test_a_deadline_counts_until_it_has_passed() -> None:
    urgency = Ageing(10.0).urgency
    assert urgency(0, 104.0, 100.0, 103.0) == (0, 104.0, 104.0)
    assert urgency(0, 104.0, 100.0, 104.0) == (0, math.inf, 110.0)
    assert urgency(0, 130.0, 100.0, 115.0) == (-1, 130.0, 120.0)


@settings(deadline=None)
@given(seconds=SECONDS, since=TIMES, waited=st.floats(0, 1e6))
def test_what_holds_until_a_time_holds_until_just_before_it_and_not_then(
    seconds: float, since: float, waited: float
) -> None:
    urgency, now = Ageing(seconds).urgency, since + waited
    level, _, until = urgency(0, None, since, now)
    assert until > now
    assert urgency(0, None, since, math.nextafter(until, 0))[0] == level
    assert urgency(0, None, since, until)[0] < level


@settings(deadline=None)
@given(seconds=SECONDS, since=TIMES, later=st.floats(0, 1e6), waited=st.floats(0, 1e6))
def test_nobody_is_overtaken_by_who_came_later_and_asked_for_no_more(
    seconds: float, since: float, later: float, waited: float
) -> None:
    urgency, now = Ageing(seconds).urgency, since + later + waited
    assert urgency(2, None, since, now)[0] <= urgency(2, None, since + later, now)[0]
