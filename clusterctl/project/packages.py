"""The packages that a program asks for (its requirements files), beside those of the nodes' Python:
resolved and downloaded here by uv, and brought to the nodes, which need no internet.

What a job asks for is kept in the state home under the digest of its text, so that a job can be run
again. The environment of a node is a folder named by that and by what it adds to: the node's Python
with its torch and mpi4py, which are kept.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email import message_from_string
from pathlib import Path
from secrets import token_hex
from shlex import join, quote
from time import monotonic
from typing import Any
from zipfile import ZipFile

import msgspec

from clusterctl.core import assets
from clusterctl.core.job import PYTHONS, SHELLS, ProgramKind
from clusterctl.core.model import Cluster, Node, Python, make_error
from clusterctl.core.text import count, format_bytes, parse_toml, read_toml
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.project import own_project
from clusterctl.project import tree as project_tree
from clusterctl.project.own_project import (
    FETCH_TIMEOUT,
    NONE,
    call_uv,
    hash_parts,
    is_like_here,
    make_plain_name,
)
from clusterctl.project.program import Resolved, find_closest
from clusterctl.project.words import find_shell_text
from clusterctl.state.files import write_atomic
from clusterctl.state.home import Home
from clusterctl.transport.pool import Pool

KEPT = ("torch", "mpi4py")
"""Packages of the nodes' Python that fit their GPUs and their MPI: others are not put in their
place unless a lock, or a file that was asked for, pins another version."""
ASK_TIMEOUT = 30.0
NO_PYTHON = 3
"""What a question to a node ends with where the Python that was asked for is missing."""

_CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-(bindings|pathfinder|toolkit)$|(pytorch-)?triton\b")
"""What torch alone needs, and brings itself: gigabytes."""


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


def save(wanted: Wanted, home: Home) -> None:
    """Keeps what a job asks for, for its environment and for a rerun."""
    path = _locate_stored(home, wanted.digest)
    if path.is_file():
        return
    home.make(path.parent)
    write_atomic(path, msgspec.json.encode(wanted))


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
    return f"{node.root}/packages/{_make_key(digest, node)}"


def _make_key(digest: str, node: Node) -> str:
    python = _require_python(node)
    kept = (f"{name}=={version}" for name, version in _find_kept(python).items())
    return hash_parts(digest, python.executable, python.version, node.facts.arch, *kept)[:16]


def _require_python(node: Node) -> Python:
    if node.facts.python is None:
        raise LaunchError(f"no Python on {node.name}", hint="on the node: apt-get install python3")
    return node.facts.python


def _find_kept(python: Python) -> dict[str, str]:
    return {name: python.packages[name] for name in KEPT if name in python.packages}


def describe_packages(wanted: Wanted, nodes: Sequence[Node]) -> str:
    """What is installed, and what of the nodes is kept."""
    kept = {
        f"{name} {v}" for node in nodes for name, v in _find_kept(_require_python(node)).items()
    }
    beside = f" beside {' and '.join(sorted(kept))} of the nodes" if kept else ""
    python = {_require_python(node).executable for node in nodes} if wanted.texts else set()
    other = "".join(f" with {name} of the nodes" for name in python if not name.startswith("/"))
    off = "" if wanted.requirements is None else f" (`--requirements {NONE}` turns this off)"
    return f"using the packages of {wanted.source}{beside}{other}{off}"


def read_versions(digest: str, node: Node, home: Home) -> tuple[str, ...]:
    """The packages of the job's environment on that node, as `name==version`."""
    if not digest or node.facts.python is None:
        return ()
    with suppress(OSError):
        text = (home.packages / f"{_make_key(digest, node)}.txt").read_text(encoding="utf-8")
        return tuple(entry.split()[0] for entry in list_entries(text))
    return ()


