"""What a stage's caches hold right now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from .handles import Handles
    from .unsealed import Unsealed
    from .window import CacheWindow


class CacheGauges(Struct, frozen=True):
    """Pages and slots are counts; each is free, reclaimable (attached, referenced by nothing but its tree) or pinned.

    Of the free and reclaimable ones, so many are `promised` to admitted requests. `leases` counts unsealed sequences,
    `escrows` those of them to which something is promised, `handles` sealed ones (those that only wait for their last
    pull included), `pulls` open pulls. Places on the host are free, reclaimable, or pinned likewise. `offloaded`,
    `onboarded` and `dropped` count entries since the start: copied to the host, copied back, and gone from the cache to
    make room. A window or a host tier that the stage lacks counts zero.
    """

    pages_total: int = 0
    pages_free: int = 0
    pages_reclaimable: int = 0
    slots_total: int = 0
    slots_free: int = 0
    slots_reclaimable: int = 0
    leases: int = 0
    handles: int = 0
    pulls: int = 0
    pages_promised: int = 0
    slots_promised: int = 0
    escrows: int = 0
    host_pages_total: int = 0
    host_pages_free: int = 0
    host_pages_reclaimable: int = 0
    host_slots_total: int = 0
    host_slots_free: int = 0
    host_slots_reclaimable: int = 0
    offloaded: int = 0
    onboarded: int = 0
    dropped: int = 0

    @property
    def pages_pinned(self) -> int:
        return self.pages_total - self.pages_free - self.pages_reclaimable

    @property
    def slots_pinned(self) -> int:
        return self.slots_total - self.slots_free - self.slots_reclaimable


def take_gauges(
    pages: CacheWindow | None, slots: CacheWindow | None, unsealed: Unsealed, handles: Handles
) -> CacheGauges:
    """The gauges of a stage with these windows. Under the stage cache's mutex."""
    hosts = [window.host for window in (pages, slots) if window is not None]
    return CacheGauges(
        pages_total=pages.pool.capacity if pages else 0,
        pages_free=pages.pool.free if pages else 0,
        pages_reclaimable=len(pages.tree.device) if pages else 0,
        slots_total=slots.pool.capacity if slots else 0,
        slots_free=slots.pool.free if slots else 0,
        slots_reclaimable=len(slots.tree.device) if slots else 0,
        leases=len(unsealed),
        handles=len(handles) - len(unsealed),
        pulls=handles.pulls,
        pages_promised=pages.promised if pages else 0,
        slots_promised=slots.promised if slots else 0,
        escrows=sum(bool(sequence.promised) for sequence in unsealed),
        host_pages_total=pages.host.pool.capacity if pages else 0,
        host_pages_free=pages.host.pool.free if pages else 0,
        host_pages_reclaimable=pages.host.reclaimable if pages else 0,
        host_slots_total=slots.host.pool.capacity if slots else 0,
        host_slots_free=slots.host.pool.free if slots else 0,
        host_slots_reclaimable=slots.host.reclaimable if slots else 0,
        offloaded=sum(host.offloaded for host in hosts),
        onboarded=sum(host.onboarded for host in hosts),
        dropped=sum(host.dropped for host in hosts),
    )
