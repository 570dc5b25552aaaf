"""What clients send. Types are strict, unknown fields are refused by name, numbers must be finite."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from ..admission.request import Sampling

MAX_BATCH = 1_024
MAX_PRIORITY = 1_000
MAX_DEADLINE_S = 86_400.0
_GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing logits by them overflows."""

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$")]
TokenIds = list[int]


def _wrong(message: str, kind: str = "invalid_value") -> PydanticCustomError:
    # The message is a template to pydantic: braces in what a client sent must not be read as fields.
    return PydanticCustomError(kind, "{message}", {"message": message})  # pyright: ignore[reportArgumentType]


def _check_token_ids(value: list[Any], where: str) -> None:
    if set(map(type, value)) <= {int}:
        return
    at = next(i for i, item in enumerate(value) if type(item) is not int)
    raise _wrong(f"{where}[{at}] should be an integer token id, not {_kind(value[at])}")


def _kind(value: object) -> str:
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _check_prompt(value: Any) -> str | TokenIds | list[str] | list[TokenIds] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(f"should be a string, a list of token ids, or a list of such prompts, not {_kind(value)}")
    if not value:
        raise _wrong("the prompt is empty", "empty_prompt")
    first = type(value[0])
    if first is str or first is list:
        if len(value) > MAX_BATCH:
            raise _wrong(f"a batch has at most {MAX_BATCH} prompts, not {len(value)}")
        for i, item in enumerate(value):
            if type(item) is not first:
                raise _wrong(f"prompt[{i}] is {_kind(item)} where prompt[0] is {_kind(value[0])}")
            if isinstance(item, list):
                _check_token_ids(item, f"prompt[{i}]")
        return value
    _check_token_ids(value, "prompt")
    return value


_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ],
    "description": "text or token ids; a list of them is a batch with one result each",
}
# Checked by hand: a union of four list types would copy a million token ids four times and report four errors.
Prompt = Annotated[Any, BeforeValidator(_check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]


def _check_content(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _wrong(f"should be a string or a list of text parts, not {_kind(value)}")
    texts: list[str] = []
    for i, part in enumerate(value):
        if not isinstance(part, dict):
            raise _wrong(f"part {i} should be an object, not {_kind(part)}")
        kind = part.get("type")
        if kind != "text":
            raise _wrong(f"part {i}: {str(kind)[:60]} content is not supported: only text goes in", "unsupported")
        if unknown := sorted(set(part) - {"type", "text"}):
            raise _wrong(f"part {i}: unknown field {unknown[0][:60]}", "unknown_field")
        if not isinstance(part.get("text"), str):
            raise _wrong(f"part {i}: text should be a string, not {_kind(part.get('text'))}")
        texts.append(part["text"])
    return "\n".join(texts)


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "object", "required": ["type", "text"]}},
        {"type": "null"},
    ]
}
Content = Annotated[Any, BeforeValidator(_check_content), WithJsonSchema(_CONTENT_SCHEMA)]


class Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ChatMessage(Schema):
    """One turn of a conversation, given to the model's own chat template as it stands."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = Field(default=None, max_length=256)
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)


class SamplingParams(Schema):
    """How the first token is chosen; greedy when nothing is said. Penalties count the prompt's tokens."""

    temperature: float = Field(default=0.0, ge=0, le=2, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=2**31 - 1, description="0 and -1: no limit")
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1, description="drawn afresh when not given")
    logprobs: int | None = Field(
        default=None, ge=0, le=20, description="alternatives to report beside the chosen token"
    )
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(default={}, max_length=1_024)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    min_tokens: int = Field(default=0, ge=0, le=2**31 - 1, description="above 0, the first token does not end the text")

    def for_engine(self) -> Sampling:
        greedy = self.temperature < _GREEDY_BELOW
        seed = self.seed if self.seed is not None else 0 if greedy else secrets.randbits(63)
        return Sampling(
            temperature=0.0 if greedy else self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            seed=seed,
            logprobs=self.logprobs,
            logit_bias=self.logit_bias,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            min_tokens=self.min_tokens,
        )


class PromptOrMessages(Schema):
    """Exactly one of the two says what the model reads."""

    model: str | None = None
    prompt: Prompt = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise _wrong("exactly one of prompt and messages is needed")
        return self


class PrefillRequest(PromptOrMessages):
    """`POST /v1/prefill`."""

    sampling: SamplingParams = Field(default_factory=SamplingParams)
    cache_salt: str | None = Field(
        None, min_length=1, max_length=256, description="requests share cached prefixes only under the same salt"
    )
    priority: int = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="lower numbers go first, and equal ones in the order of their arrival; waiting makes more urgent",
    )
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=MAX_DEADLINE_S,
        description="seconds from arrival within which the first token should be there; of one priority the "
        "earliest deadline goes first, and a request that misses its own is served all the same",
    )
    request_id: Name | None = None
    ttl_s: float | None = Field(
        default=None, gt=0, description="life of the handle, in seconds; the server's default if absent"
    )
    stream: bool = Field(default=False, description="send progress as server-sent events")


class RenewRequest(Schema):
    """`POST /v1/kv/{handle}/renew`."""

    ttl_s: float | None = Field(default=None, gt=0, description="seconds from now; the server's default if absent")


class TokenizeRequest(PromptOrMessages):
    """`POST /tokenize`. `add_special_tokens` is about `prompt`; a chat template adds its own."""

    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise _wrong("prompt: should be one string")
        return self


class DetokenizeRequest(Schema):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[TokenIds, Field(max_length=16_777_216)]
