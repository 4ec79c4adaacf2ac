"""Options that many verbs share, and values that need parsing."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Annotated, Any

import typer

from clusterctl import config, scope
from clusterctl.cli.console import Console
from clusterctl.errors import UsageError

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", envvar="CLUSTERCTL_CLUSTER", help="Which cluster."),
]
NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Which cluster (default: the only one).")
]
DEFAULT_NAME = "default"
NewNameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help=f'What it is called (default: "{DEFAULT_NAME}").'),
]
JobArgument = Annotated[int, typer.Argument(metavar="JOB", help="The job's number.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="JSON on stdout: an object per line, the result last.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="More detail on stderr.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def either(context: typer.Context, name: str | None, option: str | None) -> str | None:
    """The cluster's name as the argument or as --cluster says it. UsageError where this command
    line has both; a name in the settings or the environment gives way to the argument."""
    for given in (name, option):
        if given == "":
            raise UsageError("'' is not a cluster name", hint="leave it out, or name one")
    source = context.get_parameter_source("cluster")
    typed = source is not None and source.name == "COMMANDLINE"
    if name and option and name != option and typed:
        raise UsageError(f"both {name!r} and --cluster {option!r} are named", hint="name one")
    return name or option


def provider_of(name: str, provider: str) -> str:
    """What `applicable` says of a cluster."""
    return f"the provider of cluster {name!r} is {provider}"


def applicable(
    context: typer.Context, circumstances: Collection[str], place: str = ""
) -> dict[str, Any]:
    """The verb's parameters as they hold in these circumstances (see `scope`). An option without an
    effect there is a UsageError. A setting is a default for many command lines: where it has no
    effect it is left out, with a note if it was made for this verb.

    Args:
        place: Says which of the circumstances are those of a cluster, for people.
    """
    values = dict(context.params)
    for parameter in context.command.params:
        option, name = _written(parameter), parameter.name or ""
        source = context.get_parameter_source(name)
        if not option or not values[name] or source is None or source.name == "DEFAULT":
            continue
        limit = scope.limit(context.command.name or "", option, circumstances)
        if limit is None:
            continue
        why = limit.says + (f"; {place}" if place and limit.only else "")
        if source.name not in ("DEFAULT_MAP", "ENVIRONMENT"):
            raise UsageError(f"{option} {why}", hint=limit.advice(circumstances))
        if where := _setting(context, parameter, source.name):
            Console.current().note(f"ignoring {where}: it {why}")
        values[name] = None if parameter.multiple else parameter.default
    return values


def _written(parameter: Any) -> str:
    """An option as its row in `scope` has it: the first long spelling; "" for an argument."""
    long = [word for word in parameter.opts if word.startswith("--")]
    return str((long or parameter.opts)[0]) if parameter.opts[0].startswith("-") else ""


def _setting(context: typer.Context, parameter: Any, source: str) -> str:
    """Where a setting of this verb is made, for people; "" for one that is for all verbs."""
    if source == "DEFAULT_MAP":
        settings: config.Settings = context.find_root().obj
        setting = settings[context.command.name or ""][parameter.name]
        return "" if setting.general else setting.where
    if parameter.envvar and os.environ.get(parameter.envvar):
        return ""
    return f"{context.auto_envvar_prefix}_{parameter.name.upper()}"


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

MAX_TTL = 30 * 86400.0
"""Seconds. A cluster that nobody has looked at for so long is a forgotten one."""


def values_taken(command: Any) -> dict[str, int]:
    """How many words the options of a command take that are no flags, by their names."""
    return {
        name: max(1, parameter.nargs)
        for parameter in command.params
        if not getattr(parameter, "is_flag", False)
        for name in parameter.opts
        if name.startswith("-")
    }


def leading_options(command: Any, words: list[str]) -> tuple[list[str], list[str]]:
    """The options that `words` begin with, with their values, and the rest."""
    taken, end = values_taken(command), 0
    while end < len(words) and words[end].startswith("-") and words[end] != "--":
        end += 1 + taken.get(words[end], 0)
    return words[:end], words[end:]


def duration(text: str, option: str) -> float:
    """Seconds in `90`, `90s`, `30m`, `8h`, `1d` or a sum such as `1h30m`."""
    if not re.fullmatch(r"(?=.)(\d{1,9}(\.\d{1,9})?[smhd])*(\d{1,9}(\.\d{1,9})?)?", text):
        raise UsageError(f"{option} {text!r} is not a duration", hint="for example 90s, 30m or 8h")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{option} {text!r} is no time at all", hint="for example 90s, 30m or 8h")
    return seconds


def life_time(text: str) -> float:
    """Seconds in a --ttl, which needs a unit: 8 seconds instead of 8 hours would cost a cluster."""
    seconds = duration(text, "--ttl")
    if text[-1] not in "smhd":
        bare = not set(text) & set("smhd")
        raise UsageError(
            f"--ttl {text!r} ends without a unit",
            hint=f"did you mean {text}h or {text}m?" if bare else "for example 1h30m",
        )
    if seconds > MAX_TTL:
        raise UsageError(
            f"--ttl {text!r} is more than {MAX_TTL / 86400:g} days",
            hint="`clusterctl extend --ttl` moves the deadline whenever you need longer",
        )
    return seconds
