"""The mailbox between WAVE and LOOP."""

from __future__ import annotations

import select
import threading

from wavepp.admission.claim import Claim, Drop, Grant
from wavepp.admission.effects import StopPlanning
from wavepp.admission.messages import WaveDone
from wavepp.admission.request import Request
from wavepp.engine.header import WaveHeader, WaveSpan
from wavepp.engine.inbox import CapacityGrew, FromLoop, Leave, LoopInbox, WakingQueue, WaveArrived, WaveFinished

TIMEOUT_S = 60


def wave(number: int) -> WaveArrived:
    return WaveArrived(WaveHeader(1, number, (WaveSpan(1, 1, 0, 0, 16, True),)), {}, number)


def test_orders_keep_their_order_and_go_before_waves_which_come_one_at_a_time() -> None:
    inbox = LoopInbox()
    request = Request(1, "a", b"\0" * 4, "handle")
    orders = [Claim(request, 1, 0), Grant(1, 1), StopPlanning(1), Drop(1, -1, "handle"), WaveFinished(0), Leave()]
    inbox.put(wave(0))
    for order in orders[:3]:
        inbox.put(order)
    inbox.put(wave(1))
    for order in orders[3:]:
        inbox.put(order)
    assert inbox.take(block=True) == (orders, wave(0))
    assert inbox.take(block=True) == ([], wave(1)), "a wave that waits is something to do"
    assert inbox.take(block=False) == ([], None)


def test_an_order_that_was_put_before_a_wave_is_taken_no_later_than_the_wave() -> None:
    inbox = LoopInbox()
    ahead = 2_000

    def write() -> None:
        for number in range(ahead):
            inbox.put(Grant(number, 1))
            inbox.put(wave(number))

    writer = threading.Thread(target=write)
    writer.start()
    granted = 0
    for number in range(ahead):
        arrived = None
        while arrived is None:
            control, arrived = inbox.take(block=True)
            granted += len(control)
        assert arrived.header.wave == number
        assert granted > number
    writer.join()


def test_a_reader_that_waits_is_woken() -> None:
    inbox = LoopInbox()
    taken: list[object] = []
    reader = threading.Thread(target=lambda: taken.extend(inbox.take(block=True)[0]))
    reader.start()
    inbox.put(CapacityGrew())
    reader.join(TIMEOUT_S)
    assert taken == [CapacityGrew()]


def readable(queue: WakingQueue[FromLoop], timeout_s: float = 0) -> bool:
    return bool(select.select([queue.fileno()], [], [], timeout_s)[0])


def test_a_waking_queue_is_readable_while_something_is_in_it() -> None:
    queue: WakingQueue[FromLoop] = WakingQueue()
    assert not readable(queue)
    assert queue.drain() == []
    for number in range(3):
        queue.put(WaveDone(1, 0, number, 0.5))
    assert readable(queue)
    assert queue.drain() == [WaveDone(1, 0, number, 0.5) for number in range(3)]
    assert not readable(queue)
    queue.put(Leave())
    assert readable(queue)
    assert queue.drain() == [Leave()]


def test_nothing_is_lost_or_left_without_a_signal_when_many_write_at_once() -> None:
    queue: WakingQueue[tuple[int, int]] = WakingQueue()
    writers, each = 4, 3_000
    threads = [
        threading.Thread(target=lambda who=who: [queue.put((who, number)) for number in range(each)])
        for who in range(writers)
    ]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {who: [] for who in range(writers)}
    while sum(map(len, seen.values())) < writers * each:
        assert select.select([queue.fileno()], [], [], TIMEOUT_S)[0], "items wait, and nobody was told"
        for who, number in queue.drain():
            seen[who].append(number)
    for thread in threads:
        thread.join()
    assert all(numbers == list(range(each)) for numbers in seen.values())
