"""`wavepp bench`: its flags, and one run."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import Literal

import msgspec
from tqdm import tqdm

from ..engine.flags import add_config_flags, config_from_args, variable_of
from .load import Report, lines, run_load
from .load_config import LoadConfig
from .load_server import LoadError, LoadServer

VARIABLES = "WAVEPP_BENCH_"
"""The server's own variables are left alone, since one environment may start both; only the key is the same."""


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser, LoadConfig, variables=VARIABLES)
    parser.add_argument("-c", dest="concurrency", metavar="N", help="short for --concurrency")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_bench(args: argparse.Namespace) -> int:
    """The exit status: 1 when a request failed or the server could not take the load, 130 when interrupted. Errors:
    `ConfigError`."""
    key = {"api_key": os.environ.get(variable_of("api_key"))}
    config = config_from_args(LoadConfig, args, variables=VARIABLES, defaults=key)
    try:
        report = asyncio.run(_run(config))
    except LoadError as error:
        print(f"wavepp bench: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(msgspec.json.encode(report).decode() if args.json else "\n".join(lines(report)))
    return 1 if report.errors else 0


async def _run(config: LoadConfig) -> Report:
    async with LoadServer(config.url, api_key=config.api_key, timeout_s=config.timeout_s) as server:
        with tqdm(total=config.count, unit="request", file=sys.stderr) as bar:

            def progress(phase: Literal["warm-up", "load"]) -> None:
                bar.set_description(phase, refresh=False)
                bar.update(phase == "load")

            return await run_load(server, config, progress)
