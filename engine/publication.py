"""When a wave's chunks are published on every rank."""

from __future__ import annotations

from collections import deque

Chunk = tuple[int, int]
"""(request, tokens of it that the wave completes)."""


class Publication:
    """Follows the waves through the ranks. A rank reports a wave done once it has published it, and ranks run waves in
    order, so a wave is published everywhere when the last of them has reported it. Owner: rank 0's WAVE."""

    def __init__(self, num_ranks: int) -> None:
        self._next = [0] * num_ranks
        """By rank: the wave that it will report next."""
        self._open: deque[tuple[int, tuple[Chunk, ...]]] = deque()
        """Waves planned and not published everywhere, in order."""

    def planned(self, wave: int, chunks: tuple[Chunk, ...]) -> None:
        """Rank 0 is about to run the wave."""
        self._open.append((wave, chunks))

    def done(self, rank: int, wave: int) -> tuple[Chunk, ...]:
        """The rank has published the wave; returns the chunks that are thereby published on all ranks. Raises
        RuntimeError when it is not that rank's turn for this wave."""
        if wave != self._next[rank]:
            raise RuntimeError(f"rank {rank} reports wave {wave} done, where wave {self._next[rank]} was due")
        self._next[rank] += 1
        everywhere = min(self._next)
        published: list[Chunk] = []
        while self._open and self._open[0][0] < everywhere:
            published.extend(self._open.popleft()[1])
        return tuple(published)
