"""What was promised at admission becomes pages and slots on the device."""

from __future__ import annotations

from typing import Protocol

from ..cache.moves import Moves
from ..cache.stage_cache import StageCache
from .trace import Tracer


class Copier(Protocol):
    """What is asked of the device pools here."""

    def execute(self, moves: Moves) -> None: ...


class Materialiser:
    """Takes steps of materialisation from the cache and makes their copies at once, in one order. Owner: LOOP."""

    def __init__(self, cache: StageCache, pools: Copier, tracer: Tracer, batch: int) -> None:
        """`batch`: at most so many pages and slots are brought from the host tier in one step of `prefix`."""
        self._cache, self._pools, self._tracer, self._batch = cache, pools, tracer, batch

    def prefix(self, request: int, endpoint: int) -> bool:
        """One bounded step towards the leased prefix of a claim; True when all of it is on the device."""
        moves = self._cache.materialise(request, endpoint, self._batch)
        if moves is None:
            return True
        with self._tracer.span("materialise", request=request, upto=endpoint):
            self._execute(moves)
        return False

    def upto(self, request: int, position: int) -> None:
        """All that a span which ends at `position` reads and writes."""
        with self._tracer.span("materialise", request=request, upto=position):
            while (moves := self._cache.materialise(request, position)) is not None:
                self._execute(moves)

    def _execute(self, moves: Moves) -> None:
        if not moves:
            return
        # Apart in the trace only: the order is that of the moves.
        if moves.offloads:
            with self._tracer.span("offload", entries=len(moves.offloads)):
                self._pools.execute(Moves(offloads=moves.offloads))
        if moves.onboards:
            with self._tracer.span("onboard", entries=len(moves.onboards)):
                self._pools.execute(Moves(onboards=moves.onboards))
