"""Chained block keys of the prompts that are being admitted, hashed once each."""

from ..cache.keys import KeySpace
from .request import Request


class PromptKeys:
    """A memo by request. Owner: one thread, which hashes outside every lock; on rank 0 that is the leader's and its own
    participant's, who share one object where they share the thread. Each of them forgets what it is done with, and
    whoever asks again later hashes again."""

    def __init__(self, key_space: KeySpace, block_size: int) -> None:
        self._key_space, self._block_size = key_space, block_size
        self._memo: dict[int, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        """How many requests' keys are remembered."""
        return len(self._memo)

    def of(self, request: Request) -> tuple[bytes, ...]:
        """The keys of the prompt's full blocks, first to last, 16 bytes each."""
        keys = self._memo.get(request.id)
        if keys is None:
            keys = self._key_space.block_keys(request.tokens, self._block_size, request.adapter, request.salt)
            self._memo[request.id] = keys
        return keys

    def forget(self, request_id: int) -> None:
        """Harmless when nothing is remembered."""
        self._memo.pop(request_id, None)
