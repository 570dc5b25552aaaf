"""Prefill throughput, side by side in one run: transformers' own forward, and WavePP at one stage and more.

    python -m wavepp.bench.prefill --model demo --length 512 --prompts 8 --rounds 3

Each round runs every contender once, in turn, on prompts that none has seen. All use the same number of threads: one
process with all of them, or stages that share them out. Reuse is measured on the same prompts a second time. Prints the
median of the rounds, in prompt tokens a second, and the ratio to transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from ..client.http import PrefillClient
from ..models.config import load_spec
from ..models.demo.resolve import resolve_model
from ..server.local_server import LocalServer

Prompts = Sequence[Sequence[int]]
Contender = Callable[[Prompts], None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--length", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a round, all in flight at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pp", type=int, nargs="+", default=[1, 2], help="numbers of stages to try")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of each contender in all")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    args = parser.parse_args(argv)

    folder = resolve_model(args.model)
    vocab_size = load_spec(folder).vocab_size
    rng = random.Random(0)
    seconds: dict[str, list[float]] = {}
    with ExitStack() as opened:
        contenders: dict[str, Contender] = {"transformers": transformers_forward(str(folder), args.threads)}
        for pp in args.pp:
            threads = max(1, args.threads // pp)
            server = opened.enter_context(LocalServer(folder, pp, "--threads-per-stage", str(threads)))
            client = opened.enter_context(PrefillClient(server.url))
            contenders[f"wavepp pp={pp}"] = served(client, args.prompts)
        warm = [[rng.randrange(3, vocab_size) for _ in range(64)] for _ in range(2)]
        for contender in contenders.values():
            contender(warm)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            prompts = [[rng.randrange(3, vocab_size) for _ in range(args.length)] for _ in range(args.prompts)]
            for name, contender in contenders.items():
                seconds.setdefault(name, []).append(timed(contender, prompts))
                if name != "transformers":
                    seconds.setdefault(f"{name}, reused", []).append(timed(contender, prompts))
    report(seconds, args.length * args.prompts, args.json)
    return 0


def transformers_forward(folder: str, threads: int) -> Contender:
    """One prompt after the other through the whole model, logits of the last token only, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def run(prompts: Prompts) -> None:
        with torch.inference_mode():
            for prompt in prompts:
                model(torch.tensor([list(prompt)]), logits_to_keep=1)

    return run


def served(client: PrefillClient, concurrency: int) -> Contender:
    """All prompts at once over HTTP; each handle is released as soon as it comes."""

    def one(prompt: Sequence[int]) -> None:
        client.release(client.prefill(prompt).handle)

    def run(prompts: Prompts) -> None:
        with ThreadPoolExecutor(concurrency) as pool:
            for _ in pool.map(one, prompts):
                pass

    return run


def timed(contender: Contender, prompts: Prompts) -> float:
    started = time.perf_counter()
    contender(prompts)
    return time.perf_counter() - started


def report(seconds: dict[str, list[float]], tokens: int, as_json: bool) -> None:
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    if as_json:
        print(json.dumps({"tokens_per_second": rates, "seconds": seconds}))
        return
    base = rates["transformers"]
    print(f"{'':24}{'tokens/s':>12}{'ratio':>8}")
    for name, rate in rates.items():
        print(f"{name:24}{rate:12,.0f}{rate / base:8.2f}")


if __name__ == "__main__":
    sys.exit(main())
