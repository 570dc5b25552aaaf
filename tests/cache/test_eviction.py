"""Orders of eviction against the plainest model of each."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.cache.eviction import EvictionOrder, GreedyDual, LeastRecentlyUsed, make_order


@dataclass(frozen=True)
class Thing:
    key: bytes
    cost: int


THINGS = [Thing(bytes([number]), cost) for number, cost in enumerate((5, 50, 5, 500, 20, 1))]
Steps = st.lists(st.tuples(st.sampled_from(["add", "discard", "touch", "pop"]), st.integers(0, 5)), max_size=80)


@given(Steps)
def test_least_recently_used_is_a_queue(steps: list[tuple[str, int]]) -> None:
    order: EvictionOrder[Thing] = LeastRecentlyUsed()
    model: list[Thing] = []
    for verb, number in steps:
        thing = THINGS[number]
        if verb == "add" and thing not in model:
            order.add(thing)
            model.append(thing)
        elif verb == "discard":
            order.discard(thing)
            model = [other for other in model if other is not thing]
        elif verb == "touch":
            order.touch(thing)
            if thing in model:
                model.remove(thing)
                model.append(thing)
        elif verb == "pop":
            assert order.pop() is (model.pop(0) if model else None)
        agree(order, model)


@given(Steps)
def test_greedy_dual_evicts_the_lowest_sum_of_clock_and_cost(steps: list[tuple[str, int]]) -> None:
    order: EvictionOrder[Thing] = GreedyDual()
    clock = 0
    model: dict[Thing, tuple[int, int]] = {}
    for uses, (verb, number) in enumerate(steps):
        thing = THINGS[number]
        if (verb == "add" and thing not in model) or (verb == "touch" and thing in model):
            model[thing] = (clock + thing.cost, uses)
        if verb == "add" and thing not in order:
            order.add(thing)
        elif verb == "touch":
            order.touch(thing)
        elif verb == "discard":
            order.discard(thing)
            model.pop(thing, None)
        elif verb == "pop":
            victim = min(model, key=lambda other: model[other], default=None)
            assert order.pop() is victim
            if victim is not None:
                clock = model.pop(victim)[0]
        agree(order, sorted(model, key=lambda other: model[other]))


def test_greedy_dual_keeps_what_is_dear_and_forgets_it_in_the_end() -> None:
    order: EvictionOrder[Thing] = GreedyDual()
    dear = THINGS[3]
    order.add(dear)
    evictions = 0
    while True:
        order.add(Thing(b"cheap%d" % evictions, 50))
        if order.pop() is dear:
            break
        evictions += 1
    # Every cheap one moves the clock by its cost, until the dear one, never used again, is the lowest.
    assert evictions == 9


def test_greedy_dual_does_not_grow_with_uses() -> None:
    order: GreedyDual[Thing] = GreedyDual()
    for _ in range(10_000):
        order.add(THINGS[0])
        order.discard(THINGS[0])
        order.add(THINGS[1])
    assert len(order) == 1
    assert len(order._heap) < 100  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("name", "kind"), [("lru", LeastRecentlyUsed), ("cost", GreedyDual)])
def test_orders_are_chosen_by_name(name: str, kind: type) -> None:
    assert type(make_order(name)) is kind  # pyright: ignore[reportArgumentType]


def agree(order: EvictionOrder[Thing], model: list[Thing]) -> None:
    assert list(order.in_order()) == model
    assert len(order) == len(model)
    assert order.first() is (model[0] if model else None)
    assert all((thing in order) == (thing in model) for thing in THINGS)
