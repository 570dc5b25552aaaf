"""Who may read a finished prefill: handles, and the pulls that keep their state."""

from __future__ import annotations

from itertools import count

from .answers import Pull
from .errors import CacheCorrupt, DuplicateHandle, HandleGone, HandleNotSealed, UnknownHandle
from .sequence import Sequence


class Handles:
    """Every sequence of a stage by its handle, sealed or not, and the open pulls. Under the stage cache's mutex."""

    def __init__(self) -> None:
        self._sequences: dict[str, Sequence] = {}
        self._pulls: dict[int, Sequence] = {}
        self._pull_ids = count(1)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def pulls(self) -> int:
        return len(self._pulls)

    def sequences(self) -> list[Sequence]:
        return list(self._sequences.values())

    def get(self, handle: str) -> Sequence | None:
        return self._sequences.get(handle)

    def refuse_duplicate(self, handle: str, request: int) -> None:
        """Raises DuplicateHandle when a sequence has the handle."""
        held = self._sequences.get(handle)
        if held is not None:
            raise DuplicateHandle(f"request {request}: its handle is that of {held.request}")

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.handle] = sequence

    def remove(self, sequence: Sequence) -> None:
        del self._sequences[sequence.handle]

    def open(self, handle: str) -> Pull:
        """Raises UnknownHandle, HandleNotSealed or HandleGone."""
        sequence = self._sequences.get(handle)
        if sequence is None:
            raise UnknownHandle("no finished prefill has this handle here")
        if sequence.ended:
            raise HandleGone(f"the handle of request {sequence.request} was released")
        if not sequence.sealed:
            raise HandleNotSealed(f"request {sequence.request} is still being computed")
        pull = next(self._pull_ids)
        self._pulls[pull] = sequence
        sequence.pulls += 1
        return Pull(pull, sequence.pages, sequence.slot, sequence.num_tokens)

    def close(self, pull: int) -> Sequence | None:
        """Whose pull it was; None when it is not open."""
        sequence = self._pulls.pop(pull, None)
        if sequence is not None:
            sequence.pulls -= 1
        return sequence

    def check(self) -> None:
        """Raises CacheCorrupt when pulls are miscounted or a sequence outlived its handle."""
        pulls = list(self._pulls.values())
        for handle, sequence in self._sequences.items():
            if sequence.handle != handle:
                raise CacheCorrupt(f"request {sequence.request} under another handle than its own")
            if sequence.pulls != pulls.count(sequence):
                raise CacheCorrupt(f"request {sequence.request} counts {sequence.pulls} pulls")
            if is_over(sequence):
                raise CacheCorrupt(f"request {sequence.request} outlived its handle")
        if sum(sequence.pulls for sequence in self._sequences.values()) != len(pulls):
            raise CacheCorrupt("a pull is open on a sequence that no handle names")


def is_over(sequence: Sequence) -> bool:
    """Whether nothing keeps a sealed sequence any more."""
    return sequence.sealed and sequence.ended and not sequence.pulls
