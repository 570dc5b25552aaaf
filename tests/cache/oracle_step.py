"""One step of materialisation as the brute-force model sees it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wavepp.cache.moves import Moves

from .oracle_parts import Held, Window

if TYPE_CHECKING:
    from .oracle import Oracle


class Step:
    """One step of materialisation: which keys move, and afterwards with which ids."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.brought: list[tuple[Window, bytes, int]] = []
        """With the place on the host that each is copied from."""
        self.extended = False
        self.whole = False
        self._offloaded: dict[str, dict[int, bytes]] = {"attention": {}, "recurrent": {}}
        """Device ids that victims had, with their keys."""
        self._freed: dict[str, set[int]] = {}
        self._free_host: dict[str, set[int]] = {}
        self.taken: Counter[str] = Counter()
        self._all_taken: set[str] = set()

    def bring(self, window: Window, held: Held, keys: list[bytes]) -> None:
        self._take(window, held, len(keys))
        self.brought += [(window, key, window.host[key]) for key in keys]

    def extend(self, window: Window, held: Held, count: int) -> None:
        self._take(window, held, count)
        self.extended |= count > 0

    def _take(self, window: Window, held: Held, count: int) -> None:
        oracle, free = self._oracle, self._oracle.free(window)
        host_free = oracle.free_host(window)
        self._freed[window.name], self._free_host[window.name] = set(free), set(host_free)
        places, moved = len(host_free), self._offloaded[window.name]
        for _ in range(count - len(free)):
            self._all_taken.add(window.name)
            victim = window.waiting.pop()
            assert victim is not None, "promised more than there is"
            device_id = window.device.pop(victim)
            self._freed[window.name].add(device_id)
            if places == 0:
                lost = window.waiting_host.pop()
                if lost is None:
                    del window.cost[victim]
                    oracle.dropped += 1
                    continue
                oracle.dropped += 1
                places += 1
                host_id = window.host[lost]
                if host_id >= 0:
                    self._free_host[window.name].add(host_id)
                else:
                    moved.pop(-host_id - 1)
                window.detach(lost)
            places -= 1
            window.host[victim] = -device_id - 1  # Known by where it was, until the moves say where it is.
            moved[device_id] = victim
            window.waiting_host.add(victim, window.cost[victim])
        self.taken[window.name] += count

    def finish(self, held: Held, moves: Moves, pages: tuple[int, ...], slots: list[int]) -> None:
        """The cache did it with these moves, and took these ids, in order, for what it neither brought nor had. They
        must be those of the rightful victims, and free ones."""
        oracle = self._oracle
        took: dict[str, list[int]] = {"attention": list(pages), "recurrent": list(slots)}
        for window in oracle.windows:
            moved, name = self._offloaded[window.name], window.name
            copies = [(source, place) for w, source, place in moves.offloads if w == name]
            assert sorted(source for source, _ in copies) == sorted(moved), "not the rightful victims were offloaded"
            assert len({place for _, place in copies}) == len(copies)
            for source, place in copies:
                assert place in self._free_host[name], "offloaded onto what is somebody's"
                window.host[moved[source]] = place
            oracle.offloaded += len(copies)
            brought = [(key, place) for w, key, place in self.brought if w is window]
            onboards = [(place, to) for w, place, to in moves.onboards if w == name]
            assert [place for _, place in brought] == [place for place, _ in onboards]
            if window is oracle.pages:
                took[name] = [*(to for _, to in onboards), *pages]
            assert len(took[name]) == len({*took[name]}) == self.taken[name]
            if took[name]:
                assert {*took[name]} <= self._freed[name], "ids that were somebody's"
            if name in self._all_taken:
                assert {*took[name]} == self._freed[name], "evicted for nothing"
            oracle.onboarded += len(onboards)
            for (key, _), (_, to) in zip(brought, onboards, strict=True):
                if window is oracle.pages:
                    del window.host[key]
                    window.device[key] = to
                else:
                    assert [to] == slots
                    held.source = None
                    if key not in oracle.holders(window):
                        window.wait(key)
