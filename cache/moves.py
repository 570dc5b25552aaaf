"""Copies that the LOOP thread must make before anything else touches the pages and slots that they name."""

from dataclasses import dataclass

from .layout import Window


@dataclass(frozen=True, slots=True)
class Moves:
    """One step of materialisation: all of `offloads` first, then all of `onboards`, each in any order.

    The bookkeeping has changed already when these are handed out: a freed page may be a destination of the same step,
    but never of two copies. `offloads` are (window, device id, host id), `onboards` (window, host id, device id)."""

    offloads: tuple[tuple[Window, int, int], ...] = ()
    onboards: tuple[tuple[Window, int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.offloads or self.onboards)
