"""The packages that a program asks for, beside those of the nodes' Python: uv reads the files that
name them where they lie, and resolves them here (`jobs.install` brings them to nodes).

What uv resolved for a job, versions with hashes, is kept in the state home, and a rerun installs
that. The environment of a node is a folder named by it and by what it adds to: the node's Python
with its torch and mpi4py, which are kept.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterctl.agent.store import sum_up
from clusterctl.core.job import SHELLS, Program, ProgramKind
from clusterctl.core.model import Accelerator, Cluster, Node, NodeResult, Python
from clusterctl.core.text import (
    format_bytes,
    parse_toml,
    parse_yaml,
    read_input,
    read_toml,
)
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.project import own_project
from clusterctl.project import tree as project_tree
from clusterctl.project.own_project import (
    NONE,
    UNREADABLE,
    call_uv,
    check_uv,
    hash_parts,
    make_plain_name,
    run_uv,
)
from clusterctl.project.program import Resolved, may_be_installed
from clusterctl.project.words import find_python_program, find_shell_text, is_python
from clusterctl.state.files import write_atomic
from clusterctl.state.home import Home, find_home

TORCH = ("torch", "torchvision", "torchaudio")
"""Packages that are built for each other, in several builds of the same version."""
KEPT = (*TORCH, "mpi4py")
"""Packages of the nodes' Python that fit their GPUs and their MPI: others are put in their place
only where the project does not take these versions."""
LARGE = 500_000_000
"""Bytes of packages for a node that are not downloaded without consent."""
ASK_TIMEOUT = 30.0

_CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-(bindings|pathfinder|toolkit)$|(pytorch-)?triton\b")
"""What torch alone needs, and brings itself: gigabytes."""


class Wanted(Struct, frozen=True):
    """What a program asks for."""

    source: str
    """The file that says it, for people."""
    file: Path | None = None
    """What uv reads; of a lock, the project's pyproject.toml. None: no packages at all."""
    text: str = ""
    """What that file says, with those that it includes."""
    locked: bool = False
    options: tuple[str, ...] = ()
    """Extras and groups, as uv takes them."""
    lines: str = ""
    """Those of another kind of file that uv gets instead of it."""
    optional: tuple[str, ...] = ()
    """Packages of conda's: an index for pip may not have them."""
    python: str = ""
    """The versions of Python that it names, as conda has them."""

    @property
    def given(self) -> str:
        """What uv is given: the name of the file, or its stdin."""
        path = self.file or Path()
        return "-" if self.lines or path.suffix in SUFFIXES else path.name


class Lock(msgspec.Struct, frozen=True):
    """What uv resolved for nodes with equal Pythons."""

    text: str = ""
    """A pylock.toml, without passwords; "" for no packages."""
    key: str = ""
    """The digest of what the files say, for which it was decided."""
    folders: tuple[str, ...] = ()
    """Projects of the tree among them, relative to its root: their code travels with the tree."""
    kept: tuple[str, ...] = ()
    """What stays of the nodes' Python, as `torch 2.13.0+cpu`."""
    note: str = ""
    size: int = 0
    """Bytes to download for a node, as far as the index says."""

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(
            f"{row['name']}=={row.get('version', '')}" for row, _ in split_lock(self.text)[1]
        )


class Packages(msgspec.Struct, frozen=True):
    """The record of what a job's environments are made of."""

    source: str
    file: str
    locks: dict[str, Lock]
    """By what the Pythons of nodes have in common."""
    setup: str = ""
    """The digest of what --setup runs, and of the tree that it runs in."""

    @property
    def digest(self) -> str:
        parts = [part for key in sorted(self.locks) for part in (key, self.locks[key].text)]
        return hash_parts(*parts, *filter(None, [self.setup]))


def save(packages: Packages, home: Home) -> None:
    """Keeps what a job's environments are made of, for them and for a rerun."""
    home.make(_locate_resolved(home, "").parent)
    write_atomic(_locate_stored(home, packages.digest), msgspec.json.encode(packages))
    for lock in packages.locks.values():
        write_atomic(_locate_resolved(home, lock.key), msgspec.json.encode(lock))


def add_setup(
    packages: Packages | None, lines: str, variables: Mapping[str, str], tree: project_tree.Tree
) -> Packages:
    """With an environment of its own, which --setup completes."""
    found = packages or Packages("--setup", "", {})
    given = (f"{name}={value}" for name, value in sorted(variables.items()))
    digest = hash_parts(lines, *given, own_project.hash_files(tree.root, tree.files))
    return replace(found, setup=digest)


