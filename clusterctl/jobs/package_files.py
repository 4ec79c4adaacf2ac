"""The packages that a program asks for, as --requirements or the files of its tree name them."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import UsageError
from clusterctl.job_model import ProgramKind
from clusterctl.jobs import conda_files
from clusterctl.jobs.program import Resolved

NONE = "none"

_BLOCK = re.compile(r"(?m)^# /// script\s*$\n(?:^#(?: .*)?$\n)*?^# ///\s*$\n?")
"""https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""
_INCLUDED = re.compile(r"(?m)^\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+(\S+)")
_LOCAL = re.compile(r"(?m)^\s*(?:(?:-e|--editable)[\s=]+\S+|\.{0,2}/\S*|\.)\s*(?:#.*)?$\n?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a program asks for.

    Args:
        source: The file that says it, for people.
        texts: The files for uv, by name; the first one names the others.
        asked: Given by --requirements, not only found: it may install torch.
        project: The folder of a uv.lock, whose text uv turns into requirements.
    """

    source: str
    texts: dict[str, str]
    asked: bool = False
    project: str = ""

    @property
    def digest(self) -> str:
        return digest_of(self.source, str(self.asked), *self.texts, *self.texts.values())


def find(resolved: Resolved, given: str, python: str = "") -> Wanted | None:
    """What `--requirements` names, else the `script` block or the uv.lock of a Python program.
    None: nothing, unless it wants another `python`, which has no packages of its own. Raises
    UsageError for a file that is not understood."""
    found = _find(resolved, given)
    if not python or found:
        return found
    return Wanted(f"--python {python}", {"requirements.txt": ""})


def _find(resolved: Resolved, given: str) -> Wanted | None:
    program, tree = resolved.program, resolved.tree
    if given:
        return None if given == NONE else _read(Path(given), asked=True)
    if program.bundled or not program.needs_python or program.kind is ProgramKind.COMMAND:
        return None
    script = tree.root / program.folder / program.target
    if program.kind is ProgramKind.PYTHON and (found := _read_block(script, asked=False)):
        return found
    folder = script.resolve().parent if program.kind is ProgramKind.PYTHON else script.parent
    for place in (folder, *folder.parents):
        if (place / "uv.lock").is_file() and (place / "pyproject.toml").is_file():
            return _read(place / "uv.lock", asked=False)
        if place == tree.root:
            break
    return None


def import_paths(resolved: Resolved) -> tuple[str, ...]:
    """Folders of the staged tree that hold the project's own packages, as installing it would make
    them known."""
    root = resolved.tree.root
    if not (root / "pyproject.toml").is_file():
        return ()
    return ("src",) if (root / "src").is_dir() else (".",)


def _read(path: Path, *, asked: bool) -> Wanted:
    if not path.is_file():
        raise UsageError(f"--requirements: no such file: {path}", hint=f"a file, or {NONE}")
    if path.suffix == ".py":
        if found := _read_block(path, asked=asked):
            return found
        raise UsageError(
            f"--requirements: {path} has no `# /// script` block", hint="name a requirements file"
        )
    if path.name == "uv.lock":
        project = path.absolute().parent
        locked = {name: _text(project / name) for name in ("uv.lock", "pyproject.toml")}
        return Wanted(path.name, locked, asked, str(project))
    if path.name == "pyproject.toml":
        return Wanted(path.name, {path.name: _text(path)}, asked)
    if path.suffix in (".yml", ".yaml"):
        return Wanted(path.name, {"requirements.txt": conda_files.read(path, _text(path))}, asked)
    if path.suffix not in (".txt", ".in"):
        raise UsageError(
            f"--requirements: {path} is not a file of packages",
            hint="uv.lock, pyproject.toml, a requirements .txt file, environment.yml, or a script"
            " with a block",
        )
    texts: dict[str, str] = {}
    _collect(path, path.parent, texts)
    return Wanted(path.name, texts, asked)


def _collect(path: Path, root: Path, texts: dict[str, str]) -> None:
    """A requirements file, and those that it includes."""
    name = os.path.relpath(path, root)
    if name in texts:
        return
    if name.startswith(".."):
        raise UsageError(
            f"{path} is outside {root}, whose requirements include it", hint="move it there"
        )
    text = _text(path)
    for line in _LOCAL.findall(text):
        if line.split("#")[0].split()[-1].split("[")[0] not in (".", "./"):
            raise UsageError(
                f"{path}: local packages are not installed: {line.strip()!r}",
                hint="leave it out; the project's own folder is staged and can be imported",
            )
    texts[name] = _LOCAL.sub("", text)
    for included in _INCLUDED.findall(text):
        if "://" not in included:
            _collect(path.parent / included, root, texts)


def _read_block(script: Path, *, asked: bool) -> Wanted | None:
    found = _BLOCK.search(_text(script))
    if not found or "dependencies" not in found[0]:
        return None
    return Wanted(script.name, {"script.py": found[0]}, asked)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {why}", hint="check the file") from error


def digest_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
