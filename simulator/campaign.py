"""Attacks the admission of simulated groups with seeded orders of events, until the time is up or something breaks.

python -m wavepp.simulator.campaign --minutes 5
python -m wavepp.simulator.campaign --seed 7 --ranks 3 --steps 2000 --admission lease      one seed again
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from .steps import Chaos

POLICIES = ("lease", "lockstep")
RANKS = range(1, 9)
STEPS = 2_000


@dataclass(frozen=True, slots=True)
class Trial:
    """One seed. `steps` are taken before the group is drained."""

    seed: int
    ranks: int
    steps: int
    admission: str

    @property
    def command(self) -> str:
        return (
            f"python -m wavepp.simulator.campaign --seed {self.seed} --ranks {self.ranks} --steps {self.steps} "
            f"--admission {self.admission}"
        )


class TrialError(Exception):
    """What broke, and the command that breaks it again."""


def run(trial: Trial) -> Counter[str]:
    """How often everything happened. Raises TrialError."""
    chaos = Chaos(trial.seed, trial.ranks, trial.admission)
    try:
        for _ in range(trial.steps):
            chaos.step()
        chaos.drain()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise TrialError(f"{what}\nafter {chaos.steps} steps; again with:\n  {trial.command}") from error
    return chaos.seen


def trials(first: int, ranks: Sequence[int], steps: int, policies: Sequence[str]) -> Iterator[Trial]:
    """Without end, each policy and number of ranks in turn; leases twice as often as lockstep."""
    for seed in count(first):
        policy = policies[0 if seed % 3 else -1]
        yield Trial(seed, ranks[seed % len(ranks)], steps, policy)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to go on")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--ranks", type=int, choices=RANKS, help="only groups of so many ranks")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of a seed before it is drained")
    parser.add_argument(
        "--admission", choices=[*POLICIES, "unowned"], help="only this policy; unowned is unsafe, and fails"
    )
    args = parser.parse_args(argv)
    ranks = [args.ranks] if args.ranks else list(RANKS)
    policies = [args.admission] if args.admission else list(POLICIES)
    if args.seed is not None:
        wanted = iter(
            [Trial(args.seed, ranks[args.seed % len(ranks)], args.steps, policies[0 if args.seed % 3 else -1])]
        )
    else:
        wanted = trials(args.first, ranks, args.steps, policies)
    return campaign(wanted, args.minutes)


def campaign(wanted: Iterator[Trial], minutes: float) -> int:
    """The exit status: 1 at the first failure."""
    seen: Counter[str] = Counter()
    began = told = time.monotonic()
    seeds = steps = 0
    for trial in wanted:
        try:
            seen += run(trial)
        except TrialError as failure:
            traceback.print_exception(failure.__cause__)
            print(f"seed {trial.seed} failed: {failure}", flush=True)
            return 1
        seeds, steps, now = seeds + 1, steps + trial.steps, time.monotonic()
        over = now - began >= 60 * minutes
        if over or now - told >= 5:
            told = now
            print(
                f"{now - began:6.0f} s: {seeds} seeds, {steps} steps, {steps / (now - began):.0f} a second", flush=True
            )
        if over:
            break
    print(f"no failure in {seeds} seeds, {steps} steps")
    for what, times in sorted(seen.items()):
        print(f"{times:10}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
