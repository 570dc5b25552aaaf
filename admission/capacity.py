"""What the ranks can hold, from what they said when they joined."""

from collections.abc import Sequence

from .messages import Hello
from .request import Request

ATTENTION, RECURRENT = "attention", "recurrent"
UNBOUNDED = 2**31 - 1


class GroupCapacity:
    """Immutable. `block_size` is tokens a page."""

    def __init__(self, ranks: Sequence[Hello], block_size: int) -> None:
        self.block_size = block_size
        self.num_ranks = len(ranks)
        self.max_prompt_tokens = UNBOUNDED
        """The longest prompt, in tokens, that an empty cache of every rank can hold."""
        self.limited_by = ""
        for hello in ranks:
            for window in hello.windows:
                tokens = _longest(hello, window, block_size)
                if tokens < self.max_prompt_tokens:
                    self.max_prompt_tokens, self.limited_by = tokens, f"rank {hello.rank}: {window}"
        pages = [hello.num_pages for hello in ranks if ATTENTION in hello.windows]
        self.min_attention_tokens = min(pages) * block_size if pages else None
        """Tokens that the attention window of the rank with the fewest pages holds; None when no rank has one."""
        slots = [hello.num_slots for hello in ranks if RECURRENT in hello.windows]
        self.min_slots = min(slots) if slots else None
        """Recurrent slots of the rank with the fewest; None when no rank has such a window."""

    def refuses(self, request: Request) -> str:
        """Why the request can never be admitted; empty when it can."""
        if request.num_tokens <= self.max_prompt_tokens:
            return ""
        return (
            f"the prompt has {request.num_tokens} tokens, and the longest that the cache can hold is "
            f"{self.max_prompt_tokens} ({self.limited_by})"
        )

    def snapshots_beyond(self, endpoint: int, most: int) -> int:
        """How many snapshots a request may plan. Never more than half of the fewest slots, so that no prompt crowds
        out all others; and an idle group can always admit it: its live state and the snapshot that it resumes from
        take a slot each."""
        if self.min_slots is None:
            return 0
        return max(0, min(most, max(1, self.min_slots // 2), self.min_slots - (2 if endpoint else 1)))


def _longest(hello: Hello, window: str, block_size: int) -> int:
    if window == RECURRENT:
        return UNBOUNDED if hello.num_slots else 0
    return hello.num_pages * block_size
