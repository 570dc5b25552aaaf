"""Several threads use one cache at once, and it stays whole."""

from random import Random
from threading import Thread

from wavepp.cache.answers import Claimed
from wavepp.cache.errors import HandleGone, HandleNotSealed, UnknownHandle
from wavepp.cache.layout import Window
from wavepp.cache.stage_cache import StageCache

from .world import BLOCK, PROMPTS, chain


def use(cache: StageCache, thread: int, errors: list[BaseException]) -> None:
    """Whole lives of requests, each of this thread alone, over prompts that all threads share."""
    random = Random(thread)
    try:
        for number in range(300):
            request, keys = thread * 1000 + number, chain(random.choice(PROMPTS[1:]))
            tokens = len(keys) * BLOCK + random.randrange(4)
            reach = cache.probe(keys, (tokens - 1) // BLOCK * BLOCK).endpoint
            answer = cache.claim(request, 0, str(request), keys, tokens, reach, (len(keys) * BLOCK,))
            if not isinstance(answer, Claimed):
                continue
            cache.resumed(request)
            for computed in range(reach, tokens, BLOCK):
                cache.publish(request, computed)
            if random.random() < 0.3:
                cache.release(request)
                continue
            cache.publish(request, tokens)
            cache.seal(request)
            pull = cache.open_pull(str(request))
            assert len(pull.pages) == -(-tokens // BLOCK)
            cache.release_handle(str(request))
            assert cache.close_pull(pull.id)
    except BaseException as error:
        errors.append(error)


def watch(cache: StageCache, errors: list[BaseException]) -> None:
    """Reads that race with everything else."""
    try:
        for number in range(300):
            cache.check()
            gauges = cache.gauges()
            assert gauges.pages_free + gauges.pages_reclaimable <= gauges.pages_total
            try:
                cache.close_pull(cache.open_pull(str(number % 4 * 1000 + number)).id)
            except (UnknownHandle, HandleNotSealed, HandleGone):
                cache.reset()
    except BaseException as error:
        errors.append(error)


def test_threads_leave_nothing_behind() -> None:
    cache = StageCache(frozenset(Window), 30, 14, BLOCK)
    errors: list[BaseException] = []
    threads = [Thread(target=use, args=(cache, thread, errors)) for thread in range(1, 4)]
    threads.append(Thread(target=watch, args=(cache, errors)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    cache.check()
    gauges = cache.gauges()
    assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
    assert (gauges.leases, gauges.handles, gauges.pulls) == (0, 0, 0)
