"""The packages that a program asks for, as --requirements or the files of its tree name them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl import config
from clusterctl.errors import UsageError
from clusterctl.job_model import PYTHONS, SHELLS, ProgramKind
from clusterctl.jobs import conda_files, own_project, package_indexes, poetry_files
from clusterctl.jobs.program import Resolved

NONE = "none"

_BLOCK = re.compile(r"(?m)^# /// script$\n(?:^#.*$\n?)*")
"""The comment that begins with one: uv decides where the block ends, and whether it is valid.
https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""
_INCLUDED = re.compile(r"(?m)^\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+(\S+)")
_LOCAL = re.compile(
    r"(?m)^\s*(?:(?:-e|--editable)[\s=]+\S+|\.{0,2}/\S*|\.(?:\[[^]]*\])?)\s*(?:#.*)?$\n?"
)
_PINNED = re.compile(r"(?i)[\"'](?:torch|mpi4py)(?:\[[^]]*\])?\s*===?")
_CONDA = ("environment.yml", "environment.yaml")


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
    requirements: tuple[str, ...] | None = None
    """Those of a file that was only found and that the nodes may have already (see `installed`);
    None where they are installed in any case."""
    keeps_nodes: str = ""
    """What --requirements may name instead of a lock to keep the nodes' own torch and mpi4py."""
    left_out: tuple[str, ...] = ()
    """What the file asks for beside that, and nobody installs."""

    @property
    def decides(self) -> bool:
        """Whether it may put another torch or mpi4py in place of the nodes' own: a lock is there
        to decide versions, and what was asked for is meant."""
        return self.asked or bool(self.project)

    @property
    def digest(self) -> str:
        return hash_parts(self.source, str(self.asked), *self.texts, *self.texts.values())


def find(resolved: Resolved, given: str, python: str = "") -> Wanted | None:
    """What `--requirements` names, else what a Python program's own `script` block says, else a
    file of the program's folder or of one above, up to the root of the tree. None: nothing, unless
    it wants another `python`, which has no packages of its own. Raises UsageError for a file that
    is not understood."""
    found = _find(resolved, given)
    if not python or found:
        return found
    return Wanted(f"--python {python}", {"requirements.txt": ""})


def is_named(wanted: Wanted, word: str) -> bool:
    """Whether what is asked for has that name, in whatever spelling."""
    pattern = rf"(?i)\b{'[-_.]+'.join(map(re.escape, re.split('[-_.]+', word)))}\b"
    return any(re.search(pattern, text) for text in wanted.texts.values())


def _find(resolved: Resolved, given: str) -> Wanted | None:
    program, tree = resolved.program, resolved.tree
    if given:
        return None if given == NONE else _read(Path(given), asked=True)
    script = _find_script(resolved)
    if script is None:
        return None
    if program.kind is ProgramKind.PYTHON and (found := _read_block(script, asked=False)):
        return found
    folder = script.parent if program.kind is ProgramKind.MODULE else script.resolve().parent
    for place in (folder, *folder.parents):
        if found := _find_in(place):
            return found
        if place == tree.root:
            break
    return None


def _find_script(resolved: Resolved) -> Path | None:
    """What has the files that ask for its packages beside it: a Python program, a script of the
    project, or a command that the project makes; None for others, which may need no Python."""
    program, tree = resolved.program, resolved.tree
    place = tree.root / program.folder
    if program.bundled:
        return None
    if program.kind in (ProgramKind.PYTHON, ProgramKind.MODULE):
        return place / program.target
    if program.kind is ProgramKind.BINARY:
        script = place / program.target
        return script if _has_interpreter(script) else None
    if program.kind is ProgramKind.COMMAND and program.target in SHELLS:
        words: Iterable[str] = program.args
        if "-c" in words:  # a line of commands, of which one may be a program of the project
            words = (word for text in words for word in re.split(r"[\s;&|()'\"]+", text))
            words = (word for word in words if word in PYTHONS or word.endswith((".py", ".sh")))
        found = (w for w in words if w in PYTHONS or tree.has(os.path.join(program.folder, w)))
        word = next(found, "")
        return place / word if word else None
    if resolved.installed:
        return place / program.target
    if program.kind is ProgramKind.COMMAND and own_project.is_command(program.target, place):
        return place / program.target
    return None


