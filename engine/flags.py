"""Flags and environment variables made from config classes: the field `a_b` is `--a-b` and `WAVEPP_A_B`.

A `prefix` goes before the field in both; `variables` is what every variable begins with.
"""

from __future__ import annotations

import argparse
import os
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..cache.config import PerRank

Config = TypeVar("Config", bound=BaseModel)
VARIABLES = "WAVEPP_"


class ConfigError(Exception):
    """A value that a config refuses; the message names the flag or variable and what is allowed."""


def flag_of(field: str, prefix: str = "") -> str:
    return "--" + f"{prefix}{field}".replace("_", "-")


def variable_of(field: str, prefix: str = "", variables: str = VARIABLES) -> str:
    return variables + f"{prefix}{field}".upper()


def add_config_flags(
    parser: argparse.ArgumentParser, config: type[BaseModel], *, prefix: str = "", variables: str = VARIABLES
) -> None:
    """A flag for every field, in a group of its own. A field of the same name, type, default and bounds in two configs
    is one flag that sets both; where only the name is the same, a `prefix` is needed, or this raises ValueError."""
    title = config.__name__.removesuffix("Config").lower()
    group = parser.add_argument_group(title)
    known: dict[str, FieldInfo] = parser.get_default("_fields") or {}
    for name, field in config.model_fields.items():
        dest = f"{prefix}{name}"
        if (other := known.get(dest)) is not None:
            if _meaning(other) != _meaning(field):
                raise ValueError(f"{config.__name__}.{name} differs from the field that {flag_of(dest)} already sets")
            continue
        known[dest] = field
        options: dict[str, Any] = {
            "dest": dest,
            "default": None,
            "help": _help(variable_of(dest, variables=variables), field),
        }
        if _inner(field.annotation) is bool:
            group.add_argument(flag_of(dest), action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag_of(dest), metavar=_metavar(field), **options)
    parser.set_defaults(_fields=known)


def config_from_args(
    config: type[Config],
    args: argparse.Namespace,
    *,
    prefix: str = "",
    variables: str = VARIABLES,
    environ: Mapping[str, str] = os.environ,
    defaults: Mapping[str, Any] | None = None,
    **given: Any,
) -> Config:
    """The config that flags, then the environment, then `defaults`, then its own defaults say; `given` overrides all.
    Errors: `ConfigError`."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, field in config.model_fields.items():
        dest, variable = f"{prefix}{name}", variable_of(name, prefix, variables)
        if (value := getattr(args, dest, None)) is not None:
            values[name], sources[name] = _split(field, value), flag_of(dest)
        elif variable in environ:
            values[name], sources[name] = _split(field, environ[variable]), variable
    try:
        return config.model_validate({**(defaults or {}), **values, **given})
    except ValidationError as error:
        raise ConfigError(_describe(config, error, sources, prefix)) from None


def allowed(field: FieldInfo) -> str:
    """`0 to 65535`, `one of auto, cpu, cuda`, or the type's name."""
    inner = _inner(field.annotation)
    if get_origin(inner) is Literal:
        return "one of " + ", ".join(map(str, get_args(inner)))
    low = high = ""
    for constraint in field.metadata:
        match constraint:
            case PerRank(at_least):
                return f"at least {at_least}, or one number for each rank, separated by commas"
            case annotated_types.Ge(ge):
                low = f"at least {_number(ge)}"
            case annotated_types.Gt(gt):
                low = f"above {_number(gt)}"
            case annotated_types.Le(le):
                high = f"at most {_number(le)}"
            case annotated_types.Lt(lt):
                high = f"below {_number(lt)}"
            case _:
                pass
    if low.startswith("at least") and high.startswith("at most"):
        return f"{low.removeprefix('at least ')} to {high.removeprefix('at most ')}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    return ", ".join(filter(None, (low, high))) or names.get(inner, "")


def _describe(config: type[BaseModel], error: ValidationError, sources: Mapping[str, str], prefix: str) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"{', '.join(sources.values()) or config.__name__}: {message}"
    name = str(first["loc"][0])
    source = sources.get(name, flag_of(name, prefix))
    field = config.model_fields[name]
    got = f" (got {first['input']!r:.60})" if first["type"] != "missing" and field.repr else ""
    limits = allowed(field)
    return f"{source}: {message[:1].lower()}{message[1:]}{got}" + (f"; allowed: {limits}" if limits else "")


def _meaning(field: FieldInfo) -> tuple[Any, ...]:
    return field.annotation, field.default, field.default_factory, field.metadata


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inner(annotation: Any) -> Any:
    """`X | None` → X."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _split(field: FieldInfo, value: Any) -> Any:
    """Lists are written with commas."""
    if isinstance(value, str) and get_origin(_inner(field.annotation)) in (tuple, list, frozenset, set):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _per_rank(field: FieldInfo) -> bool:
    return any(isinstance(mark, PerRank) for mark in field.metadata)


def _metavar(field: FieldInfo) -> str:
    inner = int if _per_rank(field) else _inner(field.annotation)
    if get_origin(inner) is Literal:
        return "{" + ",".join(map(str, get_args(inner))) + "}"
    return {int: "N", float: "X"}.get(inner, "TEXT")


def _help(variable: str, field: FieldInfo) -> str:
    text = field.description or ""
    limits = allowed(field)
    inner = _inner(field.annotation)
    parts = [limits] if limits and (inner in (int, float) or _per_rank(field)) else []
    if field.default is not None and not field.is_required():
        parts.append(f"default {field.get_default(call_default_factory=True)}")
    parts.append(variable)
    return f"{text} [{'; '.join(parts)}]".replace("%", "%%")
