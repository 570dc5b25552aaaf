"""`wavepp stage`: one stage of a group, started by hand, on this host or another."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ..engine.flags import ConfigError
from ..engine.settings import StageSettings
from ..engine.stage import main
from .group_flags import group_from_args


def add_stage_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=int, required=True, metavar="N", help="this stage's place, from 0")
    parser.add_argument("--leader", required=True, metavar="HOST:PORT", help="where rank 0 listens for the others")
    parser.add_argument("--bind-host", default="127.0.0.1", metavar="HOST", help="rank 0: address of the data plane")
    parser.add_argument("--submit", metavar="HOST:PORT", default="", help="rank 0: where to listen for submissions")
    parser.add_argument("--front-end", metavar="ENDPOINT", default="", help="rank 0: where the front end listens")
    parser.add_argument("--epoch", type=int, default=1, metavar="N", help="rank 0: the number of this epoch")


def run_stage(args: argparse.Namespace) -> NoReturn:
    """Runs until the leader ends the epoch. Raises ConfigError and what `group_from_args` raises."""
    group = group_from_args(args)
    if not 0 <= args.rank < group.engine.pp:
        raise ConfigError(
            f"--rank: must be 0 to {group.engine.pp - 1} in a group of {group.engine.pp} (got {args.rank})"
        )
    if args.rank == 0 and not args.submit:
        raise ConfigError("--submit: rank 0 must be told where to listen for submissions")
    main(
        StageSettings(
            group=group,
            rank=args.rank,
            leader=f"tcp://{args.leader}",
            submit=f"tcp://{args.submit}" if args.submit else "",
            front_end=args.front_end,
            host=args.bind_host,
            epoch=args.epoch,
        )
    )
