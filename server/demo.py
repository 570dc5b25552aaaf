"""`make demo`: the whole path in one terminal, with a real server and a separate decode process."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from .local_server import LocalServer, ServerFailedError

PASSAGE = (
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was "
    "upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there be "
    "light: and there was light. And God saw the light, that it was good: and God divided the light from the darkness. "
    "And God called the light Day, and the darkness he called Night. And the evening and the morning were the first "
    "day. "
)
PROMPTS = (
    PASSAGE + "And God said, Let there be a firmament in the midst of the waters,",
    PASSAGE + "And God made two great lights; the greater light",
)
SMALL_BLOCKS = ("--block-size", "16", "--snapshot-interval", "32", "--max-wave-tokens", "64", "--min-wave-tokens", "16")
"""So that a prompt of a page makes several waves, and a shared page can be reused."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("wavepp demo", description=__doc__)
    parser.add_argument("--model", default="demo", help="demo, demo-hybrid, a model folder or a hub id")
    parser.add_argument("--pp", type=int, default=2, help="pipeline stages")
    parser.add_argument("--max-tokens", type=int, default=48, help="length of each continuation")
    args = parser.parse_args(argv)
    _say(f"starting a server for {args.model} on {args.pp} stages")
    try:
        with LocalServer(args.model, args.pp, *SMALL_BLOCKS, on_line=_pass_on) as server:
            for number, prompt in enumerate(PROMPTS, start=1):
                _say(
                    f"prompt {number} of {len(PROMPTS)}"
                    + (", which shares its beginning with the first" * (number > 1))
                )
                print(f"\033[2m{prompt}\033[0m" if sys.stdout.isatty() else prompt, flush=True)
                _say("prefill, pull and decode in a process of its own:")
                decode = [sys.executable, "-m", "wavepp.server.cli", "decode", "--url", server.url]
                decode += ["--model", args.model, "--prompt", prompt, "--max-tokens", str(args.max_tokens)]
                status = subprocess.run([*decode, "--ignore-eos"]).returncode
                if status:
                    return status
            _say("done; stopping the server")
    except ServerFailedError:
        _say("the server could not start; what it said stands above")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _pass_on(line: str) -> None:
    print(f"  {line}", end="", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
