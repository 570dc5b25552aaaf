"""The requests of a stage that are not finished, and how far each has come."""

from __future__ import annotations

from collections.abc import Iterator

from .errors import AttemptConflict, UnknownSequence, WrongPhase
from .sequence import Phase, Sequence


class Unsealed:
    """Unsealed sequences by request. Under the stage cache's mutex."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request] = sequence

    def pop(self, request: int) -> Sequence | None:
        return self._sequences.pop(request, None)

    def same_attempt(self, request: int, attempt: int) -> Sequence | None:
        """What this attempt of the request holds already. Raises AttemptConflict when another attempt holds it."""
        held = self._sequences.get(request)
        if held is not None and held.attempt != attempt:
            raise AttemptConflict(f"request {request}: attempt {attempt} while {held.attempt} is held")
        return held

    def get(self, request: int) -> Sequence:
        """Raises UnknownSequence."""
        sequence = self._sequences.get(request)
        if sequence is None:
            raise UnknownSequence(f"request {request} holds nothing here, or is sealed")
        return sequence

    def uncommitted(self, request: int, snapshots: tuple[int, ...]) -> Sequence:
        """A leased or prepared one, of which `snapshots` (ascending) are positions. Raises UnknownSequence, WrongPhase
        or ValueError."""
        sequence = self.get(request)
        if sequence.phase is Phase.COMMITTED:
            raise WrongPhase(f"request {request} is committed at endpoint {sequence.endpoint}")
        if snapshots and snapshots[-1] > sequence.num_tokens:
            raise ValueError(f"snapshots {snapshots} of {sequence.num_tokens} tokens")
        return sequence

    def committed(self, request: int) -> Sequence:
        """Raises UnknownSequence or WrongPhase."""
        sequence = self.get(request)
        if sequence.phase is not Phase.COMMITTED:
            raise WrongPhase(f"request {request} is {sequence.phase.name.lower()}, not committed")
        return sequence
