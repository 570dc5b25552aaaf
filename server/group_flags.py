"""The flags that describe a stage group: the same for `wavepp serve` and for every `wavepp stage` of the group."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from ..admission.config import AdmissionConfig
from ..cache.config import CacheConfig
from ..engine.config import EngineConfig
from ..engine.defaults import EMULATED_MODEL, device_defaults
from ..engine.flags import ConfigError, add_config_flags, config_from_args
from ..engine.placement import place
from ..engine.settings import GroupSettings
from ..engine.transfer_config import TransferConfig
from ..models.config import load_spec
from ..scheduler.config import SchedulerConfig


def add_group_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a local Hugging Face folder, a hub id, demo, demo-hybrid or emulated"
    )
    for config in (EngineConfig, CacheConfig, AdmissionConfig, SchedulerConfig):
        add_config_flags(parser, config)
    add_config_flags(parser, TransferConfig, prefix="transfer_")


def group_from_args(args: argparse.Namespace) -> GroupSettings:
    """Fetches or converts the model if need be, and says so. Raises ConfigError for flags that do not fit together,
    ModelError and PartitionError for a model that cannot be had, read or split like this."""
    from ..models.demo.resolve import EMULATED, resolve_model  # Slow to import, and nothing that flags and help need.

    engine = config_from_args(EngineConfig, args)
    defaults = device_defaults(engine.resolved_device())
    if args.model == EMULATED:
        if engine.device != "emulated":
            raise ConfigError(f"the model {EMULATED} has no weights: it needs --device emulated")
        defaults = {**EMULATED_MODEL, **defaults}
    parts = {
        "engine": engine,
        "cache": config_from_args(CacheConfig, args, defaults=defaults.get("cache")),
        "admission": config_from_args(AdmissionConfig, args, defaults=defaults.get("admission")),
        "scheduler": config_from_args(SchedulerConfig, args, defaults=defaults.get("scheduler")),
        "transfer": config_from_args(TransferConfig, args, prefix="transfer_"),
    }
    name = Path(args.model).resolve().name if Path(args.model).is_dir() else args.model
    try:
        settings = GroupSettings.model_validate({"model": resolve_model(args.model), "model_name": name, **parts})
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    place(load_spec(settings.model), engine, settings.scheduler.stage_profile)
    return settings