def choose_packages(cluster: Cluster, python: str) -> Cluster:
    """The cluster with that Python on its nodes (`3.12`), by its name there and without packages;
    "": its own one."""
    if not python:
        return cluster
    other = Python(executable=f"python{python}", version=python)
    nodes = (replace(node, facts=replace(node.facts, python=other)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def equip_nodes(cluster: Cluster, digest: str) -> Cluster:
    """The cluster with the Python of the job's environment on its nodes."""
    if not digest:
        return cluster
    nodes = (
        replace(node, python=f"{locate_packages(node, digest)}/bin/python")
        if node.facts.python
        else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=tuple(nodes))


def locate_packages(node: Node, digest: str) -> str:
    """The job's environment on that node."""
    return f"{node.root}/packages/{make_key(digest, node)}"


def make_key(digest: str, node: Node) -> str:
    return hash_parts(digest, make_group(node))[:16]


def make_group(node: Node) -> str:
    python = require_python(node)
    kept = (f"{name}=={version}" for name, version in _find_kept(python).items())
    return " ".join((python.executable, python.version, node.facts.arch, *kept))


def require_python(node: Node) -> Python:
    if node.facts.python is None:
        raise LaunchError(f"no Python on {node.name}", hint="on the node: apt-get install python3")
    return node.facts.python


def _list_installed(python: Python) -> dict[str, str]:
    """All packages of a node's Python; those of Debian may have versions that are none for uv."""
    words = (word.partition("==")[::2] for word in python.installed.split())
    installed = {make_plain_name(name): v for name, v in words if _VERSION.fullmatch(v)}
    return {**installed, **python.packages}


def _find_kept(python: Python) -> dict[str, str]:
    installed = _list_installed(python)
    return {name: installed[name] for name in KEPT if name in installed}


def describe_packages(packages: Packages, nodes: Sequence[Node]) -> str:
    """What is installed, and what of the nodes is kept."""
    locks = packages.locks.values()
    kept = sorted({name for lock in locks for name in lock.kept})
    beside = f" beside {' and '.join(kept)} of the nodes" if kept else ""
    python = {require_python(node).executable for node in nodes}
    other = "".join(f" with {name} of the nodes" for name in python if not name.startswith("/"))
    size = max((lock.size for lock in locks), default=0)
    much = f" ({format_bytes(size)})" if size else ""
    notes = dict.fromkeys(lock.note for lock in locks if lock.note)
    off = f" (`--requirements {NONE}` turns this off)"
    line = f"using the packages of {packages.source}{much}{beside}{other}{off}"
    lock = choose_lock(packages, nodes[0])
    rows = (row for row, _ in split_lock(lock.text)[1] if "wheels" not in row)
    unbuilt = [row["name"] for row in rows if ".whl" not in str(row.get("archive"))]
    builds = [f"{nodes[0].name} builds {', '.join(unbuilt)} (no wheel)"] if unbuilt else []
    return "; ".join((line, *builds, *notes))


def make_size_question(packages: Packages | None, home: Home) -> str:
    """What needs consent before the start; "" for packages that are small, or were agreed to."""
    size = max((lock.size for lock in packages.locks.values()), default=0) if packages else 0
    if packages is None or size < LARGE or _locate_stored(home, packages.digest).exists():
        return ""
    return f"Install {format_bytes(size)} of packages ({packages.source}) on each node?"


def read_versions(digest: str, node: Node, home: Home) -> tuple[str, ...]:
    """The packages of the job's environment on that node, as `name==version`."""
    if digest and node.facts.python is not None:
        with suppress(LaunchError):
            return choose_lock(read_packages(digest, home), node).packages
    return ()


def read_packages(digest: str, home: Home) -> Packages:
    stored = _locate_stored(home, digest)
    try:
        return msgspec.json.decode(stored.read_bytes(), type=Packages)
    except (OSError, msgspec.DecodeError) as error:
        raise LaunchError(
            f"the list of packages of this job cannot be read: {stored}",
            hint="start it again with `clusterctl run`",
        ) from error


def choose_lock(packages: Packages, node: Node) -> Lock:
    """That of the node's Python; of a job that is run again elsewhere, the one that it had."""
    first = next(iter(packages.locks.values()), Lock())
    return packages.locks.get(make_group(node), first)


def replace_package(text: str, name: str, wheel: Path) -> str:
    """The lock with that wheel instead of the sources of a package."""
    head, found = split_lock(text)
    file = f'{{ path = "{wheel}", hashes = {{ sha256 = "{sum_up(str(wheel))}" }} }}'
    built = f'name = "{name}"\nversion = "{wheel.name.split("-")[1]}"\nwheels = [{file}]\n'
    parts = (built if make_plain_name(row["name"]) == name else part for row, part in found)
    return head + "".join(_HEAD + part for part in parts)


def _locate_stored(home: Home, digest: str) -> Path:
    return home.packages / f"{digest}.json"


def _locate_resolved(home: Home, key: str) -> Path:
    return home.packages / "resolved" / f"{key}.json"


# -------------------------------------------------------------------------------------------------
# The file that asks for a program's packages: that of --requirements, or one of its tree.


_TABLE = re.compile(r"(?m)^# /// script\n((?:#(?: .*)?\n)+)# ///$")
"""https://packaging.python.org/en/latest/specifications/inline-script-metadata/"""
_INCLUDED = re.compile(r"(?m)^\s*(?:-r|-c|--requirements?|--constraints?)[\s=]+(\S+)")

_ASKS_VERSION = (["-V"], ["--version"])

PROJECT, LOCK = own_project.OWN_PROJECT, "uv.lock"

_CONDA = ("environment.yml", "environment.yaml")
SUFFIXES = (".yml", ".yaml")
_SPEC = re.compile(r"(?:\S+::)?([\w.-]+)\s*(.*)")
"""Of conda: `conda-forge::numpy=1.26`."""
_EXACT = re.compile(r"(==?)?\s*(\d[\w.]*?)(\.?\*)?(?:(?:=| +)[\w*.]+)?")
_OF_CONDA = re.compile(r"python|pip|cpuonly|cud(a\w*|nn)|nccl|pytorch-(cuda|mutex)|_\w+")
"""What has no meaning outside of conda, or comes with torch."""


def find_package_files(resolved: Resolved, given: str, python: str = "") -> Wanted | None:
    """What `--requirements` names, else what a Python program's own `script` block says, else a
    file of the program's folder or of one above, up to the root of the tree. None: nothing, unless
    it wants another `python`, which has no packages of its own. Raises UsageError for a file that
    is not understood."""
    found, parts = _find(resolved, given), resolved.parts
    name = found.file.name if found and found.file else ""
    if parts and name not in own_project.FILES:
        raise UsageError(
            f"{parts[0]} {parts[1]} works only with the packages of a pyproject.toml",
            hint="leave it out, or name that file with --requirements",
        )
    if found and found.file and name == PROJECT:
        own_project.check_parts(found.file.parent, parts)
        parts = (*_list_default_groups(found.file), *parts)
    if found and found.file and not parts:
        lines = own_project.list_as_poetry(resolved.tree, found.file)
        found = replace(found, lines="".join(f"{line}\n" for line in lines) or found.lines)
    if found:
        return replace(found, options=tuple(parts))
    return Wanted(f"--python {python}") if python else None


def _list_default_groups(file: Path) -> Iterator[str]:
    """Options for the groups that uv installs without being asked, less that for developers."""
    with suppress(UsageError):
        tables = read_toml(file)
        named = tables.get("tool", {}).get("uv", {}).get("default-groups", ())
        for name in tables.get("dependency-groups", {}) if named == "all" else named:
            if name != "dev":
                yield from ("--group", name)


def find_setup(resolved: Resolved) -> str:
    """The lines of shell that a Python program's own `script` block has for --setup."""
    script = find_script(resolved)
    if script is None or not _may_have_block(resolved.program, script):
        return ""
    tables = _read_script_table(script)
    lines = tables.get("tool", {}).get("clusterctl", {}).get("setup", "")
    if not isinstance(lines, str):
        raise UsageError(
            f"{script.name}: `setup` in its script block is no text", hint='setup = "make"'
        )
    return lines


def find_unread(resolved: Resolved, given: str) -> str:
    """What names packages for a program that gets none, and is not read; for people."""
    script = None if given else find_script(resolved)
    if script is None:
        return ""
    if (script.parent / "Pipfile").is_file():
        return "Pipfile is not read: `pipenv requirements >requirements.txt` makes a list that is"
    prefix = os.environ.get("CONDA_PREFIX") or os.environ.get("VIRTUAL_ENV", "")
    if not prefix or prefix == sys.prefix or os.environ.get("CONDA_DEFAULT_ENV") == "base":
        return ""
    return (
        f"packages of the active environment {prefix} are not those of the nodes:"
        " `pip freeze >requirements.txt` makes a list that is installed there"
    )


def is_named(wanted: Wanted, word: str) -> bool:
    """Whether one of the packages has that name, in whatever spelling: it stands at the beginning
    of a line or in quotes."""
    name = "[-_.]+".join(map(re.escape, re.split("[-_.]+", word)))
    pattern = rf"""(?im)(?:^\s*(?:- +)?(?:[\w-]+::)?|["']|egg=){name}(?=[\s=<>!~;@,[("']|$)"""
    return re.search(pattern, wanted.text) is not None


def recognize_command(resolved: Resolved, given: str) -> Resolved:
    """A command behind `--`, variables or a launcher is one of the packages if they name it: others
    are the nodes', and nothing is downloaded for them."""
    program = resolved.program
    if program.kind is ProgramKind.COMMAND and may_be_installed(program.target):
        found = replace(resolved, installed=True)
        with suppress(UsageError):  # a file that is not understood is said where it is needed
            if (wanted := _find(found, given)) and is_named(wanted, program.target):
                return found
    return resolved


def _find(resolved: Resolved, given: str) -> Wanted | None:
    program, tree = resolved.program, resolved.tree
    if given:
        return None if given == NONE else _read(Path(given))
    script = find_script(resolved)
    if script is None:
        return None
    if _may_have_block(program, script) and (found := _read_block(script)):
        return found
    folder = script.parent if program.kind is ProgramKind.MODULE else script.resolve().parent
    for place in (folder, *folder.parents):
        if found := _find_in(place, tree, resolved.parts):
            return found
        if place == tree.root:
            break
    return None


def _may_have_block(program: Program, script: Path) -> bool:
    """Of several programs in a line of commands, none speaks for the others. The file of a function
    is made when it is copied."""
    alone = program.target not in SHELLS and program.kind is not ProgramKind.MODULE
    return alone and script.suffix == ".py" and script.is_file()


def find_script(resolved: Resolved) -> Path | None:
    """What has the files that ask for its packages beside it: a Python program, a script of the
    project, a command line with one of them, or a command that the project or its packages have;
    None for others, which may need no Python."""
    program, tree = resolved.program, resolved.tree
    place = tree.root / program.folder
    if program.bundled:
        return None
    if program.kind in (ProgramKind.PYTHON, ProgramKind.MODULE):
        return place / program.target
    if program.kind is ProgramKind.BINARY:
        script = place / program.target
        return script if _has_interpreter(script) else None
    if program.kind is not ProgramKind.COMMAND:
        return None
    words, files = [program.target, *program.args], list[str]()
    if find_shell_text(words):  # a line of commands: one may be a program of the project
        words = [word for text in words for word in re.split(r"[\s;&|()'\"]+", text)]
        files = [word for word in words if word.endswith((".py", ".sh"))]
    elif program.target in SHELLS:
        files = list(program.args)
    pythons = (n for n, word in enumerate(words) if is_python(word))
    python = next((n for n in pythons if words[n + 1 : n + 2] not in _ASKS_VERSION), None)
    if python is not None:
        files.insert(0, words[python + find_python_program(words[python:])])
    word = next((word for word in files if tree.has(os.path.join(program.folder, word))), "")
    is_ours = python is not None or resolved.installed
    if word or is_ours or own_project.is_command(program, tree):
        return place / (word or program.target)
    return None


def _has_interpreter(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _find_in(folder: Path, tree: project_tree.Tree, parts: Sequence[str]) -> Wanted | None:
    """What a file of that folder asks for, if it names packages. An empty list is an answer too:
    nothing is looked for above it. `parts`: those of a project that are wanted, too."""
    if lock := _find_lock(folder, tree):
        return _read_lock(folder, lock)
    name = own_project.find_file(folder)
    if parts and name:
        return _read(folder / name)
    if (path := folder / "requirements.txt").is_file():
        return _read(path)
    if name and own_project.list_requirements(tree, folder) != []:
        return _read(folder / name)
    found = (_read_conda(folder / name) for name in _CONDA if (folder / name).is_file())
    return next(filter(None, found), None)


def _find_lock(folder: Path, tree: project_tree.Tree) -> Path | None:
    """The uv.lock of the project in that folder: its own, or that of its workspace."""
    if not (folder / PROJECT).is_file():
        return None
    places = (place for place in (folder, *folder.parents) if place.is_relative_to(tree.root))
    lock = next((place / LOCK for place in places if (place / LOCK).is_file()), None)
    if lock is None or lock.parent == folder:
        return lock
    with suppress(ClusterctlError):
        said = call_uv(PROJECT, "workspace", "dir", "--project", str(folder))
        if Path(said.strip()).resolve() == lock.parent.resolve():
            return lock
    return None


def _read_lock(folder: Path, lock: Path) -> Wanted:
    said = _read_text(folder / PROJECT) + _read_text(lock)
    return Wanted(LOCK, folder / PROJECT, said, locked=True)


def _read_conda(path: Path) -> Wanted | None:
    """What it asks for, as pip has it; None for a file that asks for nothing."""
    table = parse_yaml(_read_text(path), path.name)
    given = table.get("dependencies") if isinstance(table, dict) else None
    lines, own, python = [], {}, ""
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict):
            lines += [str(line) for line in item.get("pip") or ()]
        elif (found := _SPEC.fullmatch(str(item))) and not _OF_CONDA.fullmatch(found[1]):
            name = make_plain_name("torch" if found[1] == "pytorch" else found[1])
            own[name] = name + _translate_version(found[2])
        elif found and found[1] == "python":
            python = found[2]
    if not (lines or own):
        return None
    text = "".join(f"{line}\n" for line in (*own.values(), *lines))
    said = text + "".join(_read_included(text, path.parent, {path}))
    return Wanted(path.name, path, said, lines=text, optional=tuple(own), python=python)


def _translate_version(spec: str) -> str:
    """conda's `=1.26`, `1.26.4` or `=1.26.4=py311_0` for pip; of several ways, any."""
    if found := _EXACT.fullmatch(spec):
        fuzzy = found[3] or found[1] == "="
        return f"=={found[2]}{'.*' if fuzzy else ''}"
    return spec if re.fullmatch(r"[<>!=~][^| ]*", spec := spec.replace(" ", "")) else ""


def _read(path: Path) -> Wanted:
    if not path.is_file():
        raise UsageError(f"--requirements: no such file: {path}", hint=f"a file, or {NONE}")
    path, found = path.absolute(), None
    if path.name == LOCK:
        found = _read_lock(path.parent, path)
    elif path.suffix in SUFFIXES:
        found = _read_conda(path)
    elif path.suffix in (".txt", ".in") or path.name in own_project.FILES:
        found = Wanted(path.name, path, "".join(_read_all(path, set())))
    elif path.suffix == ".py":
        found = _read_block(path)
    if found is None:
        raise UsageError(
            f"--requirements: {path} names no packages",
            hint="uv.lock, pyproject.toml, setup.py, a requirements .txt file, environment.yml with"
            " packages of pip, or a script with a `# /// script` block",
        )
    return found


def _read_all(path: Path, seen: set[Path]) -> Iterator[str]:
    """The text of a file, and of those that it includes."""
    seen.add(path)
    yield (text := _read_text(path))
    if path.suffix in (".txt", ".in"):
        yield from _read_included(text, path.parent, seen)


def _read_included(text: str, folder: Path, seen: set[Path]) -> Iterator[str]:
    for name in _INCLUDED.findall(text):
        if (path := folder / name).is_file() and path not in seen:
            yield from _read_all(path, seen)


def _read_block(script: Path) -> Wanted | None:
    named = "dependencies" in _read_script_table(script)
    return Wanted(script.name, script, _read_text(script)) if named else None


def _read_script_table(script: Path) -> dict[str, Any]:
    found = _TABLE.search(_read_text(script))
    return parse_toml(re.sub(r"(?m)^# ?", "", found[1]), script.name) if found else {}


def _read_text(path: Path) -> str:
    hint = "save it as UTF-8 (Windows PowerShell's `>` writes UTF-16)"
    return read_input(path, str(path), hint=hint)


# -------------------------------------------------------------------------------------------------
# What uv makes of it: exact versions for the Python and the platform of a node.


_FORMAT = ("--format", "pylock.toml", "--no-header")
_EXPORT = ("export", "--quiet", "--frozen", "--no-dev", *_FORMAT)
_OFFLINE = ("--offline", "--no-index", "--no-build")
_HEAD = "[[packages]]\n"
_VERSION = re.compile(r"\d+(\.\d+)*([.-]?(a|b|rc|post|dev)\.?\d+)*(\+[\w.]+)?")
"""Those of packages of Debian may not be one for uv."""
_NOT_THERE = (
    r"(?:no versions? of|only|versions of|Because) {0}(?![\w-])[^ ]* (?:is|are|was not found)"
)
_BACKEND = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")
_FILE = re.compile(r'(?:sdist = )?\{ (?:url|path)[^{}]*hashes = \{ sha256 = "(\w+)" \} \},?')
_PASSWORD = re.compile(r"(https?://)([^\s/@\"']+@)([^\s/\"'<>]+)")


def resolve_packages(
    wanted: Wanted, tree: project_tree.Tree, nodes: Iterable[Node], *, in_any_case: bool = False
) -> tuple[Packages | None, tuple[str, ...]]:
    """What has to be installed on these nodes, None where they have everything already, unless it
    has to be `in_any_case`; and the projects of the tree that it asks for."""
    groups = {make_group(node): node for node in nodes}
    for node in groups.values():
        _check_python(wanted, node)
    if not (wanted.locked or in_any_case):
        there = [_find_installed(_Question(wanted, tree, node)) for node in groups.values()]
        if None not in there:
            return None, tuple(dict.fromkeys(one for some in there for one in some or ()))
    locks = {key: _resolve(_Question(wanted, tree, node)) for key, node in groups.items()}
    folders = dict.fromkeys(folder for lock in locks.values() for folder in lock.folders)
    if not (in_any_case or any(lock.text for lock in locks.values())):
        return None, tuple(folders)
    return Packages(wanted.source, str(wanted.file or ""), locks), tuple(folders)


def have_packages(wanted: Wanted, tree: project_tree.Tree, nodes: Iterable[Node]) -> bool:
    """Whether these nodes have all that it asks for, as far as that is known without a build."""
    groups = {make_group(node): node for node in nodes if node.facts.python}
    questions = [_Question(wanted, tree, node) for node in groups.values()]
    return not (wanted.locked or any(_find_installed(q) is None for q in questions))


def _check_python(wanted: Wanted, node: Node) -> None:
    """Raises UsageError for a Python that the project does not run with, as uv does."""
    found = re.search(r"(?m)^(?:# *)?requires-python *= *[\"'](.*)[\"']", wanted.text)
    version = require_python(node).version
    if found and not _is_within(version, found[1]):
        raise UsageError(
            f"{wanted.source} needs Python {found[1]}, and {node.name} has {version}",
            hint="`--python VERSION` uses another Python of the nodes",
        )


def warn_of_python(wanted: Wanted, nodes: Iterable[Node]) -> str:
    """That an environment of conda would have another Python than nodes have; "" where it fits, or
    was chosen with --python."""
    versions = re.sub(r"^(==[\d.]*\d)$", r"\1.*", _translate_version(wanted.python))
    for node in nodes:
        version = node.facts.python.version if node.facts.python else ""
        if version.count(".") == 2 and not _is_within(version, versions):
            named = wanted.python.lstrip("=")
            return (
                f"{wanted.source} names python {named}, and {node.name} has {version}:"
                " `--python VERSION` uses another Python of the nodes"
            )
    return ""


def _is_within(version: str, versions: str) -> bool:
    """Also where that is no specifier."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    with suppress(InvalidSpecifier):
        return SpecifierSet(versions).contains(version, prereleases=True)
    return True


def check_file(wanted: Wanted) -> None:
    """Raises UsageError for a file that uv does not understand, whatever nodes there will be."""
    if wanted.file and not wanted.locked:
        words = ("pip", "compile", wanted.given, *_FORMAT, "--no-deps", *_OFFLINE)
        result = run_uv(*words, cwd=wanted.file.parent, stdin=wanted.lines.encode())
        if UNREADABLE.search(result.complaints):
            check_uv(wanted.source, result, wanted.file.parent)


class _Question(Struct, frozen=True):
    """What uv is asked: for which packages, of which tree, for what node."""

    wanted: Wanted
    tree: project_tree.Tree
    node: Node

    @property
    def file(self) -> Path:
        return self.wanted.file or Path()

    @property
    def kept(self) -> dict[str, str]:
        """What the node has that may be kept."""
        return _find_kept(require_python(self.node))


def _find_installed(q: _Question) -> list[str] | None:
    """The projects of the tree that it asks for, where the node has all else; asks no index. None
    as well where that cannot be told without a build."""
    there = _list_installed(require_python(q.node))
    rows = (f'{_HEAD}name = "{name}"\nversion = "{version}"\n' for name, version in there.items())
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "pylock.installed.toml")
        out.write_text("".join(('lock-version = "1.0"\ncreated-by = "clusterctl"\n', *rows)))
        options = ("--output-file", str(out), *_OFFLINE, "--find-links", scratch)
        if (
            not q.wanted.lines
            and q.file.name in own_project.FILES
            and own_project.needs_build(q.tree)
        ):
            lines = own_project.list_requirements(q.tree, q.file.parent)
            if lines is None:
                return None
            text = "".join(f"{line}\n" for line in lines)
            q = replace(q, wanted=replace(q.wanted, lines=text))
        result = _compile(q, there, Path(scratch), *options)
        # Whether it has those of an extra is not known.
        if not result.ok or "does not have an extra" in result.complaints:
            return None
        found = split_lock(out.read_text(encoding="utf-8"))[1]
    others = [row for row, _ in found if "directory" not in row]
    if any("wheels" not in row or there.get(row["name"]) != row["version"] for row in others):
        return None
    return _list_folders(q, found)


def _resolve(q: _Question) -> Lock:
    """Decided once for what the files say."""
    if q.wanted.file is None:
        return Lock()
    said = (q.wanted.source, str(q.file), q.wanted.text, *q.wanted.options)
    key = hash_parts(*said, make_group(q.node), own_project.hash_deciding(q.tree))
    with suppress(OSError, msgspec.DecodeError):
        stored = _locate_resolved(find_home(), key).read_bytes()
        return msgspec.json.decode(stored, type=Lock)
    return replace(_ask_uv(q), key=key)


def _ask_uv(q: _Question) -> Lock:
    text, note, locked, kept = "", "", [], dict[str, str]()
    if q.wanted.locked:
        text = call_uv(LOCK, *_EXPORT, *q.wanted.options, cwd=q.file.parent)
        locked = split_lock(text)[1]
    if not locked or any(_fits_nodes(row["name"]) for row, _ in locked):
        text, kept, note = _choose_versions(q, [row for row, _ in locked])
    head, found = split_lock(text)
    # All else is as it was locked.
    fixed = [(row, part) for row, part in locked if not _fits_nodes(row["name"])]
    names = {row["name"] for row, _ in fixed}
    parts, size = [], 0
    for row, part in (*fixed, *(one for one in found if one[0]["name"] not in names)):
        name, version = make_plain_name(row["name"]), row.get("version", "")
        brought = "torch" in kept or q.node.facts.accelerator is Accelerator.NONE
        if name in kept or (brought and _CUDA.match(name)) or "directory" in row:
            continue
        if other := q.kept.get(name):
            note += f"; {name} {version} of {q.wanted.source} is used instead of the nodes' {other}"
        part = re.sub(r'\bpath = "(?!/)', f'path = "{q.file.parent}/', part)
        parts.append(_HEAD + _PASSWORD.sub(r"\1\3", _drop_other_hashes(part, q.wanted)))
        size += _find_size(row, q.node)
    folders = _list_folders(q, locked or found)
    # uv would hold it against the Python that it runs with here.
    head = re.sub(r"(?m)^requires-python.*\n", "", head)
    text = "".join((head, *parts)) if parts else ""
    stays = tuple(map(" ".join, kept.items()))
    return Lock(text, folders=tuple(folders), kept=stays, note=note.strip("; "), size=size)


def _fits_nodes(name: str) -> bool:
    """Whether its version, or its build, is chosen for the nodes."""
    return name in KEPT or _CUDA.match(name) is not None


def _find_backend(q: _Question, kept: Mapping[str, str]) -> str:
    """Which builds of PyTorch's packages belong to the torch that is kept, or to the hardware, as
    uv names them; "": those of the usual index."""
    build = q.kept.get("torch", "").partition("+")[2]
    if not build and "torch" not in kept and q.node.facts.accelerator is Accelerator.NONE:
        return "cpu"
    return build if _BACKEND.fullmatch(build) else ""


def _list_builds(text: str, kept: Mapping[str, str], node: Node) -> dict[str, str]:
    """PyTorch's packages of a job, and how each was built: `cpu`, `cu126`, or as PyPI has it."""
    chosen = {row["name"]: row.get("version", "") for row, _ in split_lock(text)[1]}
    versions = {**chosen, **kept}
    usual = "" if node.facts.arch == "x86_64" else "cpu"
    return {name: versions[name].partition("+")[2] or usual for name in TORCH if name in versions}


def _choose_versions(
    q: _Question, locked: Iterable[Mapping[str, Any]]
) -> tuple[str, dict[str, str], str]:
    """What uv finds beside packages of the nodes' Python, which of these are kept (as many as the
    project allows), and what is left out, for people. What is locked stays as it is, but for the
    builds of PyTorch's packages."""
    wanted, kept, backend, lacking = q.wanted, q.kept, "", list[str]()
    while True:
        result, root = _compile_beside(replace(q, wanted=wanted), kept, locked, backend)
        said, hardware = result.complaints, _find_backend(q, kept)
        builds = _list_builds(result.text, kept, q.node) if result.ok else {}
        others = {*builds.values()} - {hardware}
        if hardware != backend and (
            others or not (result.ok or "torch" in kept or "torch" not in said)
        ):
            backend = hardware
        elif result.ok:
            break
        elif name := next(
            (n for n in wanted.optional if re.search(_NOT_THERE.format(n), said)), ""
        ):
            lines = re.sub(rf"(?m)^{name}\b(?!-).*\n", "", wanted.lines, count=1)
            optional = tuple(one for one in wanted.optional if one != name)
            wanted, lacking = replace(wanted, lines=lines, optional=optional), [*lacking, name]
        elif blamed := next((n for n in kept if n in said and "No solution" in said), ""):
            kept = {n: v for n, v in kept.items() if (n in TORCH) != (blamed in TORCH)}
        else:
            check_uv(wanted.source, result, root)
    if len(set(builds.values())) > 1:
        chosen = dict(item.split("==") for item in Lock(result.text).packages)
        said = " and ".join(f"{name} {kept.get(name) or chosen[name]}" for name in builds)
        raise UsageError(
            f"{wanted.source}: {said} are different builds, and do not work together",
            hint=f"name an index that has them all for {builds.get('torch') or 'CUDA'}, or"
            f" `--requirements {NONE}` uses only what the nodes have",
        )
    names = ", ".join(sorted(lacking))
    note = f"no package index has {names} of {wanted.source}" if lacking else ""
    return result.text.replace(str(root), str(q.tree.root)), kept, note


def _compile_beside(
    q: _Question, kept: Mapping[str, str], locked: Iterable[Mapping[str, Any]], backend: str
) -> tuple[NodeResult, Path]:
    """uv's answer beside what is kept of the node, and where it read the tree. Builds write beside
    their sources: a project that has to be built for it is read from a copy."""
    options = ["--quiet", *(("--torch-backend", backend) if backend else ())]
    for name in KEPT:
        if (name in kept or backend) and re.search(rf"(?m)^{name} *= *[\[{{]", q.wanted.text):
            options += ["--no-sources-package", name]  # all other sources count
    if q.file.suffix in (".txt", ".in", *SUFFIXES) and "UV_INDEX_STRATEGY" not in os.environ:
        # Written for pip, which takes the best version of all indexes: PyTorch's, the most
        # usual extra one, has old versions of many packages.
        options += ["--index-strategy", "unsafe-best-match"]
    with ExitStack() as stack:
        scratch, root = Path(stack.enter_context(tempfile.TemporaryDirectory())), q.tree.root
        if q.file.is_relative_to(root) and own_project.needs_build(q.tree):
            root = stack.enter_context(own_project.copy_tree(q.tree))
            file = root / q.file.relative_to(q.tree.root)
            if not file.exists():  # git ignores it
                shutil.copy2(q.file, file)
            q = replace(q, wanted=replace(q.wanted, file=file))
        pins = scratch / "kept.txt"
        # Not as an option, which would take the place of the user's UV_FIND_LINKS.
        lines = [f"--find-links {scratch}", *map("==".join, kept.items())]
        fitted = {*kept, *(TORCH if "torch" in kept else ())}
        for row in locked:
            name, version = row["name"], row.get("version", "")
            if version and "directory" not in row and name not in fitted:
                public = version.partition("+")[0] if name in KEPT else version
                marker = f" ; {row['marker']}" if "marker" in row else ""
                lines.append(f"{name}=={public}{marker}")
        pins.write_text("\n".join(lines))
        options += ["--constraints", str(pins)]
        return _compile(q, kept, scratch, *options), root


def _compile(q: _Question, offers: Mapping[str, str], scratch: Path, *options: str) -> NodeResult:
    """What uv finds for the file of these; `offers` are there as wheels without content."""
    for name, version in offers.items():
        stem = f"{make_plain_name(name).replace('-', '_')}-{version}"
        with ZipFile(scratch / f"{stem}-py3-none-any.whl", "w") as wheel:
            head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            wheel.writestr(f"{stem}.dist-info/METADATA", head)
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    asked = (*q.wanted.options, *_FORMAT, *make_target_options(q.node), *options)
    words = ("pip", "compile", q.wanted.given, *asked)
    return run_uv(*words, cwd=q.file.parent, stdin=q.wanted.lines.encode())


def _list_folders(q: _Question, found: Iterable[tuple[dict[str, Any], str]]) -> list[str]:
    place = q.file.parent if q.wanted.file else q.tree.root
    paths = (row["directory"]["path"] for row, _ in found if "directory" in row)
    return [os.path.relpath(place / path, q.tree.root) for path in paths]


def _find_size(row: Mapping[str, Any], node: Node) -> int:
    """Bytes to download for a package. Of PyTorch's, whose index does not say it, the server."""
    files = row.get("wheels") or [row[kind] for kind in ("sdist", "archive") if kind in row]
    fitting = re.compile(rf"(-any|_{node.facts.arch})\.whl\b")
    files = [file for file in files if fitting.search(file.get("url", ""))] or files
    sizes = [file["size"] for file in files if "size" in file]
    if not sizes and row["name"] in TORCH:
        from urllib.request import Request, build_opener  # seldom used

        for file in files[:1]:
            with suppress(OSError, ValueError):
                request = Request(file["url"], method="HEAD")
                with build_opener().open(request, timeout=ASK_TIMEOUT) as answer:
                    sizes.append(int(answer.headers["Content-Length"] or 0))
    return max(sizes, default=0)


def _drop_other_hashes(part: str, wanted: Wanted) -> str:
    """The part of a lock without the files that the hashes of a requirements file do not name."""
    named = set(re.findall(r"--hash[ =]\w+:(\w+)", wanted.text))
    if not named:
        return part
    kept = _FILE.sub(lambda found: found[0] if found[1] in named else "", part)
    if not _FILE.search(kept):
        name, version = re.findall(r'(?m)^(?:name|version) = "(.*)"', part)[:2]
        raise LaunchError(
            f"{wanted.source}: no hash in it is that of {name}=={version}",
            hint="correct the hashes in the file",
        )
    return kept


def add_passwords(text: str, file: Path) -> str:
    """The lock with the names and passwords that the file has for its hosts."""
    with suppress(UsageError):
        for scheme, user, host in _PASSWORD.findall("".join(_read_all(file, set()))):
            user = os.path.expandvars(user)
            text = text.replace(f'"{scheme}{host}/', f'"{scheme}{user}{host}/')
    return text


def split_lock(text: str) -> tuple[str, list[tuple[dict[str, Any], str]]]:
    """The head of a pylock.toml, and its packages, each with its part of the text."""
    head, *parts = text.split(_HEAD)
    return head, [(parse_toml(part, "pylock.toml"), part) for part in parts]


def make_target_options(node: Node) -> tuple[str, ...]:
    """Options for the packages of a node that has a Python."""
    version = node.facts.python.version if node.facts.python else ""
    platform = f"{node.facts.arch}-manylinux_2_28"
    own = ("--python", sys.executable)
    return (*own, "--python-version", version, "--python-platform", platform)
