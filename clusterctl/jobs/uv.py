"""uv: resolves and downloads packages on this machine, with the user's settings."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from email import message_from_string
from pathlib import Path
from shutil import which
from zipfile import ZipFile

from clusterctl import process
from clusterctl.errors import LaunchError, UsageError
from clusterctl.jobs import package_indexes
from clusterctl.jobs.package_model import NONE, Wanted
from clusterctl.model import Node

FETCH_TIMEOUT = 3600.0
"""Seconds that uv may take to download packages, and a node to get them."""

_REASON = re.compile(r"(?m)^\s*(?:(?:error|cause): (.*)|(\w*Error: .*))")
_UNBUILT = re.compile(r"Failed to build `([\w.-]+(?:==| @ (?!file:))[^`]+)`")
"""A package, not a project of the tree."""
_FRAMES = ("Failed to build", "The build backend returned an error", "Call to `")
"""What uv says around the reason of a build that fails."""


def resolve(wanted: Wanted, kept: Mapping[str, str], node: Node) -> str:
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
        lines += package_indexes.list_tables(wanted.texts, only_some=False)
        for name, metadata in wanted.local.items():
            lines.append(f"{name} @ {_write_stub(wheels, name, metadata).as_uri()}")
        pins.write_text("\n".join(lines))
        for name, text in wanted.texts.items():
            path = Path(scratch, "files", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-strip-extras"]
        options += ["--constraints", str(pins)]
        for name in (*kept, *wanted.local):
            options += ["--no-emit-package", name, "--no-sources-package", name]
        first = Path(scratch, "files", next(iter(wanted.texts)))
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
        program, NO_COLOR="1", UV_NO_PROGRESS="1", UV_PYTHON_DOWNLOADS="never", **settings
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
