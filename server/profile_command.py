"""`wavepp profile`: how long a model's stages take on the machine at hand."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..engine.config import EngineConfig
from ..engine.flags import ConfigError, add_config_flags, config_from_args
from ..models.partition import balanced_partition, even_partition, partition_text
from ..scheduler.cost_model import StageProfile, pairs_of

REFERENCE_TOKENS, REFERENCE_CONTEXT = 512, 2_048
"""The wave at which layers are weighed against each other."""
_PROMPT = 2_048
"""Tokens of a prompt, over which the head's work is spread."""


def add_profile_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a local Hugging Face folder, a hub id, demo or demo-hybrid")
    parser.add_argument("--quick", action="store_true", help="fewer waves, measured less often")
    parser.add_argument("--output", type=Path, help="write the profile to this file, for --stage-profile")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_flags(parser, EngineConfig)


def run_profile(args: argparse.Namespace) -> int:
    """Raises ConfigError, ModelError and PartitionError."""
    import torch

    from ..engine.profiler import QUICK, SHAPES, bandwidth, measure, per_layer
    from ..models.demo.resolve import resolve_model
    from ..models.runtime import prepare_torch

    engine = config_from_args(EngineConfig, args)
    if engine.device == "emulated":
        raise ConfigError("--device: an emulated stage takes what a profile says; there is nothing to measure")
    if args.output is not None and args.output.suffix != ".json":
        raise ConfigError(f"--output: the file's name must end in .json, not be {args.output.name!r}")
    folder = resolve_model(args.model)
    device = torch.device(engine.resolved_device())
    prepare_torch(device, engine.resolved_threads())

    def progress(what: str) -> None:
        print(
            f"\r\x1b[K{what}" if sys.stderr.isatty() else what, end="" if sys.stderr.isatty() else "\n", file=sys.stderr
        )

    with torch.inference_mode():
        measured = measure(
            folder,
            getattr(torch, engine.resolved_dtype()),
            device,
            QUICK if args.quick else SHAPES,
            repeats=2 if args.quick else 5,
            bytes_per_s=bandwidth(device),
            progress=progress,
        )
    progress("")
    layers = [found for _, found in per_layer(measured)]
    pairs = pairs_of(REFERENCE_CONTEXT, REFERENCE_TOKENS)
    costs = [found.seconds(REFERENCE_TOKENS, pairs) for found in layers]
    exit_s = measured.head_s * REFERENCE_TOKENS / _PROMPT
    balanced = balanced_partition(costs, engine.pp, last=exit_s)
    profile = StageProfile(
        name=f"{args.model} on {device.type}, {engine.resolved_threads()} threads",
        wave_s=sum(found.wave_s for found in layers) / engine.pp,
        weight_s=sum(found.weight_s for found in layers) / engine.pp,
        token_s=sum(found.token_s for found in layers) / engine.pp,
        context_s=sum(found.context_s for found in layers) / engine.pp,
        stages=engine.pp,
        layers=tuple(costs),
        exit=exit_s,
    )
    if args.output is not None:
        args.output.write_text(profile.model_dump_json(indent=1) + "\n")
    kinds = [
        {"kind": kind.name, "layers": len(kind.layers), "rms": found.rms, "worst": found.worst, "seconds": cost}
        for kind, found in measured.kinds
        for cost in [found.seconds(REFERENCE_TOKENS, pairs)]
    ]
    shares = {
        name: [sum(costs[layer] for layer in part) + exit_s * (part.stop == len(costs)) for part in parts]
        for name, parts in (("even", even_partition(len(costs), engine.pp)), ("balanced", balanced))
    }
    if args.json:
        partition = {"balanced": partition_text(balanced), "stage_s": shares}
        print(json.dumps({**profile.model_dump(mode="json"), "kinds": kinds, "partition": partition}))
        return 0
    print(f"{profile.name}: an average one of {engine.pp} stages takes, for a wave of t tokens and p pairs,")
    print(
        f"  {1e3 * profile.wave_s:.3g} ms + max({1e3 * profile.weight_s:.3g} ms, {1e6 * profile.token_s:.4g} µs · t) "
        f"+ {1e9 * profile.context_s:.4g} ns · p"
    )
    for kind in kinds:
        print(
            f"  {kind['layers']:3} layers {kind['kind']}: {1e3 * float(str(kind['seconds'])):.2f} ms each for "
            f"{REFERENCE_TOKENS} tokens behind {REFERENCE_CONTEXT}; the fit is off by {kind['rms']:.1%} (root mean "
            f"square), {kind['worst']:.1%} at most"
        )
    print(f"  the head: {1e3 * measured.head_s:.2f} ms a prompt")
    for name, times in shares.items():
        even = f"; the slowest is {max(times) * engine.pp / sum(times):.2f} times the average"
        text = partition_text(balanced) if name == "balanced" else name
        print(f"  partition {text}: " + ", ".join(f"{1e3 * seconds:.1f}" for seconds in times) + f" ms{even}")
    if args.output is not None:
        print(f"written to {args.output}: wavepp serve {args.model} --stage-profile {args.output} --partition balanced")
    return 0
