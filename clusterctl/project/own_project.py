"""Calls of uv, and the projects of the tree that it builds, from a copy. A program knows them as if
they were installed: their packages, name and version (`importlib.metadata`) and commands. The code
that runs is that of the job's own copy of the tree."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email import message_from_string
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from clusterctl import process
from clusterctl.core import assets
from clusterctl.core.job import Program, ProgramKind
from clusterctl.core.model import NodeResult
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
_REASON = re.compile(
    r"(?m)^\s*(?:\S+: fatal error: (.*)|(?:error|cause): (?!Command ')(.*)|(\w*Error: .*))"
)
UNREADABLE = re.compile(
    "TOML parse error|Distribution not found|Couldn't parse|[Ff]ile not found|Failed to parse"
)
"""What uv says of a file that is wrong, whatever an index has."""


def call_uv(what: str, *words: str, cwd: Path | None = None) -> str:
    """What uv prints."""
    return check_uv(what, run_uv(*words, cwd=cwd), cwd)


def run_uv(
    *words: str, cwd: Path | None = None, stdin: bytes = b"", sources: Path | None = None
) -> NodeResult:
    """Its settings are the user's: index, proxy, certificates, cache. With `sources`, nothing is
    built: what uv wanted to build first is copied there, and it fails."""
    from uv import find_uv_bin  # seldom used

    program = find_uv_bin()
    taking: dict[str, str] = {}
    if sources:
        finder = assets.find_folder("templates") / "client" / "take_source"
        taking = {"PYTHONPATH": str(finder), "CLUSTERCTL_SOURCE": str(sources)}
    env = process.make_environment(
        program,
        **taking,
        UV_CONCURRENT_BUILDS="1",
        NO_COLOR="1",
        COLUMNS="9999",  # a reason is one line
        UV_NO_PROGRESS="1",
        UV_PYTHON_DOWNLOADS="never",
        GIT_OPTIONAL_LOCKS="0",  # builds may ask git for a version
    )
    return process.run((program, *words), timeout=FETCH_TIMEOUT, cwd=cwd, stdin=stdin, env=env)


def check_uv(what: str, result: NodeResult, cwd: Path | None) -> str:
    """What uv printed; raises an error with its own words, in which paths are relative to `cwd`.
    `what` it was asked about stands below them, with what to do."""
    if result.ok:
        return result.text
    said = re.sub(r"(https?://)[^\s/@]+@", r"\1***@", result.complaints).replace(f"{cwd}/", "")
    why = ": ".join("".join(found) for found in _REASON.findall(said))
    # uv ends with 1 where versions do not fit together, and puts that into its last line.
    wrong = UNREADABLE.search(said) or (result.exit_code == 1 and "No solution" in said)
    check = (
        "correct the file" if wrong else "check the file and the connection to the package index"
    )
    if refused := re.search(r"(?m)^hint: (.*authentication.*)", said):
        why, check = refused[1], "check the name and password for that index"
    without = f"`--requirements {NONE}` uses only what the nodes have"
    error = UsageError if wrong else LaunchError
    raise error(result.error or why or result.why, hint=f"{what}: {check}, or {without}")


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
TRY_AGAIN = 20
"""Seconds after which a project that could not be built is built again: a network or a compiler may
be there. Within one command, it is tried once."""
LARGEST = 1 << 20
"""Bytes of a file that are looked at where code is no machine code."""

_ENTRY = re.compile(r"\s*([\w.]+)\s*:\s*([\w.]+)\s*(?:\[.*\])?\s*")
_COMMAND = re.compile(r"[\w.-]+")

_REQUIRES = "Requires-Dist"
_ASKS_GIT = re.compile(r"scm|vcs|versioneer|versioningit|dunamai|rev-parse|git describe")
_COMPILES = re.compile(
    r"ext.modules|cffi.modules|Extension\(|cythonize|build_ext|mypycify|mesonpy|skbuild|scikit.build"
    r"|maturin|setuptools.rust"
)
_HEAD = re.compile(rb"\A#!(?:/bin/sh\n'''exec' .*\n' '''|.*python.*)\n")
"""Of a command that uv made: it names the Python of this machine, perhaps through a shell."""
_SCRIPT = """\
#!/usr/bin/env python3
import sys

from {module} import {first}

sys.exit({function}())
"""
_POETRY = "tool.poetry"
_ASK_POETRY = """\
import sys
from pathlib import Path

from poetry.core.factory import Factory

