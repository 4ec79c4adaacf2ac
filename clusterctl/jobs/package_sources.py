"""The packages that a program asks for, as --requirements or the files of its tree name them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clusterctl import config
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.job_model import PYTHONS, SHELLS, ProgramKind
from clusterctl.jobs import conda_files, own_project, package_indexes, stage, uv
from clusterctl.jobs.launch_words import find_shell_text
from clusterctl.jobs.package_model import NONE, Wanted
from clusterctl.jobs.program import Resolved

_BLOCK = re.compile(r"(?m)^# /// script$\n(?:^#.*$\n?)*")
"""The comment that begins with one: uv decides where the block ends, and whether it is valid.
https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""
_INCLUDED = re.compile(r"(?m)^\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+(\S+)")
_LOCAL = re.compile(
    r"(?m)^[ \t]*(?:(?:-e|--editable)[ \t=]+)?"
    r"(?:[\w.-]+(?P<extras>\[[^]]*\])?[ \t]*@[ \t]*)?(?:file:(?://)?)?"
    r"(?P<place>['\"]?[\w./-]+)(?P<more>\[[^]]*\])?['\"]?[ \t]*(?:#.*)?(?:$\n?|\Z)"
)
"""`-e .`, `libs/common`, `./libs/common[train]`, `common @ file:///…/libs/common`."""
_PINNED = re.compile(r"(?i)[\"'](?:torch|mpi4py)(?:\[[^]]*\])?\s*===?")
PROJECT, LOCK = own_project.PROJECT, "uv.lock"
_CONDA = ("environment.yml", "environment.yaml")


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
        return None if given == NONE else _read(Path(given), tree, asked=True)
    script = _find_script(resolved)
    if script is None:
        return None
    if program.kind is ProgramKind.PYTHON and (found := _read_block(script, asked=False)):
        return found
    folder = script.parent if program.kind is ProgramKind.MODULE else script.resolve().parent
    for place in (folder, *folder.parents):
        if found := _find_in(place, tree):
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
        if find_shell_text(
            (program.target, *program.args)
        ):  # a line of commands, of which one may be a program of the project
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


def _find_in(folder: Path, tree: stage.Tree) -> Wanted | None:
    """What a file of that folder asks for, if it names packages. An empty list is an answer too:
    nothing is looked for above it."""
    if lock := _find_lock(folder, tree):
        return _read_lock(folder, lock, tree, asked=False)
    if (path := folder / "requirements.txt").is_file():
        return _read(path, tree, asked=False)
    if found := _read_project(folder, tree, asked=False):
        return found
    for name in _CONDA:
        if (path := folder / name).is_file() and (environment := _read_conda(path, tree)):
            return environment
    return None


def _find_lock(folder: Path, tree: stage.Tree) -> Path | None:
    """The uv.lock of the project in that folder: its own, or that of its workspace."""
    if not (folder / PROJECT).is_file():
        return None
    places = (place for place in (folder, *folder.parents) if place.is_relative_to(tree.root))
    lock = next((place / LOCK for place in places if (place / LOCK).is_file()), None)
    if lock is None or lock.parent == folder:
        return lock
    with suppress(ClusterctlError):
        said = uv.call(PROJECT, "workspace", "dir", "--project", str(folder))
        if Path(said.strip()).resolve() == lock.parent.resolve():
            return lock
    return None


def _read_lock(folder: Path, lock: Path, tree: stage.Tree, *, asked: bool) -> Wanted:
    """What uv makes of the lock for the project in that folder. Projects of the tree in it are used
    where they lie."""
    options = ("--quiet", "--frozen", "--no-dev", "--no-header", "--no-annotate")
    text = uv.call(LOCK, "export", *options, "--project", str(folder))
    project = _read_text(folder / PROJECT)
    lines = package_indexes.list_tables({PROJECT: project}, only_some=True)
    folders = []
    for entry in uv.list_entries(re.sub("(?m)^-e ", "", text)):
        name = re.split(r" ;| \\\\", entry)[0].strip()
        if not name.startswith("."):
            lines.append(entry)
        elif (lock.parent / name).is_dir():
            folders.append(lock.parent / name)
        else:
            lines.append(entry.replace(name, str(lock.parent / name), 1))
    return Wanted(
        LOCK,
        {"requirements.txt": "\n".join((*lines, ""))},
        asked,
        locked=True,
        keeps_nodes="" if asked else NONE if _PINNED.search(project) else PROJECT,
        folders=tuple(one.folder for one in own_project.collect(tree, folders)),
    )


