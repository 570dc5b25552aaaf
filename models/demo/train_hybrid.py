"""Trains the demo hybrid: about half an hour on one CPU core.

    python -m wavepp.models.demo.train_hybrid --text kjv.txt --out models/demo/hybrid

The text is the King James Version, public domain, as the Debian packages `bible-kjv` and `bible-kjv-text` print it, one
verse a line with its reference:

    bible -f gen1:1-rev22:21 </dev/null >kjv.txt
"""

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers.models.kimi_linear.modeling_kimi_linear as modeling
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import KimiLinearConfig, KimiLinearForCausalLM, PreTrainedTokenizerBase

from .corpus import Corpus, load_corpus
from .differentiable_kda import differentiable_kda
from .hybrid_checkpoint import bits_per_byte, continuation, export
from .hybrid_recipe import hybrid_config, train_tokenizer

TOKENS_PER_STEP = 1024
PEAK_LEARNING_RATE = 2e-3
WARMUP_STEPS = 100
BIAS_RATE = 1e-3


class RouterBalance:
    """Keeps the experts evenly loaded by moving the router's selection bias (DeepSeek-V3 report, §2.1.2)."""

    def __init__(self, model: nn.Module) -> None:
        self._loads: dict[modeling.KimiLinearTopkRouter, Tensor] = {}
        for module in model.modules():
            if isinstance(module, modeling.KimiLinearTopkRouter):
                module.register_forward_hook(self._count)

    def _count(self, router: modeling.KimiLinearTopkRouter, _: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
        if router.training:
            self._loads[router] = torch.bincount(output[2].flatten(), minlength=router.num_experts).float()

    def step(self) -> None:
        for router, load in self._loads.items():
            router.e_score_correction_bias.add_(torch.sign(load.mean() - load), alpha=BIAS_RATE)


def batches(documents: list[list[int]], separator: int, seed: int) -> Callable[[int], Tensor]:
    """A function from a sequence length T to the next batch `[TOKENS_PER_STEP / T, T + 1]`, epochs without end."""
    order = random.Random(seed)

    def stream() -> Iterator[int]:
        while True:
            for document in order.sample(documents, len(documents)):
                yield separator
                yield from document

    tokens = stream()

    def next_batch(length: int) -> Tensor:
        rows = [[next(tokens) for _ in range(length + 1)] for _ in range(TOKENS_PER_STEP // length)]
        return torch.tensor(rows)

    return next_batch


@dataclass(frozen=True)
class Schedule:
    """How far the training is, 0 to 1: by its steps, or by the clock where that runs out first."""

    steps: int
    seconds: float
    started: float = field(default_factory=time.monotonic)

    def progress(self, step: int) -> float:
        return min(1.0, max(step / self.steps, (time.monotonic() - self.started) / self.seconds))


def learning_rate(step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    warmed_up = min(1.0, (step + 1) / WARMUP_STEPS)
    return PEAK_LEARNING_RATE * warmed_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def sequence_length(progress: float) -> int:
    """Short sequences for most of the training, long ones at its end, so that long prompts are not new to it."""
    return 512 if progress < 0.85 else 1024


def optimizer_for(model: nn.Module) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.squeeze().dim() > 1]
    vectors = [p for p in model.parameters() if p.squeeze().dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98))


def train(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, schedule: Schedule, seed: int, export_every: int, out: Path
) -> KimiLinearForCausalLM:
    """Trains from scratch and leaves the best export, by held-out bits per byte, in `out`."""
    torch.manual_seed(seed)
    model = KimiLinearForCausalLM(KimiLinearConfig(**hybrid_config()))
    balance, optimizer = RouterBalance(model), optimizer_for(model)
    documents = [tokenizer.encode(text, add_special_tokens=False) for text in corpus.train]
    next_batch = batches(documents, hybrid_config()["eos_token_id"], seed)
    best = math.inf
    bar = tqdm(range(schedule.steps), desc="training", unit="step", mininterval=5)
    for step in bar:
        progress = schedule.progress(step)
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, progress)
        batch = next_batch(sequence_length(progress))
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        balance.step()
        if step % 10 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
        last = step + 1 == schedule.steps or progress == 1.0
        if last or (step + 1) % export_every == 0:
            measured = bits_per_byte(model, tokenizer, corpus.held_out)
            tqdm.write(f"step {step + 1}: held-out {measured:.4f} bits per byte")
            if measured < best:
                best = measured
                export(model, tokenizer, out)
        if last:
            break
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="one 'Book1:2 words' verse a line")
    parser.add_argument("--out", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--steps", type=int, default=2400, help=f"steps of {TOKENS_PER_STEP} tokens")
    parser.add_argument("--minutes", type=float, default=math.inf, help="finish, annealed, within this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser.add_argument("--export-every", type=int, default=300, help="steps between measurements on the held-out text")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    modeling.chunk_kimi_delta_attention = differentiable_kda
    corpus = load_corpus(args.text)
    tokenizer = train_tokenizer(corpus.train)
    schedule = Schedule(args.steps, 60 * args.minutes)
    model = train(corpus, tokenizer, schedule, args.seed, args.export_every, args.out)
    print(continuation(model, tokenizer, "And it came to pass"))


if __name__ == "__main__":
    main()
