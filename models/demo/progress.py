"""Telling the user, on stderr, how far a long preparation has come."""

import sys
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction of it, 0 to 1, that is done."""


def silent(what: str, fraction: float) -> None:
    """Shows nothing."""


class ProgressBars:
    """One tqdm bar on stderr for each thing that is being done. Used as a context, so that the last bar is closed."""

    def __init__(self) -> None:
        self._what = ""
        self._bar: tqdm | None = None

    def __call__(self, what: str, fraction: float) -> None:
        if self._bar is None or what != self._what:
            self._close()
            self._what = what
            layout = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
            self._bar = tqdm(desc=what, total=1.0, file=sys.stderr, bar_format=layout)
        self._bar.update(min(fraction, 1.0) - self._bar.n)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
