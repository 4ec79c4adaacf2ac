"""Calls of uv, and the projects of the tree that it builds, from a copy. A program knows them as if
they were installed: their packages, name and version (`importlib.metadata`) and commands. The code
that runs is that of the job's own copy of the tree."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from shutil import which
from typing import Any

import msgspec

from clusterctl import process
from clusterctl.core.job import Program, ProgramKind
from clusterctl.core.model import Node
from clusterctl.core.text import read_toml
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.project import tree as project_tree
from clusterctl.state.files import write_atomic
from clusterctl.state.home import find_home

# -------------------------------------------------------------------------------------------------
# uv, on this machine, with the user's settings.


NONE = "none"
"""What --requirements says for no packages."""
FETCH_TIMEOUT = 3600.0
"""Seconds that uv may take to download packages, and a node to get them."""
_REASON = re.compile(r"(?m)^\s*(?:(?:error|cause): (.*)|(\w*Error: .*))")
_UNBUILT = re.compile(r"Failed to build `([\w.-]+(?:==| @ (?!file:))[^`]+)`")
"""A package, not a project of the tree."""
_FRAMES = ("Failed to build", "The build backend returned an error", "Call to `")
"""What uv says around the reason of a build that fails."""


def call_uv(what: str, *words: str, **settings: str) -> str:
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


def is_like_here(node: Node) -> bool:
    """Whether what is built on this machine runs on the node."""
    here = (platform.system(), platform.machine(), platform.python_version_tuple()[:2])
    version = node.facts.python.version if node.facts.python else ""
    return here == ("Linux", node.facts.arch, tuple(version.split(".")[:2]))


def hash_parts(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def make_plain_name(name: str) -> str:
    """The name of a package as an index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -------------------------------------------------------------------------------------------------
# Projects.


OWN_PROJECT = "pyproject.toml"

FILES = (OWN_PROJECT, "setup.py", "setup.cfg")
"""One of these makes a folder a project."""
UNKNOWN = "0+unknown"
"""The version of a project that lets a program find its version when it is built."""
LOCKS = {"GIT_OPTIONAL_LOCKS": "0"}
"""Builds may ask git for a version."""
TRY_AGAIN = 20
"""Seconds after which a project that could not be built is built again: a network or a compiler may
be there. Within one command, it is tried once."""
LARGEST = 1 << 20
"""Bytes of a file that may decide how a project is built."""

_ENTRY = re.compile(r"\s*([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?\s*")
_COMMAND = re.compile(r"[\w.-]+")

_LOCAL_PROJECT = re.compile(r"([\w.-]+)\s*(\[[^]]*\])?\s*@\s*file://(?:localhost)?(/[^;\s]*)(.*)")

_ASKS_GIT = re.compile(rb"scm|vcs|versioneer|versioningit|dunamai|rev-parse|git describe")
_ESSENTIAL = ("Metadata-Version:", "Name:", "Version:", "Requires-", "Provides-Extra:")
_HEAD = re.compile(rb"\A#!(?:/bin/sh\n'''exec' .*\n' '''|.*python.*)\n")
"""Of a command that uv made: it names the Python of this machine, perhaps through a shell."""
_SCRIPT = """\
#!/usr/bin/env python3
import sys

from {module} import {first}

sys.exit({function}())
"""


class Project(msgspec.Struct, frozen=True):
    """Paths are relative to the tree's root."""

    folder: str
    name: str = ""
    metadata: str = ""
    paths: tuple[str, ...] = ()
    """Folders of the tree that hold its packages."""
    made: tuple[tuple[str, bytes], ...] = ()
    """Files of its packages that only a build makes, for the tree."""
    own: tuple[tuple[str, bytes, int], ...] = ()
    """Those that have no place in the tree, what describes the project, and its commands."""
    needs: tuple[str, ...] = ()
    """Folders of other projects that its metadata names."""
    compiled: bool = False
    content: str = ""
    """The digest of all of its files, where files of the build depend on them."""
    problem: str = ""
    """Why it could not be built: what is said here is what its pyproject.toml says."""

    @property
    def requirements(self) -> list[str]:
        return message_from_string(self.metadata).get_all("Requires-Dist") or []

    @property
    def essentials(self) -> str:
        """What of its metadata decides about packages."""
        lines = self.metadata.split("\n\n")[0].splitlines()
        return "".join(f"{line}\n" for line in lines if line.startswith(_ESSENTIAL))

    @property
    def commands(self) -> set[str]:
        return {name.removeprefix("bin/") for name, _, _ in self.own if name[:4] == "bin/"}