for one in Factory().create_poetry(Path(sys.argv[1])).package.requires:
    print(one.to_pep_508())
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
    compiled: bool = False
    """Whether its build makes machine code: nodes do that, and only they know all of it."""
    content: str = ""
    """The digest of all of its files, where files of the build depend on them."""
    listed: tuple[str, ...] = ()
    """What it depends on, as Poetry reads it where no build says it."""
    problem: str = ""
    """Why it could not be built: what is said here is what its pyproject.toml says."""

    @property
    def title(self) -> str:
        """What it is called for people."""
        return self.name or f"the project in {self.folder}".removesuffix(" in .")

    @property
    def warning(self) -> str:
        """Why it is used without a build, or not at all, for people; "" for one that was built."""
        if self.compiled and not self.paths:
            return (
                f"{self.title} has compiled parts, which this job does not build: its sources are"
                " not on PYTHONPATH, and nodes have to have it installed"
            )
        where = ", ".join(self.paths)
        what = f"{self.title} cannot be built, so its packages are looked for only in {where}"
        return self.problem and f"{what}: {self.problem}"

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
    if len(there) > 1 and there[0] == OWN_PROJECT and not _read_table(folder / OWN_PROJECT):
        return there[1]
    return there[0] if there else ""


def list_commands(folder: Path) -> list[str]:
    """The commands that the pyproject.toml of that folder declares; a build may make more."""
    return [name for name, _, _ in _list_scripts(_read_table(folder / OWN_PROJECT))]


def _list_parts(folder: Path) -> dict[str, Sequence[Any]]:
    """The extras and groups that its pyproject.toml has, as options, with what they ask for."""
    names = {"--extra": "project.optional-dependencies", "--group": "dependency-groups"}
    return {
        f"{option} {make_plain_name(name)}": lines
        for option, table in names.items()
        for name, lines in _read_table(folder / OWN_PROJECT, table).items()
    }


def check_parts(folder: Path, parts: Sequence[str]) -> None:
    """Raises UsageError for an extra or a group that a pyproject.toml does not have, as far as it
    says that itself."""
    table, there = _read_table(folder / OWN_PROJECT), _list_parts(folder)
    for kind, name in zip(parts[::2], parts[1::2], strict=True):
        told = "name" in table and "optional-dependencies" not in table.get("dynamic", ())
        if (
            f"{kind} {make_plain_name(name)}" not in there
            and (told or kind == "--group")
            and name != "dev"
        ):
            raise UsageError(
                f"{OWN_PROJECT} has no {kind[2:]} {name}",
                hint=f"it has {', '.join(there) or 'none'}",
            )


def find_part(folder: Path, package: str) -> str:
    """The option for the extra or group of the project in that folder which has that package; ""
    where none has."""
    for option, lines in _list_parts(folder).items():
        for line in filter(lambda one: isinstance(one, str), lines):
            found = re.match(r"[\w.-]*", line.strip())
            if found and make_plain_name(found[0]) == make_plain_name(package):
                return option
    return ""


def is_command(program: Program, tree: project_tree.Tree) -> bool:
    """Whether the program is a command of the project around it, as its build says."""
    folder = find_folder(program, tree.root)
    return folder is not None and program.target in build_own_project(tree, folder).commands


def find_own_project(
    program: Program, tree: project_tree.Tree, wanted: Sequence[str], given: str
) -> list[Project]:
    """The program's own project, and those in the folders `wanted`, which its packages name. None
    is built where --requirements (`given`) wants no packages."""
    folder = find_folder(program, tree.root)
    folders = [*([folder] if folder else []), *(tree.root / place for place in wanted)]
    if given == NONE:
        return [_describe(tree, place) for place in folders]
    for folder in folders:
        if not folder.resolve().is_relative_to(tree.root):
            raise project_tree.make_outside_error(str(folder), tree.root, "both")
    found = (build_own_project(tree, folder.resolve()) for folder in folders)
    return list({project.folder: project for project in found}.values())


def list_requirements(tree: project_tree.Tree, folder: Path) -> list[str] | None:
    """What the project in that folder depends on; None where no build here says so."""
    table = _read_table(folder / OWN_PROJECT)
    if "dependencies" in table:
        return list(table["dependencies"])
    if table and "dependencies" not in table.get("dynamic", ()):
        return []
    project = build_own_project(tree, folder)
    if project.compiled:
        return None
    return list(project.listed) or message_from_string(project.metadata).get_all(_REQUIRES) or []


def list_as_poetry(tree: project_tree.Tree, file: Path) -> tuple[str, ...]:
    """What a project of Poetry's depends on that builds no package; () for any other one."""
    inside = file.name == OWN_PROJECT and file.is_relative_to(tree.root)
    poetrys = inside and _read_table(file, _POETRY)
    return build_own_project(tree, file.parent).listed if poetrys else ()


