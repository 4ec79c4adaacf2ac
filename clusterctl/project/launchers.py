"""The options of other launcher programs, and what becomes of each: launchers.toml says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.options import table as options_table

REFUSED, IGNORED, KEPT = "refused", "ignored", "kept"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLauncher:
    """A launcher program; the fields are those of launchers.toml."""

    rules: Mapping[str, Rule]
    python: bool = False
    local_rank: str = ""
    one_dash: bool = False
    abbreviates: bool = False
    programs: bool = False
    settings: str = ""

    def find(self, option: str) -> Rule | None:
        """The rule of an option, also of one that is abbreviated."""
        if option in self.rules:
            return self.rules[option]
        for name, rule in self.rules.items():
            if name.endswith("*") and option.startswith(name[:-1]):
                return rule
        matches = [name for name in self.rules if self.abbreviates and name.startswith(option)]
        unique = option[:2] == "--" and len(option) > 2 and len(matches) == 1
        return self.rules[matches[0]] if unique else None


class Wrapper(NamedTuple):
    """A command that starts what follows its options; as in launchers.toml."""

    use: str = IGNORED
    values: str = ""
    operands: int = 0
    refused: str = ""
    other: str = ""


@cache
def load_launchers() -> dict[str, OtherLauncher]:
    """By what people type: `torchrun`, `accelerate launch`."""
    table = _load_table()
    sets = {name: dict(_list_rules(uses)) for name, uses in table["options"].items()}
    found = {}
    for row in table["launchers"]:
        fields = {name: value for name, value in row.items() if name not in ("names", "options")}
        rules = {option: rule for name in row["options"] for option, rule in sets[name].items()}
        found.update(dict.fromkeys(row["names"], OtherLauncher(rules=rules, **fields)))
    return found


@cache
def load_wrappers() -> dict[str, Wrapper]:
    """By what people type: `timeout`, `perf record`."""
    found = {}
    for row in _load_table()["wrappers"]:
        fields = {name: value for name, value in row.items() if name != "names"}
        found.update(dict.fromkeys(row["names"], Wrapper(**fields)))
    return found


@cache
def _load_table() -> dict[str, Any]:
    path = Path(__file__).with_suffix(".toml")
    return options_table.parse_toml(path.read_text(encoding="utf-8"), path.name)


def _list_rules(uses: Mapping[str, Any]) -> Iterator[tuple[str, Rule]]:
    for use, words in uses.items():
        for why, options in words.items() if use == REFUSED else (("", words),):
            for word in options.split():
                text, _, name = word.partition(":")
                option = text.rstrip("=?")
                values = -1 if text.endswith("?") else len(text) - len(option)
                yield option, Rule(option, use, values, name, why)
