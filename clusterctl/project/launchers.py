"""The options of other launcher programs, and what becomes of each: launchers.toml says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from clusterctl.core import assets

REFUSED, IGNORED = "refused", "ignored"


class Rule(NamedTuple):
    """What becomes of an option, in the words of launchers.toml."""

    option: str
    use: str
    values: int
    """-1: it may have one behind a `=`."""
    name: str = ""
    """What the option stands for."""
    why: str = ""
    """What to do instead of a refused one."""


class OtherLauncher(Struct, frozen=True):
    """A launcher program; the fields are those of launchers.toml."""

    names: tuple[str, ...]
    options: tuple[str, ...]
    python: bool = False
    local_rank: str = ""
    one_dash: bool = False
    abbreviates: bool = False
    programs: bool = False
    settings: str = ""

    def find(self, typed: str) -> Rule | None:
        """The rule of an option, also of one that is abbreviated, or has `_` for `-`."""
        rules = _collect_rules(self.options)
        option = typed if typed[:2] != "--" else typed.replace("_", "-")
        if option in rules:
            return rules[option]
        for name, rule in rules.items():
            if name.endswith("*") and option.startswith(name[:-1]):
                return rule
        if self.one_dash and len(option) > 2 and option[:2] != "--":
            return self.find(f"-{option}")
        matches = [name for name in rules if self.abbreviates and name.startswith(option)]
        unique = option[:2] == "--" and len(option) > 2 and len(matches) == 1
        return rules[matches[0]] if unique else None


class Wrapper(Struct, frozen=True):
    """A command that starts what follows its options; the fields are those of launchers.toml."""

    names: tuple[str, ...]
    use: str = IGNORED
    values: str = ""
    operands: int = 0
    refused: str = ""
    other: str = ""
    flags: str = ""
    tasks: dict[str, str] = {}


class LauncherTables(Struct, frozen=True):
    """launchers.toml."""

    options: dict[str, dict[str, str | dict[str, str]]]
    aliases: dict[str, str]
    launchers: tuple[OtherLauncher, ...]
    wrappers: tuple[Wrapper, ...]


@cache
def load_tables() -> LauncherTables:
    return assets.load_table("project/launchers.toml", LauncherTables)


@cache
def load_launchers() -> dict[str, OtherLauncher]:
    """By what people type: `torchrun`, `accelerate launch`."""
    return {name: row for row in load_tables().launchers for name in row.names}


@cache
def load_wrappers() -> dict[str, Wrapper]:
    """By what people type: `timeout`, `perf record`."""
    return {name: row for row in load_tables().wrappers for name in row.names}


@cache
def _collect_rules(sets: tuple[str, ...]) -> dict[str, Rule]:
    """The options of these sets; a later one wins."""
    options = load_tables().options
    return {rule.option: rule for name in sets for rule in _list_rules(options[name])}


def _list_rules(uses: Mapping[str, str | Mapping[str, str]]) -> Iterator[Rule]:
    for use, given in uses.items():
        for why, words in [("", given)] if isinstance(given, str) else given.items():
            for word in words.split():
                text, _, name = word.partition(":")
                option = text.rstrip("=?")
                values = -1 if text.endswith("?") else len(text) - len(option)
                yield Rule(option, use, values, name, why)
