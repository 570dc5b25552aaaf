"""What a stage's caches hold right now."""

from msgspec import Struct


class CacheGauges(Struct, frozen=True):
    """Pages and slots are counts; each is free, reclaimable (attached, referenced by nothing but its tree) or pinned.

    `leases` counts unsealed sequences, `handles` sealed ones (those that only wait for their last pull included),
    `pulls` open pulls. A window that the stage lacks counts zero.
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

    @property
    def pages_pinned(self) -> int:
        return self.pages_total - self.pages_free - self.pages_reclaimable

    @property
    def slots_pinned(self) -> int:
        return self.slots_total - self.slots_free - self.slots_reclaimable
