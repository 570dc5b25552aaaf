"""The `wavepp` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from ..engine.flags import ConfigError, add_config_flags
from ..models.errors import ModelError, PartitionError


@dataclass(frozen=True)
class Command:
    """`configure` adds its flags; `run` gets the parsed arguments. Both import what they need when they are called."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _serve_flags(parser: argparse.ArgumentParser) -> None:
    from .config import ServerConfig
    from .group_flags import add_group_flags

    add_config_flags(parser, ServerConfig)
    add_group_flags(parser)


def _serve(args: argparse.Namespace) -> int:
    from .serve import serve

    return serve(args)


def _stage_flags(parser: argparse.ArgumentParser) -> None:
    from .group_flags import add_group_flags
    from .stage_command import add_stage_flags

    add_stage_flags(parser)
    add_group_flags(parser)


def _stage(args: argparse.Namespace) -> int:
    from .stage_command import run_stage

    return run_stage(args)


def _decode_flags(parser: argparse.ArgumentParser) -> None:
    from ..client.decode_cli import add_decode_flags

    add_decode_flags(parser)


def _decode(args: argparse.Namespace) -> int:
    from ..client.decode_cli import run_decode

    return run_decode(args)


def _profile_flags(parser: argparse.ArgumentParser) -> None:
    from .profile_command import add_profile_flags

    add_profile_flags(parser)


def _profile(args: argparse.Namespace) -> int:
    from .profile_command import run_profile

    return run_profile(args)


def _simulate_flags(parser: argparse.ArgumentParser) -> None:
    from ..simulator.simulate import add_simulate_flags

    add_simulate_flags(parser)


def _simulate(args: argparse.Namespace) -> int:
    from ..simulator.simulate import run_simulate

    return run_simulate(args)


def _bench_flags(parser: argparse.ArgumentParser) -> None:
    from ..bench.load_cli import add_load_flags

    add_load_flags(parser)


def _bench(args: argparse.Namespace) -> int:
    from ..bench.load_cli import run_bench

    return run_bench(args)


COMMANDS = (
    Command("serve", "serve a model's prefill over HTTP", _serve_flags, _serve),
    Command("stage", "run one stage of a group by itself", _stage_flags, _stage),
    Command("bench", "put load on a running server, and measure it", _bench_flags, _bench),
    Command("profile", "measure how long a model's stages take here", _profile_flags, _profile),
    Command("simulate", "serve a workload on a simulated cluster, in virtual time", _simulate_flags, _simulate),
    Command("decode", "decode from a prefill's handle, or run one prompt", _decode_flags, _decode),
)


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """All commands, but the flags of `only` alone: importing the configs of all is slow."""
    parser = argparse.ArgumentParser("wavepp", description="Pipeline-parallel LLM prefill.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"wavepp {version('wavepp')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, allow_abbrev=False)
        if command.name == only:
            command.configure(own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: the command's own; 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((command for command in COMMANDS if words[:1] == [command.name]), None)
    args = build_parser(chosen.name if chosen else None).parse_args(words)
    assert chosen is not None
    try:
        return chosen.run(args)
    except (ConfigError, ModelError, PartitionError) as error:
        print(f"wavepp {chosen.name}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
