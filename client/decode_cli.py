"""`wavepp decode`: prefills a prompt on the server, pulls its state and decodes here."""

from __future__ import annotations

import argparse
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from ..engine.flags import ConfigError, add_config_flags, config_from_args, variable_of
from .config import DecodeConfig, DecoderConfig
from .errors import ClientError, SinkMismatchError
from .http import PrefillClient, PrefillResult, Prompt
from .job import DecodeOutcome, Listener, job_of
from .stats import PullStats

if TYPE_CHECKING:
    from .worker import DecodeWorker

VARIABLES = "WAVEPP_DECODE_"
"""The server's own variables are left alone, since one environment may start both; only the key is the same."""


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    model = variable_of("model", variables=VARIABLES)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="text to prefill")
    source.add_argument("--prompt-file", metavar="FILE", help="file with the text to prefill")
    source.add_argument("--handle", metavar="H", help="handle of a finished prefill")
    source.add_argument("--serve-stdin", action="store_true", help="take jobs as JSON lines, answer in JSON lines")
    parser.add_argument(
        "--model", default=os.environ.get(model, "demo"), help=f"a folder, a hub id or demo [default demo; {model}]"
    )
    parser.add_argument("--ids", action="store_true", help="show token ids instead of text")
    parser.add_argument("--json", action="store_true", help="write one JSON object at the end")
    for config in (DecodeConfig, DecoderConfig):
        add_config_flags(parser, config, variables=VARIABLES)


def run_decode(arguments: argparse.Namespace) -> int:
    """The exit status: 0, 1 when the job failed, 130 when interrupted. Errors: `ConfigError`."""
    key = {"api_key": os.environ.get(variable_of("api_key"))}
    config = config_from_args(DecodeConfig, arguments, variables=VARIABLES, defaults=key)
    decoder_config = config_from_args(DecoderConfig, arguments, variables=VARIABLES)
    prompt = _prompt(arguments)
    try:
        with PrefillClient(config.url, config.api_key, timeout_s=config.http_timeout_s) as client:
            worker = _worker(client, config, decoder_config, arguments)
            if arguments.serve_stdin:
                from .stdin_jobs import serve_lines

                serve_lines(worker, config, sys.stdin, sys.stdout)
                return 0
            return _decode_one(worker, config, prompt or arguments.handle, arguments)
    except ClientError as error:
        _say(f"wavepp decode: {error}")
        if isinstance(error, SinkMismatchError) and error.held_dtype is not None:
            _say(f"wavepp decode: start with --dtype {error.held_dtype} as the server did")
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
        why = f" ({'; '.join(usage.reasons)})" if usage.reasons else ""
        _say(
            f"prefilled {usage.prompt_tokens} tokens, {usage.cached_tokens} of them reused{why}, "
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
    if arguments.prompt_file is None:
        return Prompt(text=arguments.prompt) if arguments.prompt is not None else None
    try:
        return Prompt(text=Path(arguments.prompt_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt-file: {error}") from None
