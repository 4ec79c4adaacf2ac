"""The project that a program belongs to, as installing it would make it known to the program: its
own packages, its name and version (`importlib.metadata`), its commands. Nothing is installed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl import config
from clusterctl.errors import UsageError
from clusterctl.job_model import Program, ProgramKind
from clusterctl.jobs.archives import Made

PROJECT = "pyproject.toml"
UNKNOWN = "0+unknown"
"""The version of a project that lets a program find its version when it is built."""

_ENTRY = re.compile(r"\s*([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?\s*")
_COMMAND = re.compile(r"[\w.-]+")
_SCRIPT = """\
#!/usr/bin/env python3
import sys

from {module} import {first}

sys.exit({function}())
"""


def find_import_paths(program: Program, root: Path) -> tuple[str, ...]:
    """Folders of the staged tree at `root` that hold the project's own packages."""
    folder = _find(program, root)
    if folder is None:
        return ()
    chosen = folder / "src" if (folder / "src").is_dir() else folder
    return (str(chosen.relative_to(root)),)


def describe(program: Program, root: Path) -> tuple[Made, ...]:
    """The files by which Python and a shell know the installed project, for a folder that is on
    PYTHONPATH and whose `bin` is on PATH; () without a project that has a name."""
    folder = _find(program, root)
    table = _read(folder / PROJECT) if folder else {}
    name = table.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return ()
    version = str(table.get("version") or UNKNOWN)
    info = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version.replace('/', '_')}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    groups = {**_filter_tables(table.get("entry-points")), "console_scripts": _read_commands(table)}
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in groups.items()
    )
    return (
        (f"{info}/METADATA", metadata, 0o644),
        (f"{info}/entry_points.txt", points, 0o644),
        *_make_scripts(_read_commands(table)),
    )


def list_commands(folder: Path) -> list[str]:
    """The commands that installing the project in that folder would make."""
    if not (folder / PROJECT).is_file():
        return []
    made = _make_scripts(_read_commands(_read(folder / PROJECT)))
    return [path.removeprefix("bin/") for path, _, _ in made]


def is_command(word: str, here: Path) -> bool:
    """Whether installing the project around the folder `here` would make a command of that name."""
    places = (here, *here.parents)
    folder = next((place for place in places if (place / PROJECT).is_file()), None)
    return folder is not None and any(_make_scripts(_read_commands(_read(folder / PROJECT), word)))


def _find(program: Program, root: Path) -> Path | None:
    """The folder of the nearest pyproject.toml, in the tree."""
    folder = root / program.folder
    if program.kind is not ProgramKind.COMMAND:
        folder = (folder / program.target).parent
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
        if (place / PROJECT).is_file():
            return place
    return None


def _read(path: Path) -> Mapping[str, Any]:
    """The table [project], else Poetry's own one; empty for a file that is not understood, which
    is said where its packages are looked for."""
    whole: Mapping[str, Any] = {}
    with suppress(UsageError):
        whole = config.read_toml(path)
    tables = _filter_tables(whole)
    return tables.get("project") or _filter_tables(tables.get("tool")).get("poetry", {})


def _filter_tables(value: Any) -> dict[str, dict[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, dict)}


def _read_commands(table: Mapping[str, Any], only: str = "") -> dict[str, str]:
    found = table.get("scripts")
    pairs = found.items() if isinstance(found, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, str) and (not only or k == only)}


def _make_scripts(commands: Mapping[str, str]) -> Iterator[Made]:
    for name, entry in commands.items():
        if (found := _ENTRY.fullmatch(entry)) and _COMMAND.fullmatch(name):
            first = found[2].partition(".")[0]
            text = _SCRIPT.format(module=found[1], first=first, function=found[2])
            yield f"bin/{name}", text, 0o755
