"""`wavepp serve`: the front end and the stages of one group, watched over until they are asked to leave."""

from __future__ import annotations

import argparse
import sys

from ..engine import supervisor
from ..engine.flags import config_from_args
from ..models.config import load_spec
from .config import FRONT_END_ENV, FrontEndSettings, ServerConfig
from .group_flags import group_from_args


def serve(args: argparse.Namespace) -> int:
    """The exit status. Raises ConfigError for a wrong flag, and what loading the model's description raises."""
    server = config_from_args(ServerConfig, args)
    group = group_from_args(args)
    if server.served_model_name is not None:
        group = group.model_copy(update={"model_name": server.served_model_name})
    spec = load_spec(group.model)

    def environment(address: str) -> dict[str, str]:
        settings = FrontEndSettings(
            server=server,
            address=address,
            model=group.model,
            model_name=group.model_name,
            max_model_len=min(spec.max_context, group.engine.max_model_len or spec.max_context),
            vocab_size=spec.vocab_size,
            default_ttl_s=group.admission.default_ttl_s,
            max_ttl_s=group.admission.max_ttl_s,
        )
        return {FRONT_END_ENV: settings.model_dump_json()}

    front_end = supervisor.FrontEndLaunch(
        command=(sys.executable, "-m", "wavepp.server.front_end"),
        environment=environment,
        drain_timeout_s=server.drain_timeout_s,
    )
    return supervisor.serve(group, front_end)