def leave_out_unbuilt(tree: project_tree.Tree, project: Project) -> Project:
    """For a job that builds none: sources whose machine code is not there would hide the package
    that the nodes have."""
    if not project.compiled or any(
        name.endswith(".so") for name in list_files(tree, project.folder)
    ):
        return project
    return replace(project, paths=(), made=(), own=())


def equip_own_project(tree: project_tree.Tree, projects: Sequence[Project]) -> project_tree.Tree:
    """The tree with the files by which Python and a shell know its projects: for a folder that is
    on PYTHONPATH and whose `bin` is on PATH."""
    # The program's own wins.
    own = {entry[0]: entry for project in reversed(projects) for entry in project.own}
    made = dict(file for project in projects for file in project.made)
    written = {**dict(tree.written), **made}
    return replace(tree, written=tuple(written.items()), own=tuple(own.values()))


def build_own_project(tree: project_tree.Tree, folder: Path) -> Project:
    """What a build makes of the project in that folder; once for the files that decide it."""
    plain = _describe(tree, folder)
    file = find_file(folder)
    poetry = _read_table(folder / file, _POETRY) if file == OWN_PROJECT else {}
    builds = bool(file) and _has_build(folder) and poetry.get("package-mode", True)
    if plain.compiled or not (builds or poetry):
        return plain
    files = list_files(tree, plain.folder)
    key = hash_parts(sys.version, hash_deciding(tree, plain.folder))
    home = find_home()
    path = home.packages / "built" / f"{key}.json"
    with suppress(OSError, msgspec.DecodeError):
        project = msgspec.json.decode(path.read_bytes(), type=Project)
        fresh = not project.content or project.content == hash_files(tree.root, files)
        if fresh and (not project.problem or path.stat().st_mtime > time.time() - TRY_AGAIN):
            return project
    project = _build(tree, plain, files) if builds else plain
    if poetry and (project.problem or not builds):
        project = _ask_poetry(project, folder)
    if project.compiled:
        project = replace(plain, name=project.name, compiled=True)
    home.make(path.parent)
    write_atomic(path, msgspec.json.encode(project))
    return project


def list_files(tree: project_tree.Tree, folder: str) -> list[str]:
    """Those of the project in that folder."""
    place = tree.root / folder
    return [name for name in tree.files if (tree.root / name).is_relative_to(place)]


def find_version(copy: Path, folder: str) -> dict[str, str]:
    """Variables that say the version where git has to be asked for it, which is not on nodes."""
    if not _ASKS_GIT.search(_read_build_files(copy / folder)):
        return {}
    run_uv("build", "--sdist", "--out-dir", str(copy / "none"), str(copy / folder))
    found = next((copy / "none").glob("*.tar.gz"), None)
    version = found.name[: -len(".tar.gz")].rpartition("-")[2] if found else ""
    names = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PDM_BUILD_SCM_VERSION")
    shutil.rmtree(copy / "none", ignore_errors=True)
    return dict.fromkeys(names, version) if version else {}


def _read_build_files(folder: Path) -> str:
    """What describes the project."""
    return "".join(_read_text(folder / name) for name in FILES)


def _has_build(folder: Path) -> bool:
    if find_file(folder) != OWN_PROJECT:
        return True
    with suppress(UsageError):
        return (folder / "setup.py").is_file() or "build-system" in read_toml(folder / OWN_PROJECT)
    return False


def needs_build(tree: project_tree.Tree) -> bool:
    """Whether only a build knows the metadata of some project in the tree."""
    for folder in {(tree.root / n).parent for n in tree.files if os.path.basename(n) in FILES}:
        table = _read_table(folder / OWN_PROJECT)
        static = table.get("name") and table.get("version") and not table.get("dynamic")
        if not static and _has_build(folder):
            return True
    return False


def hash_deciding(tree: project_tree.Tree, folder: str = ".", *, compiled: bool = False) -> str:
    """The digest of what a build depends on, beside the code of packages: which folders have any,
    the files beside pyproject.toml, lists of requirements, and where versions are; machine code, on
    all files that are no Python. "": there is no project."""
    files = list_files(tree, folder)
    built = [name for name in files if os.path.basename(name) in FILES]
    if not built:
        return ""
    said = "".join(_read_text(tree.root / name) for name in built)
    named, parts = {*re.findall(r"\w+", said)}, [folder]
    for name in files:
        place, base = os.path.split(os.path.relpath(name, folder))
        text = partial(_read_text, tree.root / name, -1 if compiled else LARGEST)
        stem, ending = os.path.splitext(base)
        if ending != ".py" or base in FILES:
            decides = compiled or not place or ending in (".txt", ".in", ".toml", ".cfg")
        else:
            parts += [] if compiled or place in parts else [place]
            decides = stem in named or (stem == "__init__" and "version" in text())
            decides |= compiled and "*.py" in said  # cythonize("pkg/*.py")
        parts += [name, text()] if decides else []
    if _ASKS_GIT.search(said):
        words = ["git", "-C", str(tree.root), "describe", "--always", "--dirty"]
        parts.append(process.run(words, timeout=20).text)
    return hash_parts(*parts)


