"""The line of those that wait, against sorting it anew."""

from __future__ import annotations

import math
import random

import pytest
from wavepp.admission.line import Line, first_come_first_served
from wavepp.admission.request import Request
from wavepp.admission.table import Entry
from wavepp.scheduler.urgency import Ageing


def entry(number: int, priority: int = 0, deadline: float | None = None, at: float = 0.0) -> Entry:
    return Entry(Request(number, f"r{number}", b"1234", f"h{number}"), 1.0, at, priority, deadline)


def order(line: Line) -> list[int]:
    return [line[place] for place in range(len(line))]


def expected(entries: dict[int, Entry], ageing_s: float, now: float) -> list[int]:
    def turn(number: int) -> tuple[int, float, int]:
        each = entries[number]
        level = each.priority - math.floor((now - each.submitted_at) / ageing_s)
        return level, math.inf if each.deadline is None or each.deadline <= now else each.deadline, number

    return sorted(entries, key=turn)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_sorting_gives_at_any_time(seed: int) -> None:
    pick = random.Random(seed)
    # Eighths of seconds: all sums are exact.
    ageing_s = pick.randint(1, 40) / 8
    line, entries, now = Line(Ageing(ageing_s).urgency), dict[int, Entry](), 0.0
    for number in range(600):
        if entries and pick.random() < 0.45:
            gone = pick.choice(list(entries))
            del entries[gone]
            line.discard(gone)
            line.discard(gone)
        else:
            deadline = now + pick.randint(-8, 80) / 8 if pick.random() < 0.5 else None
            entries[number] = entry(number, pick.randint(-2, 2), deadline, now)
            line.add(entries[number])
        now += pick.choice([0, 0, 1, 3, 20]) / 8
        line.refresh(now)
        assert order(line) == expected(entries, ageing_s, now)
        assert line.first is (entries[line[0]] if entries else None)


def test_the_order_stands_until_its_next_change() -> None:
    line, entries = Line(Ageing(10.0).urgency), {0: entry(0, 1, None, 0.0), 1: entry(1, 0, 17.0, 4.0)}
    for each in entries.values():
        line.add(each)
    times: list[float] = []
    line.refresh(4.0)
    for _ in range(4):
        due = line.next_change()
        assert due is not None
        assert expected(entries, 10.0, math.nextafter(due, 0)) == order(line)
        times.append(due)
        line.refresh(due)
        assert expected(entries, 10.0, due) == order(line)
    assert times == [10.0, 14.0, 17.0, 20.0]


def test_nothing_is_going_to_change_where_nobody_asked_for_anything() -> None:
    line = Line(Ageing(10.0).urgency)
    line.add(entry(0))
    line.add(entry(1))
    assert line.next_change() is None
    line.add(entry(2, priority=-1))
    line.refresh(0.0)
    assert (order(line), line.next_change()) == ([2, 0, 1], 10.0)
    line.discard(2)
    assert line.next_change() is None


def test_who_has_left_is_forgotten_long_before_its_urgency_would_have_changed() -> None:
    line = Line(Ageing(1e4).urgency)
    for number in range(10_000):
        line.add(entry(number))
        line.discard(number)
    assert len(line._changes) < 200


def test_first_come_first_served_is_the_order_of_arrival_whatever_was_asked_for() -> None:
    line = Line(first_come_first_served)
    for number in (2, 0, 1):
        line.add(entry(number, priority=-number, deadline=5.0))
    line.refresh(100.0)
    assert (order(line), line.next_change()) == ([0, 1, 2], None)