def install(
    digest: str,
    cluster: Cluster,
    names: Sequence[str],
    pool: Pool,
    home: Home,
    report: Callable[[str], None],
) -> None:
    """Brings the job's environment to these nodes, as far as they do not have it. Downloads once:
    what one node has, it sends on to the others.

    Raises UsageError for packages that do not fit together, LaunchError where they cannot be
    fetched or installed, NodeUnreachable.
    """
    if not digest:
        return
    alike: dict[str, list[Node]] = {}
    for name in names:
        node = cluster.node(name)
        alike.setdefault(_make_key(digest, node), []).append(node)
    for key, nodes in alike.items():
        _Environment(digest, key, pool, home, report).bring_to(nodes)


def check_command(word: str, wanted: Wanted, nodes: Sequence[Node], pool: Pool) -> None:
    """Raises UsageError where the job's environment has no command of that name."""
    commands = {
        node.name: (
            f"cd {quote(locate_packages(node, wanted.digest))}/bin && ls && [ -x {quote(word)} ]"
        )
        for node in nodes[:1]
    }
    for result in pool.run(commands, timeout=ASK_TIMEOUT):
        if result.exit_code is None:
            raise make_error("installing packages", result)
        if not result.ok:
            close = find_closest(Path(word), result.text.split())
            raise UsageError(
                f"no script named {word!r}, and no package of {wanted.source} has such a command",
                hint=f"did you mean {close}?"
                if close
                else f"for a command of the nodes: clusterctl run -- {word}",
            )


