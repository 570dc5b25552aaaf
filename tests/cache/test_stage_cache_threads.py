"""Several threads use one cache at once, and it stays whole."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from random import Random
from threading import Thread

from wavepp.cache.answers import NoRoom
from wavepp.cache.errors import HandleGone, HandleNotSealed, UnknownHandle
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .side_by_side import BLOCK, chain
from .world import PROMPTS


def admit(cache: StageCache, thread: int, committed: SimpleQueue[tuple[int, int] | None]) -> None:
    """WAVE: leases, prepares, trims and commits, and hands over what was committed."""
    random = Random(thread)
    for number in range(300):
        request, keys = thread * 1000 + number, chain(random.choice(PROMPTS[1:]))
        tokens = len(keys) * BLOCK + random.randrange(4)
        snapshots = tuple(sorted({len(keys) * BLOCK, random.randrange(len(keys)) * BLOCK + BLOCK}))
        hint = cache.hint(keys, (tokens - 1) // BLOCK * BLOCK).endpoint
        reach = cache.lease(request, 0, str(request), keys, tokens, hint).endpoint
        if isinstance(cache.prepare(request, snapshots), NoRoom) or random.random() < 0.1:
            cache.withdraw(request)
            continue
        lower = random.choice((reach, reach, reach // 2 // BLOCK * BLOCK))
        while not isinstance(answer := cache.commit(request, lower, snapshots), NoRoom):
            if answer.endpoint == lower:
                committed.put((request, tokens))
                break
            lower = answer.endpoint
        else:
            cache.withdraw(request)
    committed.put(None)


def run(cache: StageCache, committed: SimpleQueue[tuple[int, int] | None], admitting: int) -> None:
    """LOOP: materialises, publishes, seals or drops, and lets go."""
    random = Random(0)
    while admitting:
        order = committed.get()
        if order is None:
            admitting -= 1
            continue
        request, tokens = order
        endpoint = cache.sequence(request).endpoint
        for computed in (*range(endpoint + BLOCK, tokens, BLOCK), tokens):
            while cache.materialise(request, computed, limit=2) is not None:
                pass
            cache.resumed(request)
            if random.random() < 0.05:
                cache.release(request)
                break
            cache.publish(request, computed)
        else:
            cache.seal(request)
            pull = cache.open_pull(str(request))
            assert len(pull.pages) == -(-tokens // BLOCK)
            cache.release_handle(str(request))
            assert cache.close_pull(pull.id)


def watch(cache: StageCache) -> None:
    """Reads that race with everything else."""
    for number in range(300):
        cache.check()
        gauges = cache.gauges()
        assert gauges.pages_promised <= gauges.pages_free + gauges.pages_reclaimable <= gauges.pages_total
        try:
            cache.close_pull(cache.open_pull(str(number % 4 * 1000 + number)).id)
        except (UnknownHandle, HandleNotSealed, HandleGone):
            if number % 8 == 0:
                cache.reset()


def test_threads_leave_nothing_behind() -> None:
    cache = StageCache(frozenset(Window), 24, 10, BLOCK, host_pages=20, host_slots=6)
    errors: list[BaseException] = []
    committed: SimpleQueue[tuple[int, int] | None] = SimpleQueue()

    def guard(work: Callable[..., None], *args: object) -> None:
        try:
            work(cache, *args)
        except BaseException as error:
            errors.append(error)
            committed.put(None)  # So that nobody waits for what will not come.

    threads = [Thread(target=guard, args=(admit, thread, committed)) for thread in range(1, 4)]
    threads += [Thread(target=guard, args=(run, committed, 3)), Thread(target=guard, args=(watch,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    cache.check()
    gauges = cache.gauges()
    assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
    assert (gauges.pages_promised, gauges.slots_promised, gauges.escrows) == (0, 0, 0)
    assert (gauges.leases, gauges.handles, gauges.pulls) == (0, 0, 0)
