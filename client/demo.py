"""`make demo`: the whole path in one terminal, with a real server and a separate decode process."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence

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
    wavepp = [sys.executable, "-m", "wavepp.server.cli"]

    _say(f"starting a server for {args.model} on {args.pp} stages")
    command = [*wavepp, "serve", args.model, "--pp", str(args.pp), "--port", "0", *SMALL_BLOCKS]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1)
    try:
        url = _wait_until_ready(server)
        if not url:
            return 1
        for number, prompt in enumerate(PROMPTS, start=1):
            _say(f"prompt {number} of {len(PROMPTS)}" + (", which shares its beginning with the first" * (number > 1)))
            print(f"\033[2m{prompt}\033[0m" if sys.stdout.isatty() else prompt, flush=True)
            _say("prefill, pull and decode in a process of its own:")
            decode = [*wavepp, "decode", "--url", url, "--model", args.model, "--prompt", prompt]
            status = subprocess.run([*decode, "--max-tokens", str(args.max_tokens), "--ignore-eos"]).returncode
            if status:
                return status
        _say("done; stopping the server")
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        server.terminate()
        server.wait()


def _wait_until_ready(server: subprocess.Popen[str]) -> str:
    """Shows what the server says until it serves, and gives its URL; empty when it left instead."""
    assert server.stderr is not None
    for line in server.stderr:
        print(f"  {line}", end="", file=sys.stderr, flush=True)
        found = re.match(r"serving .* at (http://\S+)", line)
        if found:
            threading.Thread(target=_pass_on, args=(server.stderr,), daemon=True).start()
            return found[1]
    return ""


def _pass_on(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"  {line}", end="", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