def _has_interpreter(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _find_in(folder: Path) -> Wanted | None:
    """What a file of that folder asks for, if it names packages. An empty list is an answer too:
    nothing is looked for above it."""
    project = folder / "pyproject.toml"
    if (folder / "uv.lock").is_file() and project.is_file():
        return _read(folder / "uv.lock", asked=False)
    if (path := folder / "requirements.txt").is_file():
        found = _read(path, asked=False)
        return replace(found, requirements=tuple(_list_lines(found.texts)))
    if project.is_file() and (names := _read_dependencies(project)):
        return replace(_read(project, asked=False), requirements=names)
    for name in _CONDA:
        if (path := folder / name).is_file() and (environment := _read_conda(path, asked=False)):
            return replace(environment, requirements=tuple(_list_lines(environment.texts)))
    return None


def _read_conda(path: Path, *, asked: bool) -> Wanted | None:
    """None where it names no packages for Python."""
    found = conda_files.read(path, _read_text(path))
    if not found.lines:
        return None
    texts: dict[str, str] = {}
    _collect(path, path.parent, texts)
    return Wanted(path.name, texts, asked, left_out=found.left_out)


def _list_lines(texts: Mapping[str, str]) -> Iterator[str]:
    """The requirements of these files, without hashes and comments."""
    for text in texts.values():
        for line in re.sub(r"\\\n", " ", text).splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).split(" --hash")[0].strip()
            if words and not words.startswith("-"):
                yield words


def _read_dependencies(project: Path, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """`dependencies` of a pyproject.toml, with those of its extras; empty where a program has to
    make them."""
    whole = config.read_toml(project)
    if poetry := _find_poetry(whole):
        return poetry_files.list_requirements(poetry, str(project), extras)
    table: dict[str, Any] = whole.get("project", {})
    optional = table.get("optional-dependencies", {})
    names = [*table.get("dependencies", ())]
    for extra in extras:
        names += optional.get(extra, ())
    return tuple(names)


def _find_poetry(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Poetry's own table, where it says what the project depends on."""
    poetry = whole.get("tool", {}).get("poetry", {}) if isinstance(whole.get("tool"), dict) else {}
    own = "dependencies" in whole.get("project", {})
    return poetry if isinstance(poetry, dict) and "dependencies" in poetry and not own else {}


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
        locked = {name: _read_text(project / name) for name in ("uv.lock", "pyproject.toml")}
        pinned = _PINNED.search(locked["pyproject.toml"])
        keeps = "" if asked else NONE if pinned else "pyproject.toml"
        return Wanted(path.name, locked, asked, str(project), keeps_nodes=keeps)
    if path.name == "pyproject.toml":
        if poetry := _find_poetry(config.read_toml(path)):
            needed = poetry_files.list_requirements(poetry, str(path))
            lines = (*poetry_files.list_indexes(poetry), *needed, "")
            return Wanted(path.name, {f"{path.name}.txt": "\n".join(lines)}, asked)
        return Wanted(path.name, {path.name: _read_text(path)}, asked)
    if path.suffix in conda_files.SUFFIXES:
        if environment := _read_conda(path, asked=asked):
            return environment
        raise UsageError(f"{path} names no packages for Python", hint="check its `dependencies`")
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
    """A requirements file, or conda's, and those that it includes."""
    name = os.path.relpath(path, root)
    conda = path.suffix in conda_files.SUFFIXES
    name += ".txt" * conda  # by which uv knows what it is
    if name in texts:
        return
    if name.startswith(".."):
        raise UsageError(
            f"{path} is outside {root}, whose requirements include it",
            hint=f"move it there, or `--requirements {NONE}`",
        )
    text = _read_text(path)
    if conda:
        text = "".join(f"{line}\n" for line in conda_files.read(path, text).lines)
    needed: list[str] = []
    for line in _LOCAL.findall(text):
        place, _, extras = line.split("#")[0].split()[-1].strip("'\"").partition("[")
        if place not in (".", "./"):
            raise UsageError(
                f"{path}: local packages are not installed: {line.strip()!r}",
                hint="leave it out (the project's own folder is staged and can be imported), or"
                f" `--requirements {NONE}`",
            )
        if (project := path.parent / "pyproject.toml").is_file():
            needed += _read_dependencies(project, extras.strip("]").split(","))
    text = package_indexes.make_absolute(text, path.parent)
    texts[name] = "\n".join((_LOCAL.sub("", text).rstrip("\n"), *needed, "")).lstrip("\n")
    for included in _INCLUDED.findall(text):
        if "://" not in included:
            _collect(path.parent / included, root, texts)


def _read_block(script: Path, *, asked: bool) -> Wanted | None:
    found = _BLOCK.search(_read_text(script))
    if not found or "dependencies" not in found[0]:
        return None
    return Wanted(script.name, {"script.py": f"{found[0]}\n"}, asked)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check it") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} cannot be read: it is not UTF-8",
            hint="save it as UTF-8 (Windows PowerShell's `>` writes UTF-16)",
        ) from error


def hash_parts(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
