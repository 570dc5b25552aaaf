"""Copies that the LOOP thread must make before anything else touches the pages and slots that they name."""

from collections.abc import Iterable
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


class Copies:
    """What one window copies in one step, while the step is being put together. Under the stage cache's mutex."""

    __slots__ = ("_offloads", "_onboards", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self._offloads: dict[int, int] = {}
        self._onboards: list[tuple[int, int]] = []

    def offload(self, item: int, host: int) -> None:
        self._offloads[host] = item

    def cancel(self, host: int) -> bool:
        """What the step would have copied to `host` is not wanted there any more; False when that is nothing."""
        return self._offloads.pop(host, None) is not None

    def onboard(self, host: int, item: int) -> None:
        self._onboards.append((host, item))

    @property
    def onboards(self) -> int:
        return len(self._onboards)

    @staticmethod
    def moves(of: Iterable["Copies"]) -> Moves:
        """One step of all windows."""
        windows = list(of)
        return Moves(
            tuple((copies.window, item, host) for copies in windows for host, item in copies._offloads.items()),
            tuple((copies.window, host, item) for copies in windows for host, item in copies._onboards),
        )
