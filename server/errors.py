"""What can go wrong, as HTTP says it: `{"error": {"message", "type", "code"}}`.

    ApiError
    ├── BadRequestError 400            malformed, unknown or out of range; named by field
    ├── UnauthorizedError 401
    ├── NotFoundError 404              unknown route, model, request or handle
    ├── MethodNotAllowedError 405
    ├── BodyTimedOutError 408
    ├── ConflictError 409              a duplicate id, an unfinished handle, a request cancelled by another call
    ├── GoneError 410                  an expired handle
    ├── TooLargeError 413
    ├── UnsupportedMediaTypeError 415
    ├── TooManyError 429               the queue is full; carries Retry-After
    ├── InternalError 500              ours; the log has the details, the answer does not
    ├── UnavailableError 503           the stage group is forming, down or draining; carries Retry-After
    └── TimedOutError 504              the request outlived its limit and was cancelled

A request that is cancelled by `DELETE` answers its waiting `POST` with 409 `cancelled`: the outcome conflicts
with what the caller asked for, and repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response


class ApiError(Exception):
    """An answer other than success. `headers` go out with it."""

    status = 500
    type = "internal_error"
    default_code = "internal"

    def __init__(self, message: str, code: str | None = None, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "code": self.code}}

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()), self.status, headers=self.headers, media_type="application/json"
        )


class BadRequestError(ApiError):
    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class UnauthorizedError(ApiError):
    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class NotFoundError(ApiError):
    status = 404
    type = "not_found_error"
    default_code = "not_found"


class MethodNotAllowedError(ApiError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class BodyTimedOutError(ApiError):
    status = 408
    type = "invalid_request_error"
    default_code = "body_timed_out"


class ConflictError(ApiError):
    status = 409
    type = "conflict_error"
    default_code = "conflict"


class GoneError(ApiError):
    status = 410
    type = "gone_error"
    default_code = "expired_handle"


class TooLargeError(ApiError):
    status = 413
    type = "invalid_request_error"
    default_code = "body_too_large"


class UnsupportedMediaTypeError(ApiError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"


class TooManyError(ApiError):
    status = 429
    type = "rate_limit_error"
    default_code = "queue_full"

    def __init__(self, message: str, code: str | None = None, *, retry_after_s: int) -> None:
        super().__init__(message, code, headers={"Retry-After": str(retry_after_s)})


class InternalError(ApiError):
    def __init__(self) -> None:
        super().__init__("something went wrong on our side; the server's log has the details")


class UnavailableError(ApiError):
    status = 503
    type = "unavailable_error"
    default_code = "group_down"

    def __init__(self, message: str, code: str | None = None, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code, headers={"Retry-After": str(retry_after_s)})


class TimedOutError(ApiError):
    status = 504
    type = "timeout_error"
    default_code = "timed_out"


class ClientGoneError(Exception):
    """The client hung up: there is nobody to answer."""


def from_request_failed(code: str, message: str, retry_after_s: int) -> ApiError:
    """The answer for a `RequestFailed` of rank 0."""
    match code:
        case "too_long":
            return BadRequestError(message, "too_long")
        case "duplicate":
            return ConflictError(message, "duplicate")
        case "cancelled":
            return ConflictError(message or "the request was cancelled", "cancelled")
        case "queue_full":
            return TooManyError(message, retry_after_s=retry_after_s)
        case _:
            return InternalError()


def from_reply(error: str) -> ApiError:
    """The answer for a `Reply` of rank 0 that names an error."""
    match error:
        case "unknown_handle":
            return NotFoundError("no such handle", "unknown_handle")
        case "expired_handle":
            return GoneError("the handle has expired or was released", "expired_handle")
        case "not_finished":
            return ConflictError("the prefill of this handle has not finished", "not_finished")
        case _:
            return InternalError()


UNSUPPORTED = {
    **dict.fromkeys(
        [
            *("response_format", "structured_outputs", "grammar", "tools", "tool_choice"),
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"),
        ],
        "grammars constrain what is decoded later, not a prefill",
    ),
    **dict.fromkeys(
        ("images", "audio", "input_audio", "image_url", "multi_modal_data", "mm_processor_kwargs", "modalities"),
        "only text goes in",
    ),
    **dict.fromkeys(
        ("n", "best_of", "max_tokens", "max_completion_tokens", "stop", "stop_token_ids", "use_beam_search"),
        "a prefill computes exactly one token",
    ),
    "prompt_logprobs": "only the first token's logprobs are reported",
    "prompt_embeds": "a prompt is text or token ids",
    "lora_request": "adapters are not served",
}
"""Fields that clients know from elsewhere and that are refused by name, with the reason."""


def describe_location(location: Sequence[int | str]) -> str:
    """`("messages", 0, "content")` → `messages[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def from_validation(error: ValidationError) -> BadRequestError:
    """Names the first field that is wrong, and how many more there are."""
    details = error.errors(include_url=False, include_context=False)
    first = details[0]
    field = describe_location(first["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if first["type"] == "json_invalid":
        return BadRequestError(
            f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}", "invalid_json"
        )
    if first["type"] == "extra_forbidden":
        if reason := UNSUPPORTED.get(str(first["loc"][-1])):
            return BadRequestError(f"{field} is not supported: {reason}{more}", "unsupported")
        return BadRequestError(f"unknown field {field[:100]}{more}", "unknown_field")
    got = first.get("input")
    shown = f" (got {got!r:.60})" if isinstance(got, int | float | str) and first["type"] != "missing" else ""
    message = f"{first['msg']}{shown}{more}"
    code = "missing_field" if first["type"] == "missing" else "unsupported" if first["type"] == "unsupported" else None
    return BadRequestError(f"{field}: {message}" if field else message, code)


def from_http_exception(error: HTTPException, request: Request) -> ApiError:
    """Routing errors that the framework raises."""
    if error.status_code == 404:
        return NotFoundError(f"no such route: {request.url.path[:200]}")
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path[:200]}"
        return MethodNotAllowedError(message, headers=dict(error.headers or {}))
    if 400 <= error.status_code < 500:
        return BadRequestError(str(error.detail))
    return InternalError()
