"""Where the files of a project say that its packages are found, and which files they may be.

Lines with passwords, perhaps: they are handed to uv in files, and are in no message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl import config
from clusterctl.errors import UsageError

_OPTION = re.compile(
    r"(?m)^[ \t]*((?:-i|--index-url|--extra-index-url|-f|--find-links|--no-index|--no-binary"
    r"|--only-binary|--trusted-host)(?:[ \t=].*)?)$"
)
_RELATIVE = re.compile(r"(?m)^([ \t]*(?:-f|--find-links)[ \t=]+)(?![\w+]+:|/|\$)(\S+)")
_HASH = re.compile(r"--hash[\s=]+(\S+)")


def list_lines(texts: Mapping[str, str]) -> list[str]:
    """Lines for uv about where to fetch the versions that are decided."""
    found: list[str] = []
    for name, text in texts.items():
        if name.endswith((".txt", ".in")):
            found += (line.strip() for line in _OPTION.findall(text))
    return list(dict.fromkeys((*found, *list_tables(texts, only_some=True))))


def list_tables(texts: Mapping[str, str], *, only_some: bool) -> list[str]:
    """The indexes and `find-links` of `[tool.uv]` in a pyproject.toml or in a script's block, and
    Poetry's sources, as lines of a requirements file; with `only_some`, also those that only some
    packages name."""
    found: list[str] = []
    for name, text in texts.items():
        if name.endswith(".py"):
            block = text.rpartition("\n# ///\n")[0].splitlines(True)[1:]
            text = "".join(re.sub("^# ?", "", line) for line in block)
        elif name != "pyproject.toml":
            continue
        tool: dict[str, Any] = config.parse_toml(text, name).get("tool", {})
        table: dict[str, Any] = tool.get("uv", {})
        found += (
            f"{'--index-url' if index.get('default') else '--extra-index-url'} {index['url']}"
            for index in table.get("index", ())
            if "://" in str(index.get("url", "")) and (only_some or not index.get("explicit"))
        )
        found += (
            f"--find-links {place}"
            for place in table.get("find-links", ())
            if "://" in place or place.startswith("/")  # uv looks for others beside the file
        )
        sources = tool.get("poetry", {}).get("source", ())
        found += (f"--extra-index-url {row['url']}" for row in sources if row.get("url"))
    return found


def make_absolute(text: str, folder: Path) -> str:
    """The requirements with the full paths of folders that they name with --find-links."""
    return _RELATIVE.sub(lambda found: found[1] + str((folder / found[2]).resolve()), text)


def keep_hashes(entries: list[str], texts: Mapping[str, str], source: str) -> list[str]:
    """What uv has decided, with no other hashes than the requirements files (`texts`) allow, where
    they name some. Raises UsageError where none of them is left."""
    allowed: dict[str, set[str]] = {}
    for name, text in texts.items():
        if name.endswith((".txt", ".in")):
            for line in re.sub(r"\\\n", " ", text).splitlines():
                if hashes := _HASH.findall(line):
                    allowed.setdefault(_name(line), set()).update(hashes)
    return [_restrict(entry, allowed.get(_name(entry)), source) for entry in entries]


def _restrict(entry: str, allowed: set[str] | None, source: str) -> str:
    if allowed is None:
        return entry
    what = entry.split("--hash")[0].rstrip(" \\\n")
    same = [found for found in _HASH.findall(entry) if found in allowed]
    if not same:
        raise UsageError(
            f"{source}: no file of {what.split(';')[0].strip()} has a hash that it names",
            hint="the package index has other files: generate the file again, or find out why",
        )
    return " \\\n    ".join((what, *(f"--hash={found}" for found in same)))


def _name(line: str) -> str:
    found = re.match(r"\s*([A-Za-z0-9._-]+)", line)
    return re.sub(r"[-_.]+", "-", found[1]).lower() if found else ""
