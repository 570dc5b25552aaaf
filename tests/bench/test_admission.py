"""The benchmark of admission runs, and says what it promises to say. How fast anything is, no test asserts."""

import json
import math
import subprocess
import sys
from threading import Lock

import pytest
from wavepp.bench.figure import Figure, table
from wavepp.bench.lookups import Traffic, by_index, by_naive_walk
from wavepp.bench.naive_walk import NaiveTree
from wavepp.bench.timed_lock import TimedLock
from wavepp.cache.layout import Window

FIGURES = ("probe_median_us", "hint_p99_ms", "hash_200k_ms", "walk_3125_ms", "escrow_3125_ms", "round_median_ms")
KEYS = tuple(bytes([number]) * 16 for number in range(12))


def test_the_quick_run_ends_with_one_line_that_has_every_figure_and_its_naive_counterpart() -> None:
    command = [sys.executable, "-m", "wavepp.bench.admission", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures.keys() == {*FIGURES, *(f"naive_{name}" for name in FIGURES)}
    assert all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in figures.values())


def test_the_table_says_which_targets_are_met() -> None:
    rows = table(
        [
            Figure("a walk", "ms", 3.0, 6.0, target=2.0),
            Figure("throughput", "%", 99.0, 49.5, target=98.0, more_is_better=True),
            Figure("a round", "ms", 0.8),
        ]
    ).splitlines()
    assert [[cell.strip() for cell in row.split("|")[1:-1]] for row in (rows[0], *rows[2:])] == [
        ["", "ours", "naive", "ratio", "target", "met"],
        ["a walk", "3 ms", "6 ms", "2×", "≤ 2", "NO"],
        ["throughput", "99 %", "49.5 %", "2×", "≥ 98", "yes"],
        ["a round", "0.8 ms", "", "", "", ""],
    ]


@pytest.mark.parametrize("windows", [frozenset({Window.ATTENTION}), frozenset(Window)])
def test_both_ways_of_looking_up_find_the_same(windows: frozenset[Window]) -> None:
    traffic = Traffic()
    assert by_index(traffic, windows, 1, 0.0).endpoints == by_naive_walk(traffic, windows, 1, 0.0).endpoints


def test_the_naive_walks_find_and_pin_what_was_inserted() -> None:
    tree = NaiveTree(capacity=10, mutex=Lock())
    tree.release(tree.insert(KEYS[:8], snapshots=frozenset({4, 7})))
    assert tree.probe(KEYS, 12, recurrent=False) == 8
    assert [tree.probe(KEYS, most, recurrent=True) for most in (3, 6, 12)] == [0, 4, 7]
    held = tree.claim(KEYS, 5)
    assert [node.key for node in held] == list(KEYS[:5])
    # Only the three that nobody holds may make way, the deepest first.
    tree.insert(tuple(bytes([200 + number]) * 16 for number in range(4)))
    assert tree.probe(KEYS, 12, recurrent=False) == 6


def test_the_timed_lock_counts_its_holds_and_who_had_to_wait() -> None:
    lock = TimedLock()
    with lock:
        pass
    with lock:
        assert len(lock.held_s) == 1
    assert len(lock.held_s) == 2
    assert not lock.waited_s
    assert lock.take_held_s() > 0
    assert lock.take_held_s() == 0
