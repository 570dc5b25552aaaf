"""A decode worker that takes its jobs as JSON lines, so that one loaded model serves many of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from .config import DecodeConfig
from .errors import ClientError, PullError, ServerError
from .http import Prompt
from .job import DecodeJob, job_of

if TYPE_CHECKING:
    from .worker import DecodeWorker


class JobLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line in. Exactly one of `prompt` (a text or token ids), `messages` and `handle`; `id` comes back in the
    answer. What is not given is as the command line says."""

    id: str | int | None = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    handle: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    keep: bool | None = None
    cache_salt: str | None = None


def serve_lines(worker: DecodeWorker, config: DecodeConfig, lines: TextIO, out: TextIO) -> None:
    """Writes `{"ready": true}`, then for each line `{"id", "outcome"}` (see `DecodeOutcome`) or `{"id", "error":
    {"code", "message"}}`, in order, until the lines end."""
    _write(out, {"ready": True})
    for line in lines:
        if line.strip():
            _write(out, _answer(worker, config, line))


def _answer(worker: DecodeWorker, config: DecodeConfig, line: str) -> dict[str, Any]:
    ident: str | int | None = None
    try:
        job_line = msgspec.json.decode(line.encode(), type=JobLine)
        ident = job_line.id
        return {"id": ident, "outcome": worker.run(_job(config, job_line))}
    except (msgspec.DecodeError, ValueError) as error:
        return {"id": ident, "error": {"code": "malformed", "message": str(error)}}
    except (ServerError, PullError) as error:
        return {"id": ident, "error": {"code": error.code, "message": str(error)}}
    except ClientError as error:
        return {"id": ident, "error": {"code": type(error).__name__, "message": str(error)}}


def _job(config: DecodeConfig, line: JobLine) -> DecodeJob:
    names = ("max_tokens", "temperature", "seed", "ignore_eos", "keep")
    given = {name: value for name in names if (value := getattr(line, name)) is not None}
    checked = DecodeConfig.model_validate(config.model_dump() | given)
    return replace(job_of(checked, _source(line)), cache_salt=line.cache_salt)


def _source(line: JobLine) -> Prompt | str:
    text = line.prompt if isinstance(line.prompt, str) else None
    tokens = line.prompt if isinstance(line.prompt, list) else None
    if line.handle is None:
        return Prompt(text, tokens, line.messages)
    if line.prompt is not None or line.messages is not None:
        raise ValueError("a job has a prompt or a handle, not both")
    return line.handle


def _write(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(msgspec.json.encode(answer).decode() + "\n")
    out.flush()
