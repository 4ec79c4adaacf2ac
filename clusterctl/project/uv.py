"""uv: resolves and downloads packages on this machine, with the user's settings."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import message_from_string
from pathlib import Path
from shutil import which
from typing import Any
from zipfile import ZipFile

from clusterctl import process
from clusterctl.core.model import Node
from clusterctl.core.text import parse_toml
from clusterctl.errors import LaunchError, UsageError

# -------------------------------------------------------------------------------------------------
# What a program asks for, as uv is told.


NONE = "none"
"""What --requirements says for no packages."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a program asks for.

    Args:
        source: The file that says it, for people.
        texts: The files for uv, by name; the first one names the others.
        asked: Given by --requirements, not only found: it may install torch.
        locked: The first of `texts` is what uv has exported from a lock.
    """

    source: str
    texts: dict[str, str]
    asked: bool = False
    locked: bool = False
    requirements: tuple[str, ...] | None = None
    """Those of a file that was only found and that the nodes may have already (see `installed`);
    None where they are installed in any case."""
    warning: str = ""
    """What the file asks for beside that, and nobody installs; for people."""
    local: dict[str, str] = field(default_factory=dict)
    """Projects of the tree among these packages, with their metadata: their code travels with the
    tree, only what they need is installed."""
    folders: tuple[str, ...] = ()
    """The folders of these projects, relative to the tree's root."""

    @property
    def decides(self) -> bool:
        """Whether it may put another torch or mpi4py in place of the nodes' own: a lock is there
        to decide versions, and what was asked for is meant."""
        return self.asked or self.locked

    @property
    def digest(self) -> str:
        # A version that is made of each commit must not make another environment.
        local = (re.sub("(?m)^Version:.*$", "", text) for text in self.local.values())
        return hash_parts(self.source, str(self.asked), *self.texts, *self.texts.values(), *local)


