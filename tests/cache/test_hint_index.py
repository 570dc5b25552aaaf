"""The hint index tells what the trees hold, without the trees."""

import threading
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp.cache.answers import Reach
from wavepp.cache.errors import CacheCorrupt
from wavepp.cache.hint_index import HintIndex
from wavepp.cache.layout import Window

BLOCK = 4
BOTH = frozenset(Window)
KEYS = tuple(blake2b(bytes([number]), digest_size=16).digest() for number in range(40))


def index_of(blocks: int, snapshots: tuple[int, ...] = (), windows: frozenset[Window] = BOTH) -> HintIndex:
    """Of a chain whose first `blocks` blocks are attached, and snapshots after so many blocks."""
    index = HintIndex(windows, BLOCK, shards=4)
    if Window.ATTENTION in windows:
        for key in KEYS[:blocks]:
            index.add(Window.ATTENTION, key)
    if Window.RECURRENT in windows:
        for block in snapshots:
            index.add(Window.RECURRENT, KEYS[block - 1], block * BLOCK)
    return index


@given(st.integers(0, 40), st.sets(st.integers(1, 40)), st.integers(0, 40))
def test_the_hint_is_the_longest_prefix_that_every_window_supports(
    blocks: int, snapshots: set[int], limit: int
) -> None:
    reach = index_of(blocks, tuple(snapshots)).reach(KEYS, limit * BLOCK)
    attended = min(blocks, limit)
    expected = max((s for s in snapshots if s <= attended), default=0)
    assert reach.endpoint == expected * BLOCK
    if expected < attended:
        assert reach.limited_by == "recurrent"
    else:
        assert reach.limited_by == ("attention" if attended < limit else "")


@given(st.integers(0, 40), st.integers(0, 60))
def test_attention_alone_is_limited_by_its_first_missing_block(blocks: int, limit: int) -> None:
    index = index_of(blocks, windows=frozenset({Window.ATTENTION}))
    assert index.reach(KEYS, limit * BLOCK).endpoint == min(blocks, limit) * BLOCK


def test_a_rank_without_windows_hints_everything() -> None:
    assert HintIndex(frozenset(), BLOCK).reach(KEYS, 48) == Reach(48)


@given(st.lists(st.tuples(st.sampled_from(list(Window)), st.integers(0, 5), st.booleans()), max_size=60))
def test_counts_are_attachments_less_detachments(steps: list[tuple[Window, int, bool]]) -> None:
    index = HintIndex(BOTH, BLOCK)
    model: dict[tuple[Window, bytes], int] = {}
    for window, number, attach in steps:
        key = KEYS[number]
        if attach:
            index.add(window, key)
            model[window, key] = model.get((window, key), 0) + 1
        elif model.get((window, key)):
            index.remove(window, key)
            model[window, key] -= 1
        else:
            with pytest.raises(CacheCorrupt, match="detached more often"):
                index.remove(window, key)
    for window in Window:
        expected = {key: count for (which, key), count in model.items() if which is window and count}
        assert index.counts(window) == expected
        assert all(index.count(window, key) == expected.get(key, 0) for key in KEYS[:6])


@pytest.mark.parametrize("wrong", [0, 3, 512])
def test_a_number_of_shards_that_is_no_power_of_two_in_range_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="shards"):
        HintIndex(BOTH, BLOCK, shards=wrong)


def test_readers_see_a_possible_prefix_while_it_grows_and_shrinks() -> None:
    index = index_of(8, (8,))
    stop = threading.Event()
    seen: set[int] = set()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                seen.add(index.reach(KEYS, 40 * BLOCK).endpoint)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(200):
        for key in KEYS[8:]:
            index.add(Window.ATTENTION, key)
        index.add(Window.RECURRENT, KEYS[39], 40 * BLOCK)
        index.remove(Window.RECURRENT, KEYS[39], 40 * BLOCK)
        for key in reversed(KEYS[8:]):
            index.remove(Window.ATTENTION, key)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert seen <= {8 * BLOCK, 40 * BLOCK}
    assert index.counts(Window.ATTENTION) == dict.fromkeys(KEYS[:8], 1)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=60))
def test_snapshots_come_and_go_at_positions_that_others_share(steps: list[tuple[int, bool]]) -> None:
    index = HintIndex({Window.RECURRENT}, BLOCK)
    other = blake2b(b"another chain", digest_size=16).digest()
    attached: set[tuple[bytes, int]] = set()
    for block, ours in steps:
        key = KEYS[block - 1] if ours else other[:-1] + bytes([block])
        if (key, block) in attached:
            attached.remove((key, block))
            index.remove(Window.RECURRENT, key, block * BLOCK)
        else:
            attached.add((key, block))
            index.add(Window.RECURRENT, key, block * BLOCK)
        expected = max((block for key, block in attached if key == KEYS[block - 1]), default=0)
        assert index.reach(KEYS, 20 * BLOCK).endpoint == expected * BLOCK
