"""One memo of block keys for all ranks of a simulated group."""

from ..admission.prompt_keys import PromptKeys
from ..admission.request import Request
from ..cache.keys import KeySpace


class SharedPromptKeys(PromptKeys):
    """Every rank would hash the same prompt to the same keys: it is done once, and forgotten when all are through."""

    def __init__(self, key_space: KeySpace, block_size: int, owners: int) -> None:
        super().__init__(key_space, block_size)
        self._owners = owners
        self._left: dict[int, int] = {}

    def of(self, request: Request) -> tuple[bytes, ...]:
        self._left.setdefault(request.id, self._owners)
        return super().of(request)

    def forget(self, request_id: int) -> None:
        left = self._left.get(request_id, 1) - 1
        if left > 0:
            self._left[request_id] = left
            return
        self._left.pop(request_id, None)
        super().forget(request_id)
