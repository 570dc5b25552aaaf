"""`wavepp profile`: how long a model's stages take on the machine at hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.config import EngineConfig
from ..engine.estimated import REFERENCES, Reference
from ..engine.flags import ConfigError, add_config_flags, config_from_args
from ..models.partition import balanced_partition, even_partition
from ..scheduler.cost_model import StageProfile

if TYPE_CHECKING:
    from ..engine.measured import Measured
    from ..engine.profile_fit import Fit

_BUSY = 0.05
"""For which part of the time others may have the core before it is worth a word."""


def add_profile_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a local Hugging Face folder, a hub id, demo or demo-hybrid")
    parser.add_argument("--quick", action="store_true", help="fewer waves, measured less often")
    parser.add_argument(
        "--prompt",
        type=int,
        metavar="N",
        help="length of the prompts for which the partition is balanced, in tokens [2048 on the CPU]",
    )
    parser.add_argument("--points", action="store_true", help="print every wave, as measured and as fitted")
    parser.add_argument("--output", type=Path, help="write the profile to this file, for --stage-profile")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_flags(parser, EngineConfig)


def run_profile(args: argparse.Namespace) -> int:
    """Raises ConfigError, ModelError and PartitionError."""
    import torch

    from ..engine.profiler import FULL, QUICK, measure
    from ..models.config import load_spec
    from ..models.demo.resolve import resolve_model
    from ..models.runtime import prepare_torch

    engine = config_from_args(EngineConfig, args)
    if engine.device == "emulated":
        raise ConfigError("--device: an emulated stage takes what a profile says; there is nothing to measure")
    if args.output is not None and args.output.suffix != ".json":
        raise ConfigError(f"--output: the file's name must end in .json, not be {args.output.name!r}")
    reference = REFERENCES[engine.resolved_device()]
    if args.prompt is not None:
        if args.prompt < 1:
            raise ConfigError(f"--prompt: must be at least 1 (got {args.prompt})")
        reference = Reference(args.prompt, reference.most)
    folder = resolve_model(args.model)
    even_partition(load_spec(folder).num_layers, engine.pp)
    device, dtype, threads = engine.resolved_device(), engine.resolved_dtype(), engine.resolved_threads()
    prepare_torch(torch.device(device), threads)
    effort = QUICK if args.quick else FULL
    measured = measure(folder, getattr(torch, dtype), torch.device(device), engine.pp, effort, _progress)
    _progress("")
    where = f"{device}, {threads} thread{'s' * (threads > 1)} a stage" if device == "cpu" else device
    profile, found = measured.profile(f"{args.model} in {dtype} on {where}", engine.pp, reference)
    if args.output is not None:
        args.output.write_text(profile.model_dump_json(indent=1) + "\n")
    if args.json:
        print(json.dumps(_object(measured, profile, found)))
        return 0
    for line in _told(measured, profile, found, reference):
        print(line)
    if args.points:
        for line in _points(measured, profile.stages, found):
            print(line)
    if args.output is not None:
        print(f"written to {args.output}: wavepp serve {args.model} --stage-profile {args.output} --partition balanced")
    return 0


def _progress(what: str) -> None:
    """On stderr; on a terminal in one line, which an empty text clears."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr, flush=True)


def stage_times(profile: StageProfile) -> dict[str, list[float]]:
    """By partition, even and balanced, what each stage takes for the reference wave."""
    count, stages = len(profile.layers), profile.stages
    parts = {
        "even": even_partition(count, stages),
        "balanced": balanced_partition(profile.layers, stages, first=profile.entry, last=profile.exit),
    }
    return {
        name: [
            sum(profile.layers[layer] for layer in part)
            + profile.entry * (part.start == 0)
            + profile.exit * (part.stop == count)
            for part in ranges
        ]
        for name, ranges in parts.items()
    }


def _object(measured: Measured, profile: StageProfile, found: Fit) -> dict[str, object]:
    points = measured.stage_points(profile.stages)
    return {
        "profile": profile.model_dump(mode="json"),
        "fit": {"rms": found.rms, "worst": found.worst},
        "points": [
            {"tokens": p.tokens, "pairs": p.pairs, "seconds": p.seconds, "fitted": found.seconds(p.tokens, p.pairs)}
            for p in points
        ],
        "stage_s": stage_times(profile),
        "head_s": measured.head_s,
        "waited": measured.waited,
    }


def _told(measured: Measured, profile: StageProfile, found: Fit, reference: Reference) -> Iterator[str]:
    yield f"{profile.name}: an average one of {profile.stages} stages takes, for a wave of t tokens and p pairs of a"
    yield "token and one before it in its prompt,"
    weight = f"max({1e3 * found.weight_s:.3g} ms, {{}})" if found.weight_s else "{}"
    tokens = weight.format(f"{1e6 * found.token_s:.4g} µs · t")
    yield f"  {1e3 * found.wave_s:.3g} ms + {tokens} + {1e9 * found.context_s:.4g} ns · p"
    count = len(measured.waves)
    yield f"  (off by {found.rms:.1%}, root mean square, and by {found.worst:.1%} at most, over {count} waves)"
    if measured.waited > _BUSY:
        yield f"  others had the core for {measured.waited:.0%} of the time: that does not count, but their work shows"
    yield f"For the average wave of a prompt of {reference.prompt} tokens, {reference.tokens} of them:"
    for number, kind in enumerate(measured.kinds):
        own = measured.kind_fit(number)
        milliseconds = 1e3 * own.seconds(reference.tokens, reference.pairs)
        yield (
            f"  {len(kind.layers):3} layers {kind.name}: {milliseconds:.2f} ms each (the fit is off by {own.rms:.1%}, "
            f"{own.worst:.1%} at most)"
        )
    yield f"  the embedding {1e3 * profile.entry:.2f} ms; the head {1e3 * measured.head_s:.2f} ms a prompt"
    for name, times in stage_times(profile).items():
        text = f"balanced, {profile.partition}" if name == "balanced" else name
        slowest = max(times) * len(times) / sum(times)
        listed = ", ".join(f"{1e3 * seconds:.1f}" for seconds in times)
        yield f"  partition {text}: {listed} ms; the slowest is {slowest:.3f} times the average"


def _points(measured: Measured, stages: int, found: Fit) -> Iterator[str]:
    yield "tokens  spans     pairs   measured ms   fitted ms   error"
    for wave, point in zip(measured.waves, measured.stage_points(stages), strict=True):
        fitted = found.seconds(point.tokens, point.pairs)
        yield (
            f"{wave.tokens:6} {wave.spans:6} {wave.pairs:9.0f} {1e3 * point.seconds:13.2f} {1e3 * fitted:11.2f} "
            f"{fitted / point.seconds - 1:7.1%}"
        )