class _Environment:
    """One for nodes with equal Pythons."""

    def __init__(
        self, digest: str, key: str, pool: Pool, home: Home, report: Callable[[str], None]
    ) -> None:
        self._digest, self._key, self._pool, self._home = digest, key, pool, home
        self._report = report
        self._part = f".{token_hex(4)}"

    def bring_to(self, nodes: Sequence[Node]) -> None:
        by_name = {node.name: node for node in nodes}
        questions = {node.name: self._make_question(node) for node in nodes}
        found = self._pool.run(questions, timeout=ASK_TIMEOUT)
        for result in found:
            if result.exit_code is None:
                raise make_error("installing packages", result)
        if lacking := [result.node for result in found if result.exit_code == NO_PYTHON]:
            wanted = _require_python(nodes[0]).executable
            raise LaunchError(
                f"no {wanted} on {', '.join(lacking)}",
                hint=f"install it there (apt-get install {wanted}, or `uv python install"
                f" {wanted.removeprefix('python')}`), or leave out --python",
            )
        holders = [by_name[result.node] for result in found if result.ok]
        missing = [by_name[result.node] for result in found if not result.ok]
        if not missing:
            return
        started, number = monotonic(), len(missing)
        try:
            if not holders:
                self._send(missing[0])
                holders.append(missing.pop(0))
            while missing:
                receivers = missing[: len(holders)]
                self._pass_on(
                    dict(zip((h.name for h in holders), receivers, strict=False)), by_name
                )
                holders += receivers
                missing = missing[len(receivers) :]
        except ClusterctlError:
            left = {
                node.name: f"rm -rf {quote(self._locate_scratch(node))}"
                for node in nodes
                if node not in holders
            }
            self._pool.run(left, timeout=ASK_TIMEOUT)
            raise
        where = count(number, "node")
        self._report(f"packages are ready on {where} after {monotonic() - started:.1f} s")

    def _make_question(self, node: Node) -> str:
        """Whether it is there; and where a Python was asked for by its version, whether that is."""
        there = f"[ -d {quote(locate_packages(node, self._digest))} ]"
        python = _require_python(node).executable
        if python.startswith("/"):
            return there
        lacks = f"{_PATH} command -v {python} >/dev/null || exit {NO_PYTHON}"
        return _run_inside(node, f"{there} && exit; {lacks}; exit 1")

    def _locate_scratch(self, node: Node) -> str:
        return locate_packages(node, self._digest) + self._part

    def _locate_packages(self, node: Node, root: str) -> str:
        minor = ".".join(_require_python(node).version.split(".")[:2])
        return f"{root}/lib/python{minor}/site-packages"

    def _send(self, node: Node) -> None:
        """Downloads the packages, and sends them to the first node."""
        python = _require_python(node)
        with tempfile.TemporaryDirectory(dir=self._home.make(self._home.packages)) as scratch:
            lock, packages = Path(scratch, "lock.txt"), Path(scratch, "packages")
            packages.mkdir()
            wanted = self._read_wanted()
            text = self._resolve(node, wanted)
            lines = list_lines(wanted.texts)
            lock.write_text("\n".join((*lines, text)), encoding="utf-8")
            number = len(list_entries(text))
            self._report(f"fetching {count(number, 'package')} for Python {python.version}")
            if number:
                options = ["--no-deps", "--target", str(packages), "--requirements", str(lock)]
                # Versions are decided: one that only a later index has is looked for there.
                options += ["--index-strategy", "unsafe-best-match"]
                if any("--hash" in text for text in wanted.texts.values()):
                    options += ["--constraints", str(write_texts(wanted, Path(scratch)))]
                if not is_like_here(node):
                    options += ["--no-build"]
                target = make_target_options(node)
                call_uv(wanted.source, "pip", "install", "--quiet", *options, *target)
            size = sum(path.lstat().st_size for path in packages.rglob("*"))
            self._report(f"copying {format_bytes(size)} of packages to {node.name}")
            place = self._locate_packages(node, self._locate_scratch(node))
            sent = self._pool.find_transport(node.name).put(packages, place, timeout=FETCH_TIMEOUT)
        if not sent.ok:
            raise make_error("installing packages", replace(sent, node=node.name))
        self._set_up([node])

    def _read_wanted(self) -> Wanted:
        stored = _locate_stored(self._home, self._digest)
        try:
            return msgspec.json.decode(stored.read_bytes(), type=Wanted)
        except (OSError, msgspec.DecodeError) as error:
            raise LaunchError(
                f"the list of packages of this job cannot be read: {stored}",
                hint="start it again with `clusterctl run`",
            ) from error

    def _resolve(self, node: Node, wanted: Wanted) -> str:
        """Exact versions for that node; decided once."""
        path = self._home.packages / f"{self._key}.txt"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        python = _require_python(node)
        kept = _keep(wanted, node, self._report)
        self._report(f"resolving the packages of {wanted.source} for Python {python.version}")
        text = (
            next(iter(wanted.texts.values()))
            if wanted.locked
            else resolve_packages(wanted, kept, node)
        )
        entries = [
            entry
            for entry in list_entries(text)
            if read_name(entry) not in kept
            and not ("torch" in kept and _CUDA.match(read_name(entry)))
        ]
        if not wanted.decides and any(read_name(entry) == "torch" for entry in entries):
            raise LaunchError(
                f"{wanted.source} needs torch, which {node.name} does not have",
                hint=f"`--requirements {wanted.source}` installs it (it may be gigabytes),"
                f" `--requirements {NONE}` installs nothing",
            )
        text = "".join(f"{entry}\n" for entry in entries)
        write_atomic(path, text.encode())
        return text

    def _pass_on(self, pairs: dict[str, Node], nodes: dict[str, Node]) -> None:
        """From each of these nodes to another one, over the network between them."""
        commands = {}
        for name, target in pairs.items():
            node = nodes[name]
            place = quote(self._locate_packages(target, self._locate_scratch(target)))
            there = f"mkdir -p {place} && TAR_OPTIONS= tar -xof - -C {place}"
            packages = quote(self._locate_packages(node, locate_packages(node, self._digest)))
            commands[name] = (
                f"TAR_OPTIONS= tar -C {packages} -cf - . |"
                f" {quote(node.root)}/bin/clusterctl-ssh {target.name} {quote(there)}"
            )
        for result in self._pool.run(commands, timeout=FETCH_TIMEOUT):
            if not result.ok:
                target_name = pairs[result.node].name
                raise make_error(f"copying packages to {target_name} from {result.node}", result)
        self._set_up(list(pairs.values()))

    def _set_up(self, nodes: Sequence[Node]) -> None:
        script = assets.render("job/make_venv.py").encode()
        commands = {}
        for node in nodes:
            words = (self._locate_scratch(node), locate_packages(node, self._digest))
            command = join((_require_python(node).executable, "-I", "-", *words))
            commands[node.name] = _run_inside(node, f"{_PATH} {command}")
        for result in self._pool.run(commands, stdin=script, timeout=FETCH_TIMEOUT):
            if not result.ok:
                raise make_error("installing packages", result)