def find_folder(program: Program, root: Path) -> Path | None:
    """The folder of the nearest project around the program, in the tree."""
    folder = root / program.folder
    if program.kind is not ProgramKind.COMMAND:
        folder = (folder / program.target).parent
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
        if find_file(place):
            return place
    return None


def find_file(folder: Path) -> str:
    """The file that says what project is in that folder; "" for none."""
    there = [name for name in FILES if (folder / name).is_file()]
    if "setup.cfg" in there and b"[metadata]" not in (folder / "setup.cfg").read_bytes():
        there.remove("setup.cfg")  # it has settings of other tools
    if len(there) > 1 and there[0] == OWN_PROJECT and not _read_own_project(folder / OWN_PROJECT):
        return there[1]
    return there[0] if there else ""


def list_commands(folder: Path) -> list[str]:
    """The commands that the pyproject.toml in that folder declares."""
    return [name for name, _, _ in _list_scripts(_read_own_project(folder / OWN_PROJECT))]


def is_command(word: str, here: Path) -> bool:
    """Whether the pyproject.toml around the folder `here` declares a command of that name."""
    places = (here, *here.parents)
    folder = next((place for place in places if (place / OWN_PROJECT).is_file()), None)
    return folder is not None and word in list_commands(folder)


def find_own_project(
    program: Program, tree: project_tree.Tree, wanted: Sequence[str], given: str
) -> list[Project]:
    """The program's own project, and those in the folders `wanted`, which its packages name. None
    is built where --requirements (`given`) wants no packages."""
    folder = find_folder(program, tree.root)
    folders = [*([folder] if folder else []), *(tree.root / place for place in wanted)]
    if given == NONE:
        return [_describe(tree, place) for place in folders]
    return collect_own_project(tree, folders)


def collect_own_project(tree: project_tree.Tree, folders: Iterable[Path]) -> list[Project]:
    """These projects of the tree, and those that they depend on by a path."""
    found: dict[str, Project] = {}
    waiting = [place.resolve() for place in folders]
    while waiting:
        place = waiting.pop(0)
        if not place.is_relative_to(tree.root):
            raise project_tree.make_outside_error(str(place), tree.root, "both")
        project = build_own_project(tree, place)
        if project.folder not in found:
            found[project.folder] = project
            needs = (*project.needs, *list_sources(place, tree.root))
            waiting += [(tree.root / need).resolve() for need in needs]
    return list(found.values())


def equip_own_project(tree: project_tree.Tree, projects: Sequence[Project]) -> project_tree.Tree:
    """The tree with the files by which Python and a shell know its projects: for a folder that is
    on PYTHONPATH and whose `bin` is on PATH."""
    # The program's own wins.
    own = {entry[0]: entry for project in reversed(projects) for entry in project.own}
    made = {name: data for project in projects for name, data in project.made}
    return replace(tree, written=(*tree.written, *made.items()), own=tuple(own.values()))


def check_own_project(projects: Sequence[Project], nodes: Sequence[Node]) -> None:
    """Raises LaunchError for what was compiled here and cannot run there."""
    for project in projects:
        for node in nodes:
            if project.compiled and not is_like_here(node):
                raise LaunchError(
                    f"{project.name} has compiled parts: what is built here, for Python"
                    f" {platform.python_version()} on {platform.machine()}, does not run on"
                    f" {node.name}",
                    hint=f"install it on the nodes, and run with `--requirements {NONE}`",
                )


def explain_own_project(project: Project) -> str:
    """Why it is used without a build, for people."""
    what = project.name or f"the project in {project.folder}".removesuffix(" in .")
    return (
        f"{what} cannot be built, so its packages are looked for only in"
        f" {', '.join(project.paths)}: {project.problem}"
    )


def build_own_project(tree: project_tree.Tree, folder: Path) -> Project:
    """What a build makes of the project in that folder; once for the files that decide it."""
    plain = _describe(tree, folder)
    if not (find_file(folder) and _has_build(folder)):
        return plain
    files = [name for name in tree.files if (tree.root / name).is_relative_to(folder)]
    key = hash_parts(plain.folder, sys.version, *_list_deciding(tree.root, plain.folder, files))
    home = find_home()
    path = home.packages / "built" / f"{key}.json"
    with suppress(OSError, msgspec.DecodeError):
        project = msgspec.json.decode(path.read_bytes(), type=Project)
        fresh = not project.content or project.content == _hash_files(tree.root, files)
        if fresh and (not project.problem or path.stat().st_mtime > time.time() - TRY_AGAIN):
            return project
    project = _build(tree, plain, files)
    home.make(path.parent)
    write_atomic(path, msgspec.json.encode(project))
    return project


