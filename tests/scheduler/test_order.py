"""Who is served first."""

from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.lanes import Lane
from wavepp.scheduler.order import ServiceOrder


def lane_of(request: int, arrived_at: float = 0.0, priority: int = 0, deadline: float | None = None) -> Lane:
    return Lane(request, 0, 0, 0, 100, priority, deadline, arrived_at=arrived_at)


def order_of(lanes: list[Lane], now: float, ageing_s: float = 10.0, least_s: float = 1.0) -> list[int]:
    return [lane.request for lane in ServiceOrder(ageing_s, lambda lane: least_s).of(lanes, now)]


@settings(deadline=None)
@given(ages=st.lists(st.floats(0, 100), min_size=1, max_size=20), ageing_s=st.floats(0.1, 50))
def test_without_wishes_it_is_first_come_first_served_at_any_age(ages: list[float], ageing_s: float) -> None:
    lanes = [lane_of(n, arrived_at) for n, arrived_at in enumerate(sorted(ages))]
    assert order_of(lanes, 100.0, ageing_s) == list(range(len(lanes)))
    lanes.append(lane_of(len(lanes), 100.0, priority=1_000))
    assert order_of(lanes, 100.0, ageing_s) == list(range(len(lanes)))


def test_lower_numbers_go_first_and_deadlines_within_one() -> None:
    lanes = [
        lane_of(0),
        lane_of(1, priority=1, deadline=2.0),
        lane_of(2, deadline=9.0),
        lane_of(3, deadline=5.0),
        lane_of(4, priority=-1),
        lane_of(5),
    ]
    assert order_of(lanes, 0.0) == [4, 3, 2, 0, 5, 1]


def test_a_deadline_that_cannot_be_met_no_longer_hurries() -> None:
    lanes = [lane_of(0), lane_of(1, deadline=5.0), lane_of(2, deadline=6.0)]
    assert order_of(lanes, 4.0, least_s=1.0) == [1, 2, 0]
    assert order_of(lanes, 4.5, least_s=1.0) == [2, 0, 1]
    assert order_of(lanes, 5.5, least_s=1.0) == [0, 1, 2]


def test_whoever_waits_long_enough_overtakes_newcomers_of_any_urgency() -> None:
    old = lane_of(0, arrived_at=0.0, priority=3)
    for now in (0.0, 29.0):
        assert order_of([old, lane_of(1, arrived_at=now)], now) == [1, 0]
    assert order_of([old, lane_of(1, arrived_at=30.0)], 30.0) == [0, 1]
    assert order_of([old, lane_of(1, arrived_at=39.0, deadline=45.0)], 39.0) == [1, 0]
    assert order_of([old, lane_of(1, arrived_at=40.0, deadline=45.0)], 40.0) == [0, 1]