_PATH = 'PATH="$PATH:$HOME/.local/bin";'
"""Where uv puts the Pythons that it installs, too."""


def _run_inside(node: Node, command: str) -> str:
    """The command where the node's Python is: in its container, where it has one."""
    if node.job_port == node.ssh_port:
        return command
    return f"exec {quote(f'{node.root}/bin/clusterctl-ssh')} {node.name} {quote(command)}"


def _keep(wanted: Wanted, node: Node, report: Callable[[str], None]) -> dict[str, str]:
    """What of the node's Python stays: all but what the file pins to another version."""
    kept = {}
    for name, version in _find_kept(_require_python(node)).items():
        pattern = rf"(?mi)(?:^|[\"'\s]){name}(?:\[[^]]*\])?\s*===?\s*([0-9][\w.+!*]*)"
        pins = [pin for text in wanted.texts.values() for pin in re.findall(pattern, text)]
        if not pins or any(_is_same(pin, version) for pin in pins):
            kept[name] = version
            continue
        if not wanted.decides:
            raise LaunchError(
                f"{wanted.source} pins {name} {pins[0]}, and {node.name} has {name} {version}",
                hint=f"`--requirements {wanted.source}` installs that of the file,"
                f" `--requirements {NONE}` installs nothing",
            )
        report(f"{name} {pins[0]} of {wanted.source} is used instead of the nodes' {version}")
    return kept


def _is_same(pin: str, version: str) -> bool:
    """Whether `==PIN` takes that version, as far as pins of torch are written."""
    if "+" not in pin:
        version = version.partition("+")[0]
    if pin.endswith(".*"):
        return f"{version}.".startswith(pin[:-1])
    return re.sub(r"(\.0)+$", "", pin) == re.sub(r"(\.0)+$", "", version)


def _locate_stored(home: Home, digest: str) -> Path:
    return home.packages / f"{digest}.json"


# -------------------------------------------------------------------------------------------------
# The packages that a program asks for, as --requirements or the files of its tree name them.


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

PROJECT, LOCK = own_project.OWN_PROJECT, "uv.lock"

_CONDA = ("environment.yml", "environment.yaml")
SUFFIXES = (".yml", ".yaml")
_PIP_SECTION = re.compile(
    r"(?m)^(?P<indent> *)- +pip: *(?:#.*)?\n(?P<items>(?:(?P=indent) +\S.*(?:\n|\Z)|\s*?\n)*)"
)
_DEPENDENCIES = re.compile(r"(?ms)^dependencies:(.*?)(?=^[a-z]|\Z)")


def find_package_files(resolved: Resolved, given: str, python: str = "") -> Wanted | None:
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


def _find_in(folder: Path, tree: project_tree.Tree) -> Wanted | None:
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


def _read_lock(folder: Path, lock: Path, tree: project_tree.Tree, *, asked: bool) -> Wanted:
    """What uv makes of the lock for the project in that folder. Projects of the tree in it are used
    where they lie."""
    options = ("--quiet", "--frozen", "--no-dev", "--no-header", "--no-annotate")
    text = call_uv(LOCK, "export", *options, "--project", str(folder))
    project = _read_text(folder / PROJECT)
    lines = list_tables({PROJECT: project}, only_some=True)
    folders = []
    for entry in list_entries(re.sub("(?m)^-e ", "", text)):
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
        folders=tuple(one.folder for one in own_project.collect_own_project(tree, folders)),
    )


