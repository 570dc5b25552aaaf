"""A brute-force model of a stage cache: every count and every holder is searched for anew, nothing is kept in step but
who waits for eviction since when. It knows keys, not ids: which page or slot was taken, it is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.escrow import Floors
from wavepp.cache.moves import Moves

WINDOWS = ("attention", "recurrent")


@dataclass(eq=False)
class Held:
    """What one request ought to hold. `pinned` blocks and the `source` key are shared; other ids are its alone."""

    request: int
    attempt: int
    handle: str
    keys: tuple[bytes, ...]
    num_tokens: int
    endpoint: int = 0
    limited_by: str = ""
    phase: str = "leased"
    planned: tuple[int, ...] = ()
    pinned: int = 0
    pages: tuple[int, ...] = ()
    slot: int = -1
    source: bytes | None = None
    pending: list[tuple[int, int]] = field(default_factory=list)
    captures: int = 0
    captured: int = 0
    computed: int = 0
    ended: bool = False
    pulls: set[int] = field(default_factory=set)

    @property
    def sealed(self) -> bool:
        return self.phase == "sealed"


class Waiting:
    """Keys of one tier that nobody holds, each with its priority and its last use; the lowest pair goes first."""

    def __init__(self, by_cost: bool) -> None:
        self._by_cost = by_cost
        self._clock = self._uses = 0
        self._since: dict[bytes, tuple[int, int]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._since

    def __len__(self) -> int:
        return len(self._since)

    def add(self, key: bytes, cost: int) -> None:
        self._uses += 1
        self._since[key] = (self._clock + cost if self._by_cost else 0, self._uses)

    def discard(self, key: bytes) -> None:
        self._since.pop(key, None)

    def in_order(self) -> list[bytes]:
        return sorted(self._since, key=self._since.__getitem__)

    def pop(self) -> bytes | None:
        if not self._since:
            return None
        first = min(self._since, key=self._since.__getitem__)
        self._clock = self._since.pop(first)[0]
        return first


class Window:
    """One window: the ids of what is attached, by key and tier, and who waits for eviction there."""

    def __init__(self, name: str, capacity: int, host_capacity: int, by_cost: bool) -> None:
        self.name, self.capacity, self.host_capacity = name, capacity, host_capacity
        self.device: dict[bytes, int] = {}
        self.host: dict[bytes, int] = {}
        self.cost: dict[bytes, int] = {}
        self.waiting, self.waiting_host = Waiting(by_cost), Waiting(by_cost)

    def attached(self, key: bytes) -> bool:
        return key in self.device or key in self.host

    def wait(self, key: bytes) -> None:
        """The last holder let go of it, or it was used."""
        (self.waiting if key in self.device else self.waiting_host).add(key, self.cost[key])

    def hold(self, key: bytes) -> None:
        self.waiting.discard(key)
        self.waiting_host.discard(key)

    def detach(self, key: bytes) -> None:
        self.device.pop(key, None)
        self.host.pop(key, None)
        del self.cost[key]


class Oracle:
    """`pages` and `slots` are the windows that the stage has; see `World` for how it is driven."""

    def __init__(
        self,
        windows: frozenset[str],
        pages: tuple[int, int],
        slots: tuple[int, int],
        block: int,
        floors: Floors,
        by_cost: bool,
    ) -> None:
        """`pages` and `slots`: on the device, and on the host."""
        self.block, self.floors = block, floors
        self.pages = Window("attention", *pages, False) if "attention" in windows else None
        self.slots = Window("recurrent", *slots, by_cost) if "recurrent" in windows else None
        self.windows = [window for window in (self.pages, self.slots) if window is not None]
        self.held: list[Held] = []
        self.offloaded = self.onboarded = self.dropped = self.replaced = self.doubled = 0

    # What must hold, searched for.

    def holders(self, window: Window, but: Held | None = None) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for held in self.held:
            if held is not but:
                found.update(self._holds(window, held))
        return found

    def _holds(self, window: Window, held: Held) -> tuple[bytes, ...]:
        if window is self.pages:
            return held.keys[: held.pinned]
        return () if held.source is None else (held.source,)

    def own(self, window: Window, held: Held) -> set[int]:
        if window is self.pages:
            return set(held.pages) - {window.device.get(key, -1) for key in held.keys[: held.pinned]}
        return {slot for _, slot in held.pending} | ({held.slot} - {-1})

    def free(self, window: Window) -> set[int]:
        used = set(window.device.values())
        for held in self.held:
            used |= self.own(window, held)
        return set(range(window.capacity)) - used

    def free_host(self, window: Window) -> set[int]:
        return set(range(window.host_capacity)) - set(window.host.values())

    def promised(self, window: Window, but: Held | None = None) -> int:
        escrowed = [held for held in self.escrowed() if held is not but]
        wanted = {key for held in escrowed for key in self._holds(window, held) if key in window.host}
        return sum(self.outstanding(window, held) for held in escrowed) + (len(wanted) if window is self.pages else 0)

    def escrowed(self) -> list[Held]:
        return [held for held in self.held if held.phase in ("prepared", "committed")]

    def reclaimable(self, window: Window, holders: Counter[bytes]) -> int:
        return sum(key not in holders for key in window.device)

    def slack(self, window: Window) -> int:
        return len(self.free(window)) + self.reclaimable(window, self.holders(window)) - self.promised(window)

    def victims(self, window: Window) -> list[bytes]:
        return window.waiting.in_order()[: max(0, self.promised(window) - len(self.free(window)))]

    def outstanding(self, window: Window, held: Held) -> int:
        """What is still to be taken for the suffix."""
        if window is self.pages:
            return -(-held.num_tokens // self.block) - max(len(held.pages), held.endpoint // self.block)
        return (held.slot < 0) + len(held.planned) - held.captures

    # The answers that it must give. They change nothing.

    def reach(self, keys: tuple[bytes, ...], limit: int) -> Reach:
        endpoint, by = limit, ""
        if self.pages is not None:
            blocks = 0
            while blocks < limit // self.block and self.pages.attached(keys[blocks]):
                blocks += 1
            if blocks * self.block < endpoint:
                endpoint, by = blocks * self.block, "attention"
        if self.slots is not None:
            at = next((r for r in range(endpoint, 0, -self.block) if self.slots.attached(self._key(keys, r))), 0)
            if at < endpoint:
                endpoint, by = at, "recurrent"
        return Reach(endpoint, by)

    def leasable(self, keys: tuple[bytes, ...], candidate: int) -> Reach:
        endpoint, by = candidate, ""
        if self.pages is not None:
            holders, slack, blocks = self.holders(self.pages), self.slack(self.pages), 0
            while blocks < candidate // self.block and self.pages.attached(keys[blocks]):
                slack -= keys[blocks] in self.pages.device and keys[blocks] not in holders
                if slack < 0:
                    break
                blocks += 1
            if blocks * self.block < endpoint:
                endpoint, by = blocks * self.block, "attention"
        if self.slots is not None:
            window, holders, slack = self.slots, self.holders(self.slots), self.slack(self.slots)
            for at in range(endpoint, -1, -self.block):
                key = self._key(keys, at) if at else b""
                held_or_spare = window.capacity > 1 and (key in holders or slack > 0)
                if at == 0 or key in window.host or (key in window.device and held_or_spare):
                    if at < endpoint:
                        endpoint, by = at, "recurrent"
                    break
        return Reach(endpoint, by)

    def revision(
        self, held: Held, endpoint: int, planned: tuple[int, ...], floors: Floors
    ) -> tuple[Prepared, str] | NoRoom:
        """What preparing or committing at `endpoint` comes to, and what then limits the endpoint."""
        target, by = min(endpoint, held.endpoint), held.limited_by
        if self.slots is not None:
            lower = next(at for at in range(target, -1, -self.block) if self._goes_on(self.slots, held, at, planned))
            if lower < target:
                target, by = lower, "recurrent"
        free = offload = evict = 0
        for window in self.windows:
            holders = self.holders(window, but=held) + Counter(self._lease_at(window, held, target))
            others, at_hand = self.promised(window, but=held), len(self.free(window))
            available = at_hand + self.reclaimable(window, holders) - others
            if target == endpoint:
                available -= floors.pages if window is self.pages else floors.slots
            need = self._need(window, held, target, planned)
            if need > available:
                return NoRoom(window.name, need, max(0, available))
            # Only a trim that lets go of offloaded entries makes more of the host reclaimable.
            places = len(self.free_host(window)) + sum(key not in holders for key in window.host)
            now = min(need, max(0, at_hand - others))
            moved = min(need - now, max(0, places - max(0, others - at_hand)))
            free, offload, evict = free + now, offload + moved, evict + need - now - moved
        return Prepared(target, free, offload, evict), by

    def _goes_on(self, window: Window, held: Held, at: int, planned: tuple[int, ...]) -> bool:
        if at == 0:
            return True
        key = self._key(held.keys, at)
        if key in window.host:
            return True
        if key not in window.device:
            return False
        beyond = sum(position > at for position in planned)
        return not 1 + len(planned) <= window.capacity < 2 + beyond

    def _lease_at(self, window: Window, held: Held, at: int) -> tuple[bytes, ...]:
        if window is self.pages:
            return held.keys[: at // self.block]
        return (self._key(held.keys, at),) if at else ()

    def _need(self, window: Window, held: Held, at: int, planned: tuple[int, ...]) -> int:
        if window is self.pages:
            by_others = {key for other in self.escrowed() if other is not held for key in self._holds(window, other)}
            absent = {key for key in held.keys[: at // self.block] if key in window.host}
            return -(-held.num_tokens // self.block) - at // self.block + len(absent - by_others)
        return 1 + sum(position > at for position in planned)

    def _key(self, keys: tuple[bytes, ...], position: int) -> bytes:
        return keys[position // self.block - 1]

    # What operations do.

    def lease(self, held: Held, reach: Reach) -> None:
        held.endpoint = held.computed = reach.endpoint
        held.limited_by = reach.limited_by
        if self.pages is not None:
            held.pinned = reach.endpoint // self.block
        if self.slots is not None and reach.endpoint:
            held.source = self._key(held.keys, reach.endpoint)
        self.held.append(held)
        for window in self.windows:
            for key in self._holds(window, held):
                window.hold(key)

    def revise(self, held: Held, endpoint: int, by: str, planned: tuple[int, ...]) -> None:
        before = {window.name: self._holds(window, held) for window in self.windows}
        held.endpoint = held.computed = endpoint
        held.limited_by = by
        held.planned = tuple(position for position in planned if position > endpoint)
        if self.pages is not None:
            held.pinned = endpoint // self.block
        if self.slots is not None:
            held.source = self._key(held.keys, endpoint) if endpoint else None
        for window in self.windows:
            for key in self._holds(window, held):
                window.hold(key)
            self._let_go(window, before[window.name])

    def materialise(self, held: Held, upto: int, limit: int | None) -> Step | None:
        """Does the next step of materialisation, all but the ids; None when there is none."""
        step = Step(self)
        left = 1 << 30 if limit is None else limit
        if self.pages is not None and not held.pages:
            absent = [key for key in held.keys[: held.pinned] if key in self.pages.host][:left]
            step.bring(self.pages, held, absent)
            left -= len(absent)
        if self.slots is not None and held.source in self.slots.host and left:
            step.bring(self.slots, held, [held.source])
        whole = self.pages is None or all(key in self.pages.device for key in held.keys[: held.pinned])
        if not step.brought and upto > held.endpoint:
            if self.pages is not None:
                there = len(held.pages) or held.pinned
                step.extend(self.pages, held, max(0, -(-upto // self.block) - there))
            if self.slots is not None:
                due = sum(position <= upto for position in held.planned)
                step.extend(self.slots, held, (held.slot < 0) + max(0, due - held.captures))
                held.captures = max(held.captures, due)
        step.whole = whole
        return step if step.brought or step.extended else None

    def resumed(self, held: Held) -> None:
        if held.slot >= 0 and held.source is not None:
            source, held.source = held.source, None
            assert self.slots is not None
            self._let_go(self.slots, (source,))

    def publish(self, held: Held, computed: int) -> None:
        if self.pages is not None:
            for block in range(held.pinned, computed // self.block):
                key, page = held.keys[block], held.pages[block]
                held_by_others = key in self.holders(self.pages)
                self.doubled += key in self.pages.device and held_by_others
                if key not in self.pages.device or not held_by_others:
                    self.replaced += key in self.pages.device
                    self.pages.host.pop(key, None)
                    self.pages.device[key] = page
                self.pages.cost.setdefault(key, 0)
                held.pinned = block + 1
                self.pages.hold(key)
        if self.slots is not None:
            for position, slot in [p for p in held.pending if p[0] <= computed]:
                held.pending.remove((position, slot))
                key = self._key(held.keys, position)
                if key not in self.slots.device:
                    self.slots.waiting_host.discard(key)
                    self.slots.host.pop(key, None)
                    self.slots.device[key] = slot
                    self.slots.cost.setdefault(key, position - max(held.captured, held.endpoint))
                held.captured = position
                if key not in self.holders(self.slots):
                    self.slots.wait(key)
        held.computed = computed

    def seal(self, held: Held) -> None:
        self.resumed(held)
        held.pending, held.phase = [], "sealed"
        if self.pages is not None:
            held.pages = (*(self.pages.device[key] for key in held.keys[: held.pinned]), *held.pages[held.pinned :])
        self._drop_if_over(held)

    def drop(self, held: Held) -> None:
        self.held.remove(held)
        for window in self.windows:
            self._let_go(window, self._holds(window, held))

    def end(self, held: Held) -> None:
        held.ended = True
        self._drop_if_over(held)

    def close(self, held: Held, pull: int) -> None:
        held.pulls.remove(pull)
        self._drop_if_over(held)

    def reset(self) -> None:
        for window in self.windows:
            for waiting in (window.waiting_host, window.waiting):
                while (key := waiting.pop()) is not None:
                    window.detach(key)

    def _drop_if_over(self, held: Held) -> None:
        if held.sealed and held.ended and not held.pulls:
            self.drop(held)

    def _let_go(self, window: Window, keys: tuple[bytes, ...]) -> None:
        holders = self.holders(window)
        for key in reversed(keys):
            if key not in holders and key not in window.waiting and key not in window.waiting_host:
                window.wait(key)


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