def _read_project(folder: Path, tree: stage.Tree, *, asked: bool) -> Wanted | None:
    """What the project in that folder depends on; None for nothing. uv reads what its
    pyproject.toml says by itself; the rest is known when it is built."""
    source = own_project.find_file(folder)
    if not source:
        return None
    whole = config.read_toml(folder / PROJECT) if (folder / PROJECT).is_file() else {}
    table = whole.get("project", {})
    if "dependencies" in table:
        texts, lines = {PROJECT: _read_text(folder / PROJECT)}, list(table["dependencies"])
        needs = own_project.list_sources(folder, tree.root)
        projects = own_project.collect(tree, (tree.root / place for place in needs))
    else:
        project, *projects = own_project.collect(tree, [folder])
        given = {PROJECT: _read_text(folder / PROJECT)} if whole else {}
        lines = project.requirements
        indexes = package_indexes.list_tables(given, only_some=False)
        texts = {"requirements.txt": "\n".join((*indexes, *lines, ""))}
    return _add_local(Wanted(source, texts, asked), projects, lines) if lines else None


def _add_local(
    wanted: Wanted, projects: Sequence[own_project.Project], lines: Iterable[str]
) -> Wanted:
    """With the projects of the tree that it needs; `lines`: its requirements."""
    local = {uv.make_plain_name(one.name): one.essentials for one in projects if one.name}
    requirements: tuple[str, ...] | None = None
    if not wanted.asked:
        every = [*lines, *(line for project in projects for line in project.requirements)]
        inner = [line for line in every if uv.read_name(line) in local]
        if not any("[" in line for line in inner):  # extras, which only uv follows
            requirements = tuple(line for line in every if line not in inner)
    folders = tuple(project.folder for project in projects)
    return replace(wanted, local=local, folders=folders, requirements=requirements)


def _read_conda(path: Path, tree: stage.Tree, *, asked: bool = False) -> Wanted | None:
    """None where it names no packages for Python."""
    found = conda_files.read(path, _read_text(path))
    if not found.lines:
        return None
    return replace(_read_lines(path, tree, asked=asked), left_out=found.left_out)


def _list_lines(texts: Mapping[str, str]) -> Iterator[str]:
    """The requirements of these files, without hashes and comments."""
    for text in texts.values():
        for line in re.sub(r"\\\n", " ", text).splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).split(" --hash")[0].strip()
            if words and not words.startswith("-"):
                yield words


def _read(path: Path, tree: stage.Tree, *, asked: bool) -> Wanted:
    if not path.is_file():
        raise UsageError(f"--requirements: no such file: {path}", hint=f"a file, or {NONE}")
    folder = path.absolute().parent
    if path.name == LOCK:
        return _read_lock(folder, folder / LOCK, tree, asked=asked)
    if path.name in own_project.FILES:
        nothing = Wanted(path.name, {"requirements.txt": ""}, asked)
        return _read_project(folder, tree, asked=asked) or nothing
    if path.suffix == ".py":
        if found := _read_block(path, asked=asked):
            return found
        raise UsageError(
            f"--requirements: {path} has no `# /// script` block", hint="name a requirements file"
        )
    if path.suffix in conda_files.SUFFIXES:
        if environment := _read_conda(path, tree, asked=asked):
            return environment
        raise UsageError(f"{path} names no packages for Python", hint="check its `dependencies`")
    if path.suffix not in (".txt", ".in"):
        raise UsageError(
            f"--requirements: {path} is not a file of packages",
            hint="uv.lock, pyproject.toml, setup.py, a requirements .txt file, environment.yml, or"
            " a script with a block",
        )
    return _read_lines(path, tree, asked=asked)


def _read_lines(path: Path, tree: stage.Tree, *, asked: bool) -> Wanted:
    """What a file of requirements says, or conda's, with those that it includes."""
    texts: dict[str, str] = {}
    folders: list[Path] = []
    _collect(path, path.parent, texts, folders, tree)
    projects = own_project.collect(tree, folders)
    return _add_local(Wanted(path.name, texts, asked), projects, _list_lines(texts))


def _collect(
    path: Path, root: Path, texts: dict[str, str], folders: list[Path], tree: stage.Tree
) -> None:
    """A requirements file, or conda's, and those that it includes; a project of the tree in them by
    its name."""
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

    def name_project(found: re.Match[str]) -> str:
        place = found["place"].strip("'\"")
        folder, extras = (path.parent / place).resolve(), found["extras"] or found["more"] or ""
        if re.fullmatch(r"[\w-][\w.-]*(\[[^]]*\])?", found[0].split("#")[0].strip()):
            return str(found[0])  # `yaml` is a package, whatever has that name here
        if folder.is_file():
            return f"{folder}\n"
        if not folder.is_dir():
            hint = f"correct that line, or `--requirements {NONE}`"
            raise UsageError(f"{path}: no such folder: {place}", hint=hint)
        folders.append(folder)
        own = own_project.collect(tree, [folder])[0].name
        return f"{own}{extras}\n" if own else ""

    text = package_indexes.make_absolute(_LOCAL.sub(name_project, text), path.parent)
    texts[name] = text
    for included in _INCLUDED.findall(text):
        if "://" not in included:
            _collect(path.parent / included, root, texts, folders, tree)


def _read_block(script: Path, *, asked: bool) -> Wanted | None:
    found = _BLOCK.search(_read_text(script))
    if not found or "dependencies" not in found[0]:
        return None
    return Wanted(script.name, {f"{script.stem}.py": f"{found[0]}\n"}, asked)


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