def _read_project(folder: Path, tree: project_tree.Tree, *, asked: bool) -> Wanted | None:
    """What the project in that folder depends on; None for nothing. uv reads what its
    pyproject.toml says by itself; the rest is known when it is built."""
    source = own_project.find_file(folder)
    if not source:
        return None
    whole = read_toml(folder / PROJECT) if (folder / PROJECT).is_file() else {}
    table = whole.get("project", {})
    if "dependencies" in table:
        texts, lines = {PROJECT: _read_text(folder / PROJECT)}, list(table["dependencies"])
        needs = own_project.list_sources(folder, tree.root)
        projects = own_project.collect_own_project(tree, (tree.root / place for place in needs))
    else:
        project, *projects = own_project.collect_own_project(tree, [folder])
        given = {PROJECT: _read_text(folder / PROJECT)} if whole else {}
        lines = project.requirements
        indexes = list_tables(given, only_some=False)
        texts = {"requirements.txt": "\n".join((*indexes, *lines, ""))}
    return _add_local(Wanted(source, texts, asked), projects, lines) if lines else None


def _add_local(
    wanted: Wanted, projects: Sequence[own_project.Project], lines: Iterable[str]
) -> Wanted:
    """With the projects of the tree that it needs; `lines`: its requirements."""
    local = {make_plain_name(one.name): one.essentials for one in projects if one.name}
    requirements: tuple[str, ...] | None = None
    if not wanted.asked:
        every = [*lines, *(line for project in projects for line in project.requirements)]
        inner = [line for line in every if read_name(line) in local]
        if not any("[" in line for line in inner):  # extras, which only uv follows
            requirements = tuple(line for line in every if line not in inner)
    folders = tuple(project.folder for project in projects)
    return replace(wanted, local=local, folders=folders, requirements=requirements)


def _read_conda(path: Path, tree: project_tree.Tree, *, asked: bool = False) -> Wanted | None:
    """What its section `pip` asks for; None for a file that asks for nothing."""
    text = _read_text(path)
    others = "".join(_DEPENDENCIES.findall(_PIP_SECTION.sub("", text)))
    warning = ""
    if "[" in others or re.search(r"(?m)^ *- +(?!(?:pip|python)\b)", others):
        warning = (
            f"{path.name}: conda's packages are not installed, only those below `- pip:`;"
            " `pip freeze >requirements.txt` in its environment lists all"
        )
    if not (warning or _PIP_SECTION.search(text)):
        return None
    return replace(_read_lines(path, tree, asked=asked), warning=warning)


def _read_pip_section(text: str) -> str:
    """The requirements of an environment.yml that pip installs."""
    items = "".join(section["items"] for section in _PIP_SECTION.finditer(text))
    lines = (found[2] for found in re.finditer(r"(?m)^\s*- +([\"']?)(.*?)\1\s*(?:\s#.*)?$", items))
    return "".join(f"{line}\n" for line in lines)


def _list_lines(texts: Mapping[str, str]) -> Iterator[str]:
    """The requirements of these files, without hashes and comments."""
    for text in texts.values():
        for line in re.sub(r"\\\n", " ", text).splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).split(" --hash")[0].strip()
            if words and not words.startswith("-"):
                yield words


def _read(path: Path, tree: project_tree.Tree, *, asked: bool) -> Wanted:
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
    if path.suffix in SUFFIXES:
        if environment := _read_conda(path, tree, asked=asked):
            return environment
        raise UsageError(f"{path} names no packages for pip", hint="check its `dependencies`")
    if path.suffix not in (".txt", ".in"):
        raise UsageError(
            f"--requirements: {path} is not a file of packages",
            hint="uv.lock, pyproject.toml, setup.py, a requirements .txt file, environment.yml, or"
            " a script with a block",
        )
    return _read_lines(path, tree, asked=asked)


