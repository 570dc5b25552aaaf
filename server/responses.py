"""What clients get back."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(Answer):
    message: str
    type: str
    code: str


class ErrorAnswer(Answer):
    error: ErrorDetail


class TokenLogprob(Answer):
    id: int
    text: str
    logprob: float | None


class FirstTokenAnswer(TokenLogprob):
    """`top` holds the alternatives that `sampling.logprobs` asked for, likeliest first."""

    top: list[TokenLogprob] = []


class ReuseAnswer(Answer):
    """How the reused prefix came to be as long as it is, in tokens, each at most the one before: what the hints of all
    stages promised, what all of them still had when they pinned it, what was reused in the end."""

    hinted_tokens: int
    leased_tokens: int
    cached_tokens: int
    limited_by: str | None = Field(
        default=None, description="`rank N: window` that kept it from being longer; null when nothing did"
    )
    held_s: float = Field(default=0.0, description="seconds of waiting for another request to compute the same prefix")


class Usage(Answer):
    """Tokens. `cached_tokens_limited_by` names the rank and the window that kept the reused prefix from being
    longer; null when nothing did. `reuse` has the details; it is null where the usage is a sum over prompts."""

    prompt_tokens: int
    cached_tokens: int
    cached_tokens_limited_by: str | None = None
    reuse: ReuseAnswer | None = None


class TimingAnswer(Answer):
    """Seconds: waiting for its turn, being admitted, from admission to the first token."""

    queue_s: float
    admit_s: float
    prefill_s: float
    deadline_met: bool | None = Field(
        default=None,
        exclude_if=lambda met: met is None,
        description="whether the first token was there within `deadline_s`; only where that was given",
    )


class PrefillAnswer(Answer):
    """One finished prefill. `handle` is the capability under which its state is pulled."""

    id: str
    model: str
    handle: str
    first_token: FirstTokenAnswer
    usage: Usage
    timing: TimingAnswer


class BatchItem(PrefillAnswer):
    index: int


class BatchItemFailed(ErrorAnswer):
    index: int
    id: str


class BatchAnswer(Answer):
    """One result for each prompt, in their order; `usage` sums those that went well."""

    id: str
    model: str
    results: list[BatchItem | BatchItemFailed]
    usage: Usage


class ProgressEvent(Answer):
    """`event: progress` of a stream. `computed` of `total` prompt tokens are done, the reused prefix included."""

    id: str
    index: int
    phase: str
    computed: int
    total: int


class CancelAnswer(Answer):
    """`released`: it had finished, and its handle is gone. `cancelling`: the group has yet to confirm."""

    id: str
    status: Literal["cancelled", "released", "cancelling"]


class HandleAnswer(Answer):
    """`ttl_s`: the seconds that a renewed handle has to live."""

    handle: str
    status: Literal["renewed", "released"]
    ttl_s: float | None = None


class ModelCard(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "wavepp"
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class StatusAnswer(Answer):
    """`/health` and `/ready`."""

    status: str
    epoch: int = Field(description="0 before the first epoch")
    reason: str = ""


class TokenizeAnswer(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(Answer):
    prompt: str


class ResetAnswer(Answer):
    reset: Literal[True] = True


class VersionAnswer(Answer):
    version: str