def _read_text(path: Path, most: int = -1) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(most).decode(errors="replace")
    return ""


def hash_files(root: Path, files: Iterable[str]) -> str:
    """Of their names and what is in them."""
    return hash_parts(*(text for name in files for text in (name, _read_text(root / name))))


@contextmanager
def copy_tree(tree: project_tree.Tree) -> Iterator[Path]:
    """A copy, for backends that write beside the sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "tree").resolve()
        for name in tree.files:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):
                shutil.copy2(tree.root / name, copy / name, follow_symlinks=False)
        if (git := tree.root / ".git").exists():  # from which some find the version
            (copy / ".git").write_text(f"gitdir: {git}" if git.is_dir() else git.read_text())
        yield copy


def _build(tree: project_tree.Tree, plain: Project, files: Sequence[str]) -> Project:
    """What uv installs of a copy."""
    with tempfile.TemporaryDirectory() as scratch, copy_tree(tree) as copy:
        out = Path(scratch, "out")
        what = plain.folder if plain.folder != "." else plain.name
        options = ("--no-deps", "--python", sys.executable, "--target", str(out))
        words = ("pip", "install", "--quiet", *options, str(copy / plain.folder))
        try:
            if not run_uv(*words, "--offline").ok:
                call_uv(what, *words)
        except ClusterctlError as error:
            why = error.message.replace(f"{copy}/", "")
            return replace(plain, problem=why)
        return read_installed(out, plain, files, copy, tree.root)


def _ask_poetry(project: Project, folder: Path) -> Project:
    """With what it depends on: Poetry reads that of a project, too, which it does not build."""
    options = ("--quiet", "--no-project", "--isolated", "--python", sys.executable)
    words = ("--with", "poetry-core", "python", "-", str(folder))
    said = run_uv("run", *options, *words, stdin=_ASK_POETRY.encode())
    if said.ok:
        return replace(project, listed=tuple(said.text.splitlines()))
    return replace(project, problem=project.problem or said.why)


def read_installed(
    out: Path, plain: Project, files: Sequence[str], copy: Path, root: Path
) -> Project:
    (info,) = out.glob("*.dist-info")
    metadata = (info / "METADATA").read_text(encoding="utf-8").replace(str(copy), str(root))
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
    return replace(
        plain,
        name=str(message_from_string(metadata)["Name"]),
        metadata=metadata,
        paths=tuple(places) or plain.paths,
        made=tuple(made),
        own=tuple(own),
        compiled=any(name.endswith(".so") for name in missing),
        content=hash_files(root, files) if missing else "",
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


def _describe(tree: project_tree.Tree, folder: Path) -> Project:
    """The project as far as its pyproject.toml says what it is."""
    table = _read_table(folder / OWN_PROJECT)
    name = table.get("name")
    place = str(folder.relative_to(tree.root))
    inner = folder / "src" if (folder / "src").is_dir() else folder
    paths = (str(inner.relative_to(tree.root)),)
    compiled = _has_build(folder) and bool(_COMPILES.search(_read_build_files(folder)))
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        return Project(place, paths=paths, compiled=compiled)
    version = re.sub(r"[^\w.+!]+", "_", str(table.get("version") or UNKNOWN))
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    info = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}.dist-info"
    points, own = "[console_scripts]\n", [(f"{info}/METADATA", metadata.encode(), 0o644)]
    for command, module, function in _list_scripts(table):
        points += f"{command} = {module}:{function}\n"
        first = function.partition(".")[0]
        text = _SCRIPT.format(module=module, first=first, function=function)
        own.append((f"bin/{command}", text.encode(), 0o755))
    own.append((f"{info}/entry_points.txt", points.encode(), 0o644))
    return Project(place, name, metadata, paths, own=tuple(own), compiled=compiled)


def _list_scripts(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The name, the module and the function of each command."""
    scripts = table.get("scripts")
    for name, entry in scripts.items() if isinstance(scripts, dict) else ():
        if (found := _ENTRY.fullmatch(str(entry))) and _COMMAND.fullmatch(name):
            yield name, found[1], found[2]


def _read_table(path: Path, name: str = "project") -> Mapping[str, Any]:
    """That table; empty for a file that is not there, or is not understood, which is said where its
    packages are looked for."""
    table: Any = {}
    with suppress(UsageError, OSError):
        table = read_toml(path)
        for key in name.split("."):
            table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}