def _read_lines(path: Path, tree: project_tree.Tree, *, asked: bool) -> Wanted:
    """What a file of requirements says, or conda's, with those that it includes."""
    texts: dict[str, str] = {}
    folders: list[Path] = []
    _collect(path, path.parent, texts, folders, tree)
    projects = own_project.collect_own_project(tree, folders)
    return _add_local(Wanted(path.name, texts, asked), projects, _list_lines(texts))


def _collect(
    path: Path, root: Path, texts: dict[str, str], folders: list[Path], tree: project_tree.Tree
) -> None:
    """A requirements file, or conda's, and those that it includes; a project of the tree in them by
    its name."""
    name = os.path.relpath(path, root)
    conda = path.suffix in SUFFIXES
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
        text = _read_pip_section(text)

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
        own = own_project.collect_own_project(tree, [folder])[0].name
        return f"{own}{extras}\n" if own else ""

    text = make_absolute(_LOCAL.sub(name_project, text), path.parent)
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


# -------------------------------------------------------------------------------------------------
# What uv makes of it: exact versions for the Python and the platform of a node.


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
        return call_uv(
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


def write_texts(wanted: Wanted, folder: Path) -> Path:
    """Writes the files of what is asked for; returns the first one."""
    for name, text in wanted.texts.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "files" / next(iter(wanted.texts))


def make_target_options(node: Node) -> tuple[str, ...]:
    """Options for the packages of a node that has a Python."""
    version = node.facts.python.version if node.facts.python else ""
    platform = f"{node.facts.arch}-manylinux_2_28"
    own = ("--python", sys.executable)
    return (*own, "--python-version", version, "--python-platform", platform)


def list_entries(text: str) -> list[str]:
    """The requirements of a file that uv wrote, each with its hashes."""
    parts = re.split(r"\n(?=\S)", text.strip())
    return [part for part in parts if part and not part.startswith(("#", "-"))]


def read_name(entry: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", entry)
    return make_plain_name(found[0]) if found else ""


# -------------------------------------------------------------------------------------------------
# Whether the Python of a node has what a project's requirements ask for. Pure.


_CONSTRAINTS = re.compile(r"(?m)^\s*(?:-c|--constraints?)\b")


def has_all(wanted: Wanted, nodes: Iterable[Node]) -> bool:
    """Whether nothing has to be installed on any of them, by their facts. False as well where
    only uv can tell: for extras, URLs and constraints."""
    if wanted.requirements is None or any(
        _CONSTRAINTS.search(text) for text in wanted.texts.values()
    ):
        return False
    return all(
        node.facts.python is not None and _has_all(wanted.requirements, node.facts.python, node)
        for node in nodes
    )


def _has_all(requirements: Iterable[str], python: Python, node: Node) -> bool:
    there = dict(_list_installed(python))
    # The usual answer, without the library: that takes longer than all else here.
    if any(";" not in line and read_name(line.strip()) not in there for line in requirements):
        return False
    from packaging.requirements import InvalidRequirement, Requirement

    surroundings = {
        "python_version": ".".join(python.version.split(".")[:2]),
        "python_full_version": python.version,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": node.facts.arch,
        "os_name": "posix",
        "extra": "",
    }
    try:
        asked = [Requirement(line) for line in requirements]
    except InvalidRequirement:
        return False  # uv says what is wrong with it
    for one in asked:
        if one.marker and not one.marker.evaluate(surroundings):
            continue
        version = there.get(read_name(one.name), "")
        if not version or one.extras or one.url:
            return False
        if not one.specifier.contains(version, prereleases=True):
            return False
    return True


def _list_installed(python: Python) -> Iterator[tuple[str, str]]:
    """Names, normalised, and versions."""
    yield from python.packages.items()
    for word in python.installed.split():
        name, _, version = word.partition("==")
        yield name, version
