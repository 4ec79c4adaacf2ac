"""Settings: `clusterctl.toml` (project over user) < `CLUSTERCTL_*` variables < flags.

The file's tables are verbs, its keys are their long options with `_` for `-`; keys outside a table
hold for every verb that has such an option:

    cluster = "lab"
    [run]
    backend = "mpi"

Outside the tables a key is general: where such an option has no effect, it is ignored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.errors import UsageError
from clusterctl.input_files import read_input
from clusterctl.options.table import Option

FILE = "clusterctl.toml"


def find_files() -> tuple[Path, ...]:
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


class Setting(NamedTuple):
    """A value as the command line would have it, and where it is set: `spot in [up] of PATH`.
    `general`: for every verb."""

    value: Any
    where: str
    general: bool = False


OptionsByVerb = Mapping[str, Mapping[str, Option[Any]]]
"""Each verb's options, by key."""
Settings = Mapping[str, Mapping[str, Setting]]
"""By verb and option."""


def read(verbs: OptionsByVerb) -> Settings:
    """What the settings files say.

    Raises UsageError naming the file for a key that no verb has, and for a value of the wrong kind.
    """
    _check_variables(verbs)
    merged: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    for path in find_files():
        for verb, values in _read_settings(path, verbs).items():
            merged[verb].update(values)
    return merged


def find(verb: str, option: Option[Any], settings: Settings) -> Setting | None:
    """An option's value where the command line has none: a variable's, else a settings file's."""
    if not option.flags:
        return None
    for name in filter(None, (option.env, *_name_variables(verb, option))):
        if text := os.environ.get(name):
            return Setting(_read_variable(name, text, option), name, general=name == option.env)
    return settings.get(verb, {}).get(option.key)


def _name_variables(verb: str, option: Option[Any]) -> list[str]:
    return [f"{name_prefix(verb)}{key.upper()}" for key in (option.key, option.old) if key]


def name_prefix(verb: str) -> str:
    """Of the variables of a verb: shells set none with a dash in its name."""
    return f"CLUSTERCTL_{verb.upper().replace('-', '_')}_"


def _read_variable(name: str, text: str, option: Option[Any]) -> Any:
    if option.many:
        return tuple(text.split(option.separator))
    if option.is_flag:
        if text.strip().lower() not in (*_TRUE, *_FALSE):
            raise UsageError(
                f"{name}={text}: expected true or false", hint=f"{name}=1, or unset it"
            )
        return text.strip().lower() in _TRUE
    if option.alone and text.strip().lower() in (*_TRUE, *_FALSE):
        return option.alone if text.strip().lower() in _TRUE else None
    return text


_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


def _check_variables(verbs: OptionsByVerb) -> None:
    """A variable CLUSTERCTL_VERB_OPTION that no verb has is a mistake like a key of the file."""
    begin = tuple(map(name_prefix, verbs))
    given = [name for name in os.environ if name.startswith(begin)]
    if not given:
        return
    known = {
        name
        for verb, options in verbs.items()
        for option in options.values()
        for name in _name_variables(verb, option)
    }
    refused = {
        name: option.flag
        for verb, options in verbs.items()
        for option in options.values()
        if not option.settable
        for name in _name_variables(verb, option)
    }
    for name in given:
        if flag := refused.get(name):
            raise UsageError(
                f"the variable {name} cannot be used: {flag} applies to a single command",
                hint=f"unset it, and give {flag} on the command line",
            )
        if name not in known:
            close = get_close_matches(name, known, n=1)
            raise UsageError(
                f"the variable {name} sets no option of clusterctl",
                hint=f"did you mean {close[0]}?" if close else "unset it",
            )


def _read_settings(path: Path, verbs: OptionsByVerb) -> dict[str, dict[str, Setting]]:
    """One file's settings per verb; a verb's own table wins over the keys outside."""
    found: dict[str, dict[str, Setting]] = {verb: {} for verb in verbs}
    tables: dict[str, dict[str, Setting]] = {}
    for key, value in read_toml(path).items():
        if isinstance(value, dict):
            _check_known(path, key, "table", set(verbs))
            options = _index_by_key(verbs[key])
            for name in value:
                _check_settable(path, f"{key}.{name}", verbs[key].get(name))
                _check_known(
                    path, f"{key}.{name}", "key", {f"{key}.{option}" for option in options}
                )
            tables[key] = {
                options[n].key: Setting(
                    _make_value(path, n, v, options[n]), f"{n} in [{key}] of {path}"
                )
                for n, v in value.items()
            }
        else:
            by_verb = {verb: _index_by_key(options) for verb, options in verbs.items()}
            _check_settable(path, key, next((o[key] for o in verbs.values() if key in o), None))
            _check_known(path, key, "key", set().union(*by_verb.values()))
            for verb, options in by_verb.items():
                if option := options.get(key):
                    checked = _make_value(path, key, value, option)
                    found[verb][option.key] = Setting(checked, f"{key} in {path}", general=True)
    for verb, table in tables.items():
        found[verb].update(table)
    return found


def _index_by_key(options: Mapping[str, Option[Any]]) -> dict[str, Option[Any]]:
    """The options of a verb, by their present and former keys."""
    found = {option.old: option for option in options.values() if option.old}
    own = {key: option for key, option in options.items() if option.flags and option.settable}
    return {**found, **own}


def _make_value(path: Path, name: str, value: Any, option: Option[Any]) -> Any:
    """The value as the command line would have it: text, but for flags and lists."""
    if option.many:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        wanted = "a string or a list of strings"
    elif option.is_flag:
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    else:
        if option.alone and isinstance(value, bool):
            return option.alone if value else None
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        wanted = "a string or a number"
    raise UsageError(f"{path}: {name} = {value!r} must be {wanted}", hint="correct that line")


def _check_settable(path: Path, name: str, option: Option[Any] | None) -> None:
    if option and not option.settable:
        raise UsageError(
            f"{path}: unknown key {name!r}: {option.flag} applies to a single command",
            hint=f"remove that line, and give {option.flag} on the command line",
        )


def _check_known(path: Path, name: str, what: str, known: set[str]) -> None:
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    raise UsageError(
        f"{path}: unknown {what} {name!r}",
        hint=f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}",
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Raises UsageError for a file that is no TOML or cannot be read."""
    return parse_toml(read_input(path, str(path), hint="it has to be readable text"), str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """`name`: what people call it. Raises UsageError for what is no TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}", hint="correct that line") from error
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply", hint="no table needs that") from error
    return settings