def _has_build(folder: Path) -> bool:
    if find_file(folder) != OWN_PROJECT:
        return True
    with suppress(UsageError):
        return (folder / "setup.py").is_file() or "build-system" in read_toml(folder / OWN_PROJECT)
    return False


def _list_deciding(root: Path, folder: str, files: Iterable[str]) -> Iterator[str]:
    """What a build depends on, beside the code of packages: which folders have any, the files
    beside pyproject.toml, lists of requirements, and where versions are."""
    scm = False
    for name in files:
        place, base = os.path.split(os.path.relpath(name, folder))
        if base.endswith(".py") and base not in FILES:
            yield place
            if base != "__init__.py" and not re.search("version|about", base):
                continue
        elif place and not base.endswith((".txt", ".in", ".toml", ".cfg")):
            continue
        with suppress(OSError):
            path = root / name
            text = path.read_bytes() if path.stat().st_size < LARGEST else b""
            if base != "__init__.py" or b"version" in text:
                scm = scm or (base in FILES and _ASKS_GIT.search(text) is not None)
                yield from (name, text.decode(errors="replace"))
    if scm:
        said = process.run(["git", "-C", str(root), "describe", "--always", "--dirty"], timeout=20)
        yield said.text


def _hash_files(root: Path, files: Iterable[str]) -> str:
    def read() -> Iterator[str]:
        for name in files:
            with suppress(OSError):
                yield from (name, (root / name).read_bytes().decode(errors="replace"))

    return hash_parts(*read())


def _build(tree: project_tree.Tree, plain: Project, files: Sequence[str]) -> Project:
    """What uv installs of a copy: backends write beside the sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy, out = Path(scratch, "tree"), Path(scratch, "out")
        for name in tree.files:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                shutil.copy2(tree.root / name, copy / name, follow_symlinks=False)
        if (git := tree.root / ".git").exists():  # from which some find the version
            (copy / ".git").write_text(f"gitdir: {git}" if git.is_dir() else git.read_text())
        what = plain.folder if plain.folder != "." else plain.name
        options = ("--no-deps", "--python", sys.executable, "--target", str(out))
        words = ("pip", "install", "--quiet", *options, str(copy / plain.folder))
        try:
            with suppress(ClusterctlError):
                call_uv(what, *words, "--offline", **LOCKS)
            if not any(out.glob("*.dist-info")):
                call_uv(what, *words, **LOCKS, UV_HTTP_RETRIES="1")
        except ClusterctlError as error:
            why = error.message.removeprefix(f"{what}: ").replace(f"{copy}/", "")
            return msgspec.structs.replace(plain, problem=why)
        return _read_installed(out, plain, files, copy.resolve(), tree.root)


def _read_installed(
    out: Path, plain: Project, files: Sequence[str], copy: Path, root: Path
) -> Project:
    (info,) = out.glob("*.dist-info")
    metadata, needs = _split_local((info / "METADATA").read_text(encoding="utf-8"), copy)
    own = [(f"{info.name}/METADATA", metadata.encode(), 0o644)]
    packaged = []
    for path in (path for path in out.rglob("*") if path.is_file() and path.name != ".lock"):
        name = str(path.relative_to(out))
        if path.parent == out / "bin":
            own.append((name, _HEAD.sub(b"#!/usr/bin/env python3\n", path.read_bytes()), 0o755))
        elif path == info / "entry_points.txt":
            own.append((name, path.read_bytes(), 0o644))
        elif info not in path.parents:
            packaged.append(name)
    places, missing = _find_places(packaged, files)
    made = []
    for name in missing:
        data = (out / name).read_bytes()
        top = next((p for p in places if (root / p / name.split("/")[0]).is_dir()), None)
        if top is None or "/" not in name:
            own.append((name, data, 0o644))
        else:
            made.append((os.path.normpath(f"{top}/{name}"), data))
    return msgspec.structs.replace(
        plain,
        name=str(message_from_string(metadata)["Name"]),
        metadata=metadata,
        paths=tuple(places) or plain.paths,
        made=tuple(made),
        own=tuple(own),
        needs=tuple(needs),
        compiled=any(name.endswith(".so") for name in missing),
        content=_hash_files(root, files) if missing else "",
    )


def _find_places(packaged: Iterable[str], files: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders of the tree in which the files of a wheel lie under the same names, and those
    files that lie in none."""
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(os.path.basename(file), []).append(file)
    found: dict[str, set[str]] = {}
    for name in packaged:
        ends = (
            file
            for file in by_name.get(os.path.basename(name), ())
            if f"/{file}".endswith(f"/{name}")
        )
        found[name] = {file[: -len(name)].rstrip("/") or "." for file in ends}
    places: list[str] = []
    left = dict(found)
    while any(left.values()):
        counts = Counter(place for some in left.values() for place in some)
        best = min(counts, key=lambda place: (-counts[place], place.count("/"), place))
        places.append(best)
        left = {name: some for name, some in left.items() if best not in some}
    return places, list(left)


