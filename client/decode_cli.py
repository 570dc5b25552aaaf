"""`wavepp decode`: prefills a prompt on the server, pulls its state and decodes here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from .config import DecodeConfig, DecoderConfig
from .errors import ClientError, SinkMismatchError
from .http import PrefillClient, PrefillResult, Prompt
from .job import DecodeOutcome, Listener, job_of
from .stats import PullStats

if TYPE_CHECKING:
    from .worker import DecodeWorker

C = TypeVar("C", bound=BaseModel)
_SWITCHES = ("ignore_eos", "keep")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 when the job failed, 2 for wrong arguments, 130 when interrupted."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    given = [arguments.prompt, arguments.prompt_file, arguments.handle]
    if sum(value is not None for value in given) + arguments.serve_stdin != 1:
        parser.error("give one of --prompt, --prompt-file, --handle and --serve-stdin")
    try:
        config = _configured(DecodeConfig, arguments)
        decoder_config = _configured(DecoderConfig, arguments)
        prompt = _prompt(arguments)
    except (ValidationError, OSError, UnicodeDecodeError) as error:
        parser.error(_explain(error))
    try:
        with PrefillClient(config.url, config.api_key, timeout_s=config.http_timeout_s) as client:
            worker = _worker(client, config, decoder_config, arguments)
            if arguments.serve_stdin:
                from .stdin_jobs import serve_lines

                serve_lines(worker, config, sys.stdin, sys.stdout)
                return 0
            return _decode_one(worker, config, prompt or arguments.handle, arguments)
    except ClientError as error:
        print(f"wavepp decode: {error}", file=sys.stderr)
        if isinstance(error, SinkMismatchError) and " is bfloat16 there" in str(error):
            print("wavepp decode: start with --dtype bfloat16 as the server did", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the text has seen enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _decode_one(worker: DecodeWorker, config: DecodeConfig, source: Prompt | str, arguments: argparse.Namespace) -> int:
    out = sys.stdout
    if isinstance(out, TextIOWrapper):
        out.reconfigure(encoding="utf-8")
    quiet = bool(arguments.json)
    outcome = worker.run(job_of(config, source), _Printer(out, arguments.ids, quiet))
    if quiet:
        print(msgspec.json.encode(outcome).decode(), flush=True)
    _say_decoded(outcome)
    return 0


class _Printer(Listener):
    """Shows tokens on `out` as they come, and on stderr what it took to get them."""

    def __init__(self, out: TextIO, ids: bool, quiet: bool) -> None:
        self._out = out
        self._ids = ids
        self._quiet = quiet

    def prefilled(self, result: PrefillResult) -> None:
        usage, timing = result.usage, result.timing
        limit = f" (limited by {usage.cached_tokens_limited_by})" if usage.cached_tokens_limited_by else ""
        _say(
            f"prefilled {usage.prompt_tokens} tokens, {usage.cached_tokens} of them reused{limit}, "
            f"in {timing.prefill_s:.3f} s (queue {timing.queue_s:.3f} s, admission {timing.admit_s:.3f} s)"
        )

    def pulled(self, stats: PullStats) -> None:
        megabytes = stats.num_bytes / 1e6
        _say(
            f"pulled the state of {stats.num_tokens} tokens from {stats.num_stages} stages: {megabytes:.1f} MB "
            f"in {stats.seconds:.3f} s ({megabytes / max(stats.seconds, 1e-9):.0f} MB/s)"
        )

    def token(self, token: int, text: str) -> None:
        if not self._quiet:
            print(f"{token} " if self._ids else text, end="", file=self._out, flush=True)

    def rest(self, text: str) -> None:
        if not self._quiet:
            print("" if self._ids else text, file=self._out, flush=True)


def _say_decoded(outcome: DecodeOutcome) -> None:
    steps = len(outcome.tokens) - 1
    rate = f" ({steps / outcome.decode_s:.1f} tokens/s)" if steps and outcome.decode_s > 0 else ""
    _say(f"decoded {steps} tokens after the first in {outcome.decode_s:.3f} s{rate}: {outcome.finish_reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _worker(
    client: PrefillClient, config: DecodeConfig, decoder_config: DecoderConfig, arguments: argparse.Namespace
) -> DecodeWorker:
    # Torch and the model code take seconds to import: wrong arguments are answered without them.
    from ..models.demo.resolve import resolve_model
    from ..models.errors import ModelError
    from .decoder import ReferenceDecoder
    from .detokenizer import ModelTokenizer
    from .worker import DecodeWorker

    try:
        folder = resolve_model(arguments.model)
        decoder = ReferenceDecoder(folder, decoder_config)
        tokenizer = None if arguments.ids else ModelTokenizer(folder)
    except (ModelError, OSError) as error:
        raise ClientError(str(error)) from error
    return DecodeWorker(client, decoder, tokenizer, config)


def _prompt(arguments: argparse.Namespace) -> Prompt | None:
    if arguments.prompt_file is not None:
        return Prompt(text=Path(arguments.prompt_file).read_text(encoding="utf-8"))
    return Prompt(text=arguments.prompt) if arguments.prompt is not None else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "wavepp decode", description="Prefill on the server, pull the state, decode here.", allow_abbrev=False
    )
    parser.add_argument(
        "--model", default=os.environ.get(_variable("model"), "demo"), help="folder, hub id or demo (default: demo)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="text to prefill")
    parser.add_argument("--prompt-file", metavar="FILE", help="file with the text to prefill")
    parser.add_argument("--handle", metavar="H", help="handle of a finished prefill")
    parser.add_argument("--serve-stdin", action="store_true", help="take jobs as JSON lines, answer in JSON lines")
    parser.add_argument("--ids", action="store_true", help="show token ids instead of text")
    parser.add_argument("--json", action="store_true", help="write one JSON object at the end")
    for kind in (DecodeConfig, DecoderConfig):
        for name, field in kind.model_fields.items():
            flag = "--" + name.replace("_", "-")
            if name in _SWITCHES:
                parser.add_argument(flag, action="store_const", const="true", help=field.description)
            else:
                default = "" if field.default is None else f" (default: {field.default})"
                parser.add_argument(flag, help=f"{field.description}{default}")
    return parser


def _configured(kind: type[C], arguments: argparse.Namespace) -> C:
    """Flags come first, then `WAVEPP_DECODE_…` variables, then defaults. The server's own variables are left alone: one
    environment may start both."""
    values: dict[str, str] = {}
    for name in kind.model_fields:
        value = getattr(arguments, name)
        value = os.environ.get(_variable(name)) if value is None else value
        if value is not None:
            values[name] = value
    return kind.model_validate_strings(values)


def _variable(name: str) -> str:
    return "WAVEPP_API_KEY" if name == "api_key" else f"WAVEPP_DECODE_{name.upper()}"


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    flags = ("--" + str(problem["loc"][0]).replace("_", "-") for problem in error.errors())
    return "; ".join(f"{flag}: {problem['msg']}" for flag, problem in zip(flags, error.errors(), strict=True))
