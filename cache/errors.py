"""What the cache refuses, by name."""

# ruff: noqa: N818 (the names say what is the case, as callers read them in `except`)


class CacheError(Exception):
    """Anything that the cache refuses."""

    __str__ = Exception.__str__  # KeyError, which some of these also are, would put the message in quotes


class CapacityError(CacheError, ValueError):
    """The memory given to a stage cannot hold the least that it must hold."""


class CacheCorrupt(CacheError, AssertionError):
    """The cache's own bookkeeping contradicts itself: a bug, never a consequence of load."""


class UnknownSequence(CacheError, KeyError):
    """The request holds nothing on this stage, or is sealed already."""


class AttemptConflict(CacheError):
    """The request is claimed already, by another attempt that was not released."""


class DuplicateHandle(CacheError):
    """Another request on this stage has the handle."""


class UnknownHandle(CacheError, KeyError):
    """No claim on this stage ever named the handle, or its state has been dropped."""


class HandleNotSealed(CacheError):
    """The handle's request is still being computed."""


class HandleGone(CacheError):
    """The handle was released; its state only waits for pulls that are already open."""


class WrongPhase(CacheError):
    """The request has not come as far as the call needs it, or further: leased, prepared, committed, materialised."""