def _split_local(metadata: str, copy: Path) -> tuple[str, list[str]]:
    """The metadata with plain names of projects that are folders of the tree, and these folders."""
    lines, folders = [], []
    for line in metadata.splitlines():
        found = _LOCAL_PROJECT.fullmatch(line.removeprefix("Requires-Dist: "))
        place = Path(found[3]).resolve() if found else copy
        if found and line.startswith("Requires-Dist: ") and place.is_relative_to(copy):
            folders.append(str(place.relative_to(copy)))
            line = f"Requires-Dist: {found[1]}{found[2] or ''}{found[4]}"
        lines.append(line)
    return "\n".join((*lines, "")), folders


def _describe(tree: project_tree.Tree, folder: Path) -> Project:
    """The project as far as its pyproject.toml says what it is."""
    table = _read_own_project(folder / OWN_PROJECT)
    name = table.get("name")
    place = str(folder.relative_to(tree.root))
    inner = folder / "src" if (folder / "src").is_dir() else folder
    paths = (str(inner.relative_to(tree.root)),)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return Project(place, paths=paths)
    version = re.sub(r"[^\w.+!]+", "_", str(table.get("version") or UNKNOWN))
    given = table.get("dependencies")
    required = (line for line in given if isinstance(line, str)) if isinstance(given, list) else ()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata = head + "".join(f"Requires-Dist: {line}\n" for line in required)
    info = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}.dist-info"
    points, own = "[console_scripts]\n", [(f"{info}/METADATA", metadata.encode(), 0o644)]
    for command, module, function in _list_scripts(table):
        points += f"{command} = {module}:{function}\n"
        first = function.partition(".")[0]
        text = _SCRIPT.format(module=module, first=first, function=function)
        own.append((f"bin/{command}", text.encode(), 0o755))
    own.append((f"{info}/entry_points.txt", points.encode(), 0o644))
    return Project(place, name, metadata, paths, own=tuple(own))


def _list_scripts(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The name, the module and the function of each command."""
    scripts = table.get("scripts")
    for name, entry in scripts.items() if isinstance(scripts, dict) else ():
        if (found := _ENTRY.fullmatch(str(entry))) and _COMMAND.fullmatch(name):
            yield name, found[1], found[2]


def list_sources(folder: Path, root: Path) -> Iterator[str]:
    """The folders that `[tool.uv.sources]` names, by a path or as members of the workspace."""
    try:
        tool = _filter_tables(read_toml(folder / OWN_PROJECT)).get("tool", {})
    except (UsageError, OSError):
        return
    sources = _filter_tables(_filter_tables(tool).get("uv")).get("sources", {})
    rows = {
        k: [r for r in (v if isinstance(v, list) else [v]) if isinstance(r, dict)]
        for k, v in sources.items()
    }
    members: dict[str, str] = {}
    if any(row.get("workspace") for some in rows.values() for row in some):
        said = call_uv(OWN_PROJECT, "workspace", "list", "--paths", "--project", str(folder))
        for line in said.splitlines():
            name = _read_own_project(Path(line) / OWN_PROJECT).get("name", "")
            members[make_plain_name(str(name))] = line
    for name, some in rows.items():
        for row in some:
            place = members.get(make_plain_name(name)) if row.get("workspace") else row.get("path")
            if place and (folder / place).is_dir():
                yield os.path.relpath(folder / place, root)


def _read_own_project(path: Path) -> Mapping[str, Any]:
    """The table [project]; empty for a file that is not there, or is not understood, which is said
    where its packages are looked for."""
    with suppress(UsageError, OSError):
        return _filter_tables(read_toml(path)).get("project", {})
    return {}


def _filter_tables(value: Any) -> dict[str, dict[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {k: v for k, v in pairs if isinstance(v, dict)}