def hash_parts(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


# -------------------------------------------------------------------------------------------------
# Where the files of a project say that its packages are found, and which files they may be.
#
# Lines with passwords, perhaps: they are handed to uv in files, and are in no message.


_OPTION = re.compile(
    r"(?m)^[ \t]*((?:-i|--index-url|--extra-index-url|-f|--find-links|--no-index|--no-binary"
    r"|--only-binary|--trusted-host)(?:[ \t=].*)?)$"
)
_RELATIVE = re.compile(r"(?m)^([ \t]*(?:-f|--find-links)[ \t=]+)(?![\w+]+:|/|\$)(\S+)")


def list_lines(texts: Mapping[str, str]) -> list[str]:
    """Lines for uv about where to fetch the versions that are decided."""
    found: list[str] = []
    for name, text in texts.items():
        if name.endswith((".txt", ".in")):
            found += (line.strip() for line in _OPTION.findall(text))
    return list(dict.fromkeys((*found, *list_tables(texts, only_some=True))))


def list_tables(texts: Mapping[str, str], *, only_some: bool) -> list[str]:
    """The indexes and `find-links` of `[tool.uv]` in a pyproject.toml or in a script's block, as
    lines of a requirements file; with `only_some`, also those that only some packages name."""
    found: list[str] = []
    for name, text in texts.items():
        if name.endswith(".py"):
            block = text.rpartition("\n# ///\n")[0].splitlines(True)[1:]
            text = "".join(re.sub("^# ?", "", line) for line in block)
        elif name != "pyproject.toml":
            continue
        table: dict[str, Any] = parse_toml(text, name).get("tool", {}).get("uv", {})
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
    return found


def make_absolute(text: str, folder: Path) -> str:
    """The requirements with the full paths of folders that they name with --find-links."""
    return _RELATIVE.sub(lambda found: found[1] + str((folder / found[2]).resolve()), text)


def write_texts(wanted: Wanted, folder: Path) -> Path:
    """Writes the files of what is asked for; returns the first one."""
    for name, text in wanted.texts.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "files" / next(iter(wanted.texts))


# -------------------------------------------------------------------------------------------------

FETCH_TIMEOUT = 3600.0
"""Seconds that uv may take to download packages, and a node to get them."""

_REASON = re.compile(r"(?m)^\s*(?:(?:error|cause): (.*)|(\w*Error: .*))")
_UNBUILT = re.compile(r"Failed to build `([\w.-]+(?:==| @ (?!file:))[^`]+)`")
"""A package, not a project of the tree."""
_FRAMES = ("Failed to build", "The build backend returned an error", "Call to `")
"""What uv says around the reason of a build that fails."""


def resolve_packages(wanted: Wanted, kept: Mapping[str, str], node: Node) -> str:
    """uv's answer: exact versions with hashes. What is kept, and projects of the tree, are there as
    wheels without content."""
    with tempfile.TemporaryDirectory() as scratch:
        wheels = Path(scratch, "wheels")
        wheels.mkdir()
        for name, version in kept.items():
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            _write_stub(wheels, name, head)
        pins = Path(scratch, "kept.txt")
        # Not as an option, which would take the place of the user's UV_FIND_LINKS.
        lines = [f"--find-links {wheels}", *(f"{name}=={kept[name]}" for name in kept)]
        # Of a pyproject.toml, uv knows them only in its own folder.
        lines += list_tables(wanted.texts, only_some=False)
        for name, metadata in wanted.local.items():
            lines.append(f"{name} @ {_write_stub(wheels, name, metadata).as_uri()}")
        pins.write_text("\n".join(lines))
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-strip-extras"]
        options += ["--constraints", str(pins)]
        for name in (*kept, *wanted.local):
            options += ["--no-emit-package", name, "--no-sources-package", name]
        first = write_texts(wanted, Path(scratch))
        if first.suffix in (".txt", ".in") and "UV_INDEX_STRATEGY" not in os.environ:
            # Written for pip, which takes the best version of all indexes: PyTorch's, the most
            # usual extra one, has old versions of many packages.
            options += ["--index-strategy", "unsafe-best-match"]
        beside = " and ".join(f"{name} {version}" for name, version in kept.items())
        what = f"{wanted.source}, beside {beside} of {node.name}" if kept else wanted.source
        return call(
            what, "pip", "compile", "--quiet", str(first), *options, *make_target_options(node)
        )


def _write_stub(place: Path, name: str, metadata: str) -> Path:
    stem = f"{make_plain_name(name).replace('-', '_')}-{message_from_string(metadata)['Version']}"
    path = place / f"{stem}-py3-none-any.whl"
    with ZipFile(path, "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def make_target_options(node: Node) -> tuple[str, ...]:
    """Options for the packages of a node that has a Python."""
    version = node.facts.python.version if node.facts.python else ""
    platform = f"{node.facts.arch}-manylinux_2_28"
    own = ("--python", sys.executable)
    return (*own, "--python-version", version, "--python-platform", platform)


def is_like_here(node: Node) -> bool:
    """Whether what is built on this machine runs on the node."""
    here = (platform.system(), platform.machine(), platform.python_version_tuple()[:2])
    version = node.facts.python.version if node.facts.python else ""
    return here == ("Linux", node.facts.arch, tuple(version.split(".")[:2]))


def call(what: str, *words: str, **settings: str) -> str:
    """What uv prints. Its settings are the user's: index, proxy, certificates, cache; and
    these `settings`, as variables."""
    beside = Path(sysconfig.get_path("scripts"), "uv")
    program = str(beside) if beside.is_file() else which("uv")
    if program is None:
        raise LaunchError(
            "uv is not installed; it installs the job's packages", hint="pip install uv"
        )
    env = process.make_environment(
        program,
        NO_COLOR="1",
        COLUMNS="9999",  # a reason is one line
        UV_NO_PROGRESS="1",
        UV_PYTHON_DOWNLOADS="never",
        **settings,
    )
    result = process.run((program, *words), timeout=FETCH_TIMEOUT, env=env)
    if result.ok:
        return result.text
    said = [found[1] or found[2] for found in _REASON.finditer(result.complaints)]
    reasons = [reason for reason in said if not reason.startswith(_FRAMES)] or said
    # uv ends with 1 where versions do not fit together, and puts that into its last line.
    unsolved = result.exit_code == 1 and "No solution" in result.complaints
    why = reasons[-1] if unsolved and reasons else "; ".join(reasons[:3])
    message = f"{what}: {result.error or why or result.why}"
    without = f"`--requirements {NONE}` uses only what the nodes have"
    if (failed := _UNBUILT.search(result.complaints)) and not result.error:
        raise LaunchError(
            f"{what}: {failed[1]} has no wheel and cannot be built here: {why}",
            hint=f"choose a version with a wheel, install what its build needs here, or {without}",
        )
    for line in result.complaints.splitlines():
        if line.startswith("hint: ") and "authentication" in line:
            raise LaunchError(
                f"{what}: {line.removeprefix('hint: ')}",
                hint=f"check the name and password for that index, or {without}",
            )
    if unsolved:
        raise UsageError(message, hint=f"change the versions in the file, or {without}")
    raise LaunchError(
        message, hint=f"check the file and the connection to the package index, or {without}"
    )


def list_entries(text: str) -> list[str]:
    """The requirements of a file that uv wrote, each with its hashes."""
    parts = re.split(r"\n(?=\S)", text.strip())
    return [part for part in parts if part and not part.startswith(("#", "-"))]


def read_name(entry: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", entry)
    return make_plain_name(found[0]) if found else ""


def make_plain_name(name: str) -> str:
    """The name of a package as an index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()
