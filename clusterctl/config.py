"""Settings: `clusterctl.toml` (project over user) < `CLUSTERCTL_*` variables < flags.

The file's tables are verbs, its keys are their long options with `_` for `-`; keys outside a table
hold for every verb that has such an option:

    cluster = "lab"
    [run]
    backend = "mpi"

Outside the tables a key is general: where such an option means nothing, it is passed over. In a
table it is like a flag.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError

FILE = "clusterctl.toml"


def files() -> tuple[Path, ...]:
    """The settings files there are, weakest first: the user's, then the nearest one upwards."""
    base = os.environ.get("XDG_CONFIG_HOME")
    found = []
    try:
        user = (Path(base) if base else Path.home() / ".config") / "clusterctl" / FILE
        if user.is_file():
            found.append(user)
    except (RuntimeError, OSError):
        pass  # without a home folder there are no user settings
    try:
        here = Path.cwd()
    except OSError:
        return tuple(found)
    for folder in (here, *here.parents):
        if (folder / FILE).is_file():
            found.append(folder / FILE)
            break
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Option:
    """`flag`: takes true or false; `many`: takes a list."""

    flag: bool = False
    many: bool = False


Verbs = Mapping[str, Mapping[str, Option]]
"""Each verb's options, by name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it is said: `spot in [up] of PATH`. `general`: for every verb."""

    value: Any
    where: str
    general: bool = False


Settings = Mapping[str, Mapping[str, Setting]]
"""By verb and option."""


def read(verbs: Verbs) -> Settings:
    """What the settings files say.

    Raises UsageError naming the file for a key that no verb has, and for a value of the wrong kind.
    """
    _check_variables(verbs)
    merged: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    for path in files():
        for verb, values in _settings(path, verbs).items():
            merged[verb].update(values)
    return merged


def defaults(settings: Settings) -> dict[str, dict[str, Any]]:
    """The values alone, of the verbs that have any."""
    return {
        verb: {name: setting.value for name, setting in found.items()}
        for verb, found in settings.items()
        if found
    }


def _check_variables(verbs: Verbs) -> None:
    """A variable CLUSTERCTL_VERB_OPTION that no verb has is a mistake like a key of the file."""
    known = {
        f"CLUSTERCTL_{verb.upper()}_{option.upper()}"
        for verb, options in verbs.items()
        for option in options
    }
    for name in os.environ:
        if name not in known and name.startswith(tuple(f"CLUSTERCTL_{v.upper()}_" for v in verbs)):
            close = get_close_matches(name, known, n=1)
            raise UsageError(
                f"no verb has an option for the variable {name}",
                hint=f"did you mean {close[0]}?" if close else "unset it",
            )


def _settings(path: Path, verbs: Verbs) -> dict[str, dict[str, Setting]]:
    """One file's settings per verb; a verb's own table wins over the keys outside."""
    found: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    tables: dict[str, dict[str, Setting]] = {}
    for key, value in _read(path).items():
        if isinstance(value, dict):
            _known(path, key, "table", set(verbs))
            for name in value:
                _known(path, f"{key}.{name}", "key", {f"{key}.{option}" for option in verbs[key]})
            tables[key] = {
                n: Setting(_value(path, n, v, verbs[key][n]), f"{n} in [{key}] of {path}")
                for n, v in value.items()
            }
        else:
            _known(path, key, "key", set().union(*verbs.values()))
            for verb, options in verbs.items():
                if key in options:
                    checked = _value(path, key, value, options[key])
                    found[verb][key] = Setting(checked, f"{key} in {path}", general=True)
    for verb, table in tables.items():
        found[verb].update(table)
    return found


def _value(path: Path, name: str, value: Any, option: Option) -> Any:
    """The value as the command line would have it: text, but for flags and lists."""
    if option.many:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        wanted = "a list of texts"
    elif option.flag:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    else:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        wanted = "a text or a number"
    raise UsageError(f"{path}: {name} = {value!r} has to be {wanted}", hint="correct that line")


def _known(path: Path, name: str, what: str, known: set[str]) -> None:
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    raise UsageError(
        f"{path}: unknown {what} {name!r}",
        hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}",
    )


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", hint="correct that line") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint="make it readable"
        ) from error
    return settings
