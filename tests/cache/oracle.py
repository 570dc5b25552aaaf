"""A brute-force model of a stage cache: every count and every holder is searched for anew, nothing is kept in step but
who waits for eviction since when. It knows keys, not ids: which page or slot was taken, it is told."""

from __future__ import annotations

from collections import Counter

from wavepp.cache.answers import NoRoom, Prepared, Reach
from wavepp.cache.escrow import Floors

from .oracle_parts import Held, Window
from .oracle_step import Step


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
