"""A brute-force model of a stage cache: every count and every holder is searched for anew, nothing is kept in step."""

from dataclasses import dataclass, field
from itertools import count

from wavepp.cache.answers import Claimed, NoRoom, Reach, Short


@dataclass
class Held:
    """What one request ought to hold. `pinned` blocks and the `source` key are shared; `own_*` ids are its alone."""

    request: int
    attempt: int
    handle: str
    keys: tuple[bytes, ...]
    num_tokens: int
    endpoint: int
    pages: tuple[int, ...] = ()
    slot: int = -1
    source: bytes | None = None
    pending: list[tuple[int, int]] = field(default_factory=list)
    pinned: int = 0
    computed: int = 0
    sealed: bool = False
    ended: bool = False
    pulls: set[int] = field(default_factory=set)


class Window:
    """Ids of one window: what is attached under which key, and since when nobody holds it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.attached: dict[bytes, int] = {}
        self.let_go: dict[bytes, int] = {}

    def victims(self, holders: dict[bytes, int]) -> list[bytes]:
        """Keys without holder, the one let go of first at the front."""
        return sorted((key for key in self.attached if key not in holders), key=self.let_go.__getitem__)


class Oracle:
    def __init__(self, attention: bool, recurrent: bool, pages: int, slots: int, block: int) -> None:
        self.block = block
        self.pages = Window(pages) if attention else None
        self.slots = Window(slots) if recurrent else None
        self.held: list[Held] = []
        self.evicted_pages = self.evicted_slots = self.duplicates = 0
        self._clock = count()

    # What must hold, searched for.

    def page_holders(self, but: Held | None = None) -> dict[bytes, int]:
        holders: dict[bytes, int] = {}
        for held in self.held:
            if held is not but:
                for key in held.keys[: held.pinned]:
                    holders[key] = holders.get(key, 0) + 1
        return holders

    def slot_holders(self) -> dict[bytes, int]:
        holders: dict[bytes, int] = {}
        for held in self.held:
            if held.source is not None:
                holders[held.source] = holders.get(held.source, 0) + 1
        return holders

    def own_pages(self, held: Held) -> set[int]:
        assert self.pages is not None
        shared = {self.pages.attached[key] for key in held.keys[: held.pinned]}
        return set(held.pages) - shared

    def own_slots(self, held: Held) -> set[int]:
        return {slot for _, slot in held.pending} | {held.slot}

    def free_pages(self) -> set[int]:
        assert self.pages is not None
        used = set(self.pages.attached.values())
        for held in self.held:
            used |= self.own_pages(held)
        return set(range(self.pages.capacity)) - used

    def free_slots(self) -> set[int]:
        assert self.slots is not None
        used = set(self.slots.attached.values())
        for held in self.held:
            used |= self.own_slots(held)
        return set(range(self.slots.capacity)) - used

    def reach(self, keys: tuple[bytes, ...], limit: int) -> Reach:
        endpoint, by = limit, ""
        if self.pages is not None:
            blocks = 0
            while blocks < min(len(keys), limit // self.block) and keys[blocks] in self.pages.attached:
                blocks += 1
            if blocks * self.block < endpoint:
                endpoint, by = blocks * self.block, "attention"
        if self.slots is not None:
            at = [
                r
                for r in range(self.block, endpoint + 1, self.block)
                if keys[r // self.block - 1] in self.slots.attached
            ]
            if max(at, default=0) < endpoint:
                endpoint, by = max(at, default=0), "recurrent"
        return Reach(endpoint, by)

    def available(self) -> tuple[int, int]:
        pages = len(self.free_pages()) + len(self.pages.victims(self.page_holders())) if self.pages else 0
        slots = len(self.free_slots()) + len(self.slots.victims(self.slot_holders())) if self.slots else 0
        return pages, slots

    # What an operation must answer, and what it must do.

    def judge(self, held: Held, planned: tuple[int, ...]) -> Claimed | Short | NoRoom:
        """The answer that a claim must get. Changes nothing."""
        candidate = held.endpoint
        endpoint = self.reach(held.keys, candidate).endpoint
        if endpoint < candidate:
            return Short(endpoint)
        prefix = set(held.keys[: candidate // self.block])
        blocks = -(-held.num_tokens // self.block)
        if self.slots is not None and candidate and len(planned) + 2 > self.slots.capacity >= len(planned) + 1:
            return Short(0)
        if self.pages is not None:
            others = [key for key in self.pages.victims(self.page_holders()) if key not in prefix]
            need, have = blocks - candidate // self.block, len(self.free_pages()) + len(others)
            if need > have:
                return NoRoom("attention", need, have)
        if self.slots is not None:
            source = held.keys[candidate // self.block - 1] if candidate else None
            others = [key for key in self.slots.victims(self.slot_holders()) if key != source]
            need, have = 1 + len(planned), len(self.free_slots()) + len(others)
            if need > have:
                return NoRoom("recurrent", need, have)
        return Claimed(candidate)

    def take(self, held: Held, pages: tuple[int, ...], slot: int, snapshots: tuple[tuple[int, int], ...]) -> None:
        """A claim was granted with these ids: they must be free ones, or those of the rightful victims."""
        reused = held.endpoint // self.block
        if self.pages is not None:
            held.pinned = reused
            prefix, rest = held.keys[:reused], pages[reused:]
            assert pages[:reused] == tuple(self.pages.attached[key] for key in prefix)
            assert len(pages) == -(-held.num_tokens // self.block)
            holders = self.page_holders() | dict.fromkeys(prefix, 1)
            self.evicted_pages += self._take(self.pages, self.free_pages(), holders, set(rest), len(rest))
        if self.slots is not None:
            held.source = held.keys[reused - 1] if reused else None
            holders = self.slot_holders() | ({held.source: 1} if held.source else {})
            taken = [slot, *(s for _, s in snapshots)]
            self.evicted_slots += self._take(self.slots, self.free_slots(), holders, set(taken), len(taken))
        held.pages, held.slot, held.pending = pages, slot, list(snapshots)
        self.held.append(held)

    def _take(self, window: Window, free: set[int], holders: dict[bytes, int], taken: set[int], number: int) -> int:
        assert len(taken) == number, "one id twice in a claim"
        victims = window.victims(holders)[: max(0, number - len(free))]
        gone = {window.attached.pop(key) for key in victims}
        for key in victims:
            del window.let_go[key]
        assert taken <= free | gone, "ids that were somebody's"
        assert gone <= taken, "evicted for nothing"
        return len(victims)

    def resumed(self, held: Held) -> None:
        source, held.source = held.source, None
        if self.slots is not None and source is not None and source not in self.slot_holders():
            self.slots.let_go[source] = next(self._clock)

    def publish(self, held: Held, computed: int) -> None:
        held.computed = max(held.computed, computed)
        if self.pages is not None:
            for block in range(held.pinned, computed // self.block):
                key = held.keys[block]
                self.duplicates += key in self.pages.attached
                self.pages.attached.setdefault(key, held.pages[block])
                self.pages.let_go.pop(key, None)
                held.pinned = block + 1
        if self.slots is not None:
            for position, slot in [p for p in held.pending if p[0] <= computed]:
                held.pending.remove((position, slot))
                key = held.keys[position // self.block - 1]
                self.slots.attached.setdefault(key, slot)
                if key not in self.slot_holders():
                    self.slots.let_go[key] = next(self._clock)

    def seal(self, held: Held) -> None:
        self.resumed(held)
        held.pending, held.sealed = [], True
        self._drop_if_over(held)

    def drop(self, held: Held) -> None:
        self.resumed(held)
        self.held.remove(held)
        if self.pages is not None:
            holders = self.page_holders()
            for key in reversed(held.keys[: held.pinned]):
                if key not in holders:
                    self.pages.let_go[key] = next(self._clock)

    def end(self, held: Held) -> None:
        held.ended = True
        self._drop_if_over(held)

    def close(self, held: Held, pull: int) -> None:
        held.pulls.remove(pull)
        self._drop_if_over(held)

    def _drop_if_over(self, held: Held) -> None:
        if held.sealed and held.ended and not held.pulls:
            self.drop(held)

    def reset(self) -> None:
        for window, holders in ((self.pages, self.page_holders()), (self.slots, self.slot_holders())):
            if window is not None:
                for key in window.victims(holders):
                    del window.attached[key], window.let_go[key]
