"""What a request asks of the stage group: the part of a submission that every rank must know."""

from msgspec import Struct


class Sampling(Struct, frozen=True, tag="sampling", forbid_unknown_fields=True):
    """How the first token is chosen. Temperature 0 is greedy; `top_k` 0 means no limit; `logprobs` is how many
    alternatives to report beside the chosen token (None: only the chosen token's own logprob)."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0


class Request(Struct, frozen=True, tag="request"):
    """One prompt on its way through the group.

    `id` is rank 0's own number, unique within an epoch. `tokens` are int32 little-endian, four bytes a token.
    `handle` is the capability under which the finished state can be pulled; it is made at submission, and every
    rank learns it with the announcement, so that no rank issues one on its own.
    """

    id: int
    name: str
    tokens: bytes
    handle: str
    sampling: Sampling = Sampling()
    salt: str = ""
    adapter: str = ""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // 4
