"""Brings the packages of a job to its nodes, which need no internet for that: they are downloaded
here and sent once, and what has no wheel for the nodes is built on one of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shlex import join, quote
from time import monotonic, time

from msgspec import Struct, field
from msgspec.structs import replace

from clusterctl.core import assets
from clusterctl.core.model import Node, NodeResult, make_error
from clusterctl.core.text import count, format_bytes, read_toml
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.jobs.submit import build, spread
from clusterctl.project import own_project
from clusterctl.project import tree as project_tree
from clusterctl.project.contents import FORGOTTEN, read_folder
from clusterctl.project.own_project import (
    FETCH_TIMEOUT,
    Project,
    call_uv,
    check_uv,
    hash_parts,
    run_uv,
)
from clusterctl.project.packages import (
    PROJECT,
    Packages,
    Wanted,
    add_passwords,
    choose_lock,
    locate_packages,
    make_group,
    make_key,
    make_target_options,
    read_packages,
    replace_package,
    require_python,
    resolve_packages,
    save,
)
from clusterctl.project.program import find_closest
from clusterctl.state.home import Home, find_home
from clusterctl.transport.diagnosis import Failure
from clusterctl.transport.pool import Pool

ASK_TIMEOUT = 30.0
NO_PYTHON = 3
"""What a question to a node ends with where the Python that was asked for is missing."""
_PATH = 'PATH="$PATH:$HOME/.local/bin";'
"""Where uv puts the Pythons that it installs, too."""


class Delivery(Struct, frozen=True):
    """How packages get to nodes."""

    pool: Pool
    home: Home
    report: Callable[[str], None]
    tag: str
    """What processes on the cluster are known by."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of the user."""
    within: tuple[str, ...] = ()
    """The packages that are being built for want of others."""


def install(digest: str, nodes: Sequence[Node], by: Delivery) -> None:
    """Brings the job's environment to these nodes, as far as they do not have it. Downloads once,
    builds on one of them what has no wheel, and sends once.

    Raises UsageError for packages that do not fit together, LaunchError where they cannot be
    fetched or installed, or nodes lack a Python that was asked for, NodeUnreachable.
    """
    by_name = {node.name: node for node in nodes}
    questions = {node.name: _ask_for_environment(node, digest) for node in nodes}
    results = by.pool.run(questions, timeout=ASK_TIMEOUT)
    if lacking := [result.node for result in results if result.exit_code == NO_PYTHON]:
        wanted = require_python(by_name[lacking[0]]).executable
        raise LaunchError(
            f"no {wanted} on {', '.join(lacking)}",
            hint=f"install it there (apt-get install {wanted}, or `uv python install"
            f" {wanted.removeprefix('python')}`), or leave out --python",
        )
    alike: dict[str, list[Node]] = {}
    for result in results:
        if result.exit_code is None:
            raise make_error("installing packages", result)
        if not result.ok:
            node = by_name[result.node]
            alike.setdefault(make_key(digest, node), []).append(node)
    for missing in alike.values():
        _install(digest, missing, by)


def _ask_for_environment(node: Node, digest: str) -> str:
    question = f"[ -d {quote(locate_packages(node, digest))} ]"
    python = require_python(node).executable
    if python.startswith("/"):
        return question
    there = f"command -v {python} >/dev/null || exit {NO_PYTHON}"
    return node.enter(f"{_PATH} {there}; {question}")


def check_command(word: str, packages: Packages, node: Node, pool: Pool) -> None:
    """Raises UsageError where neither the job's environment nor the node has such a command."""
    folder, word = f"{locate_packages(node, packages.digest)}/bin", quote(word)
    question = f"ls {quote(folder)} && PATH={quote(folder)}:$PATH && command -v {word} >/dev/null"
    (result,) = pool.run({node.name: node.enter(question)}, timeout=ASK_TIMEOUT)
    if result.exit_code is None:
        raise make_error("installing packages", result)
    if not result.ok:
        close = find_closest(Path(word), result.text.split())
        other = f"for a command that only nodes of the job have: clusterctl run -- {word}"
        if part := own_project.find_part(Path(packages.file).parent, word):
            other = f"{part} has it: clusterctl run {part} {word}"
        raise UsageError(
            f"no script named {word}, and no package of {packages.source} has such a command",
            hint=f"did you mean {close}?" if close else other,
        )


def _install(digest: str, nodes: Sequence[Node], by: Delivery) -> None:
    """On nodes with equal Pythons."""
    started, part = monotonic(), f".{token_hex(4)}"
    places = {node.name: locate_packages(node, digest) for node in nodes}
    try:
        _send(digest, nodes, places[nodes[0].name] + part, by)
        script = assets.render("job/make_venv.py").encode()
        commands = {}
        for node in nodes:
            place = places[node.name]
            words = (require_python(node).executable, "-I", "-", place + part, place)
            commands[node.name] = node.enter(f"{_PATH} {join(words)}")
        for result in by.pool.run(commands, stdin=script, timeout=FETCH_TIMEOUT):
            if not result.ok:
                raise make_error("installing packages", result)
    except ClusterctlError:
        left = {name: f"rm -rf {quote(place + part)}" for name, place in places.items()}
        by.pool.run(left, timeout=ASK_TIMEOUT)
        raise
    seconds = monotonic() - started
    by.report(f"packages are ready on {count(len(nodes), 'node')} after {seconds:.1f} s")


def _send(digest: str, nodes: Sequence[Node], place: str, by: Delivery) -> None:
    """Downloads the packages, and sends them to nodes with equal Pythons, into the environment that
    is made in that place of the first one."""
    node = nodes[0]
    python = require_python(node)
    with tempfile.TemporaryDirectory(dir=by.home.make(by.home.packages)) as scratch:
        packages = Path(scratch, "packages")
        packages.mkdir()
        wanted = read_packages(digest, by.home)
        lock = choose_lock(wanted, node)
        if number := len(lock.packages):
            by.report(f"fetching {count(number, 'package')} for Python {python.version}")
            text = add_passwords(lock.text, Path(wanted.file))
            _fetch(text, packages, wanted, node, by)
        if size := sum(path.lstat().st_size for path in packages.rglob("*")):
            where = node.name if len(nodes) == 1 else f"{len(nodes)} nodes"
            by.report(f"copying {format_bytes(size)} of packages to {where}")
        minor = ".".join(python.version.split(".")[:2])
        folder = f"{os.path.relpath(place, node.root)}/lib/python{minor}/site-packages"
        try:
            content = read_folder(packages, by.home)
        except Failure as error:
            raise LaunchError(str(error), hint="run it again") from error
        for result in spread(by.pool, nodes, folder, content, link=True, timeout=FETCH_TIMEOUT):
            if not result.ok:
                raise make_error("installing packages", result)


def _fetch(text: str, target: Path, wanted: Packages, node: Node, by: Delivery) -> None:
    """Has uv install what the lock names into `target`. Where it would build something, it is given
    the wheel that the node builds."""
    lock, sources = target.with_name("pylock.toml"), target.with_name("build") / SOURCE
    options = ["--no-deps", "--target", str(target), "--requirements", str(lock)]
    # What a build needs is the node's matter.
    words = ("pip", "install", "--quiet", "--no-build-isolation", *options)
    project = Path(wanted.file).parent
    where = project if project.is_dir() else None
    while True:
        lock.write_text(text, encoding="utf-8")
        result = run_uv(*words, *make_target_options(node), cwd=where, sources=sources)
        found = _BUILDING.search(result.complaints)
        if result.ok or found is None or not sources.is_dir():
            check_uv(wanted.source, result, where)
            return
        wheel = build_wheel(found[1], sources.parent, ".", node, by)
        text = replace_package(text, found[1], wheel)
        shutil.rmtree(sources.parent)


# -------------------------------------------------------------------------------------------------
# What has no wheel for the nodes is built on one of them.


SOURCE = "source"
"""The folder of sources in that of a build."""
BUILD_SHOWN = 12
"""Lines of its output that are shown of a build that fails."""
NEEDS = 86
"""What a build ends with that asks for more packages."""
_BUILDING = re.compile(r"Failed to build `([\w.-]+)")
_HEEDED = re.compile(
    r"CC|CXX|FC|[A-Z]*FLAGS|MPI(CC|CXX)|(CUDA|CMAKE|NVCC|SKBUILD|MESON|CARGO)_\w+|CUDACXX|MAX_JOBS|\w+_ARCH_LIST"
)
"""Variables of the user that builds get."""
_LACKS = {
    r"Python\.h": "python3-dev",
    r"mpi\.h: No such|No such file.*mpicc|mpicc: not found|compile MPI": "libopenmpi-dev",
    r"(No such.*|c)\+\+'|\+\+' failed: No|execute .?cc1plus|No CMAKE_CXX_COMP": "g++",
    r"No such.*cc'|cc' failed: No|No CMAKE_C_COMP|[Uu]nknown compiler|linker `cc` not": "gcc",
}
"""Packages of Debian, by what a build says that lacks them."""


def build_wheel(
    what: str,
    scratch: Path,
    folder: str,
    node: Node,
    by: Delivery,
    key: str = "",
    variables: Mapping[str, str] = {},
) -> Path:
    """The wheel of what lies in that folder of `scratch`/source, built on the node by its Python in
    an environment of its own; once for what is in it, or for `key`."""
    described = scratch / SOURCE / folder / PROJECT
    table = read_toml(described).get("build-system", {}) if described.is_file() else {}
    given = list(table.get("requires", ["setuptools"]))
    shutil.copy(assets.find_folder("templates") / "job" / "build_wheel.py", scratch)
    (scratch / "tag").write_text(f"CLUSTERCTL_JOB={by.tag}/build-{token_hex(4)};")
    content = read_folder(scratch, by.home)
    rows = (f"{e.path} {e.digest}" for e in content.entries if e.path.startswith(f"{SOURCE}/"))
    kept = _locate_built(what, node, key or hash_parts(*rows), by.home, by.variables)
    if wheel := next(kept.glob("*.whl"), None):
        return wheel
    for path in kept.parent.iterdir() if kept.parent.is_dir() else ():
        if path.lstat().st_mtime < time() - FORGOTTEN:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if what in by.within:
        raise LaunchError(f"{what} has no wheel, and cannot be built without itself", hint=what)
    remote = f"builds/{token_hex(8)}"
    root = f"{node.root}/{remote}"
    options = {
        "paths": table.get("backend-path", ()),
        "backend": table.get("build-backend", "setuptools.build_meta:__legacy__"),
        "out": f"{root}/out",
        "needs": NEEDS,
    }
    try:
        for result in spread(by.pool, [node], remote, content, timeout=FETCH_TIMEOUT):
            if not result.ok:
                raise make_error(f"sending {what}", result)
        while True:
            environment = _make_build_environment(what, given, node, by)
            bins = (f"{environment}/bin", node.mpi_prefix and f"{node.mpi_prefix}/bin", "$PATH")
            paths = {"PATH": ":".join(filter(None, bins))}
            script = (f"{root}/build_wheel.py", json.dumps({**options, "given": given}))
            settings = {
                "argv": [f"{environment}/bin/python", "-I", *script],
                "folder": f"{root}/{SOURCE}/{folder}",
                "variables": {**_choose_heeded(by.variables), **variables, **paths},
            }
            result = build(node, root, settings, what, by.pool, by.report)
            if result.exit_code != NEEDS:
                break
            given += json.loads(result.text.splitlines()[-1])
        _check_build(what, result, node, kept, by.home)
        by.home.make(kept.parent)
        part = kept.with_name(f"{kept.name}.{token_hex(4)}")
        got = by.pool.find_transport(node.name).get(f"{root}/out", part, timeout=FETCH_TIMEOUT)
        if not got.ok:
            raise make_error(f"fetching {what}", got)
        with suppress(OSError):  # another job was faster
            part.replace(kept)
        return next(kept.glob("*.whl"))
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            by.pool.run({node.name: f"rm -rf {quote(root)}"}, timeout=ASK_TIMEOUT)


def build_projects(
    projects: Sequence[Project], tree: project_tree.Tree, nodes: Iterable[Node], by: Delivery
) -> list[Project]:
    """The projects with what is compiled of them, by the first node of each kind."""
    alike = {make_group(node): node for node in reversed(list(nodes))}
    found: list[Project] = []
    for one in projects:
        kinds = alike.values() if one.compiled else ()
        found += [_build_project(one, tree, node, by) for node in kinds] or [one]
    return found


def _build_project(project: Project, tree: project_tree.Tree, node: Node, by: Delivery) -> Project:
    what, folder = project.title, project.folder
    with tempfile.TemporaryDirectory(dir=by.home.make(by.home.packages)) as scratch:
        copy, out = Path(scratch, SOURCE), Path(scratch, "out")
        wheel = find_built(project, tree, node, by.variables)
        if wheel is None:
            with own_project.copy_tree(tree) as copied:
                variables = own_project.find_version(copied, folder)
                (copied / ".git").unlink(missing_ok=True)
                shutil.move(copied, copy)
            key = own_project.hash_deciding(tree, folder, compiled=True)
            wheel = build_wheel(what, Path(scratch), folder, node, by, key, variables)
        words = ("--quiet", "--no-deps", "--target", str(out), *make_target_options(node))
        call_uv(what, "pip", "install", *words, str(wheel))
        files = own_project.list_files(tree, folder)
        return own_project.read_installed(out, project, files, copy, tree.root)


def find_built(
    project: Project, tree: project_tree.Tree, node: Node, variables: Mapping[str, str]
) -> Path | None:
    """What the node would compile of it, as far as it is here."""
    key = own_project.hash_deciding(tree, project.folder, compiled=True)
    folder = _locate_built(project.title, node, key, find_home(), variables)
    return next(folder.glob("*.whl"), None)


def _locate_built(
    what: str, node: Node, key: str, home: Home, variables: Mapping[str, str]
) -> Path:
    """The folder here of what nodes like this one have built of that content."""
    heeded = (f"{name}={value}" for name, value in sorted(_choose_heeded(variables).items()))
    parts = (what, key, make_group(node), node.mpi_prefix, *heeded)
    folder = home.packages / "built" / hash_parts(*parts)
    with suppress(FileNotFoundError):
        os.utime(folder)
    return folder


def _choose_heeded(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if _HEEDED.fullmatch(name)}


def _make_build_environment(what: str, requires: Sequence[str], node: Node, by: Delivery) -> str:
    """Where an environment with these packages is on the node."""
    source, lines = f"the build of {what}", "".join(f"{line}\n" for line in requires)
    file = by.home.packages / PROJECT if requires else None
    wanted = Wanted(source, file, lines, lines=lines)
    empty = project_tree.make_empty(by.home.packages)
    packages, _ = resolve_packages(wanted, empty, [node], in_any_case=True)
    assert packages is not None
    save(packages, by.home)
    install(packages.digest, [node], replace(by, within=(*by.within, what)))
    return locate_packages(node, packages.digest)


def _check_build(what: str, result: NodeResult, node: Node, kept: Path, home: Home) -> None:
    if result.exit_code is None:
        raise make_error(f"building {what}", result)
    if result.ok:
        return
    log = home.make(kept.parent) / f"{kept.name}.log"
    log.write_bytes(result.stdout)
    last = result.text.splitlines()[-BUILD_SHOWN:]
    lacks = next((name for told, name in _LACKS.items() if re.search(told, "\n".join(last))), "")
    hint = f"on the node: apt-get install {lacks}; " if lacks else ""
    hint += f"all that it printed: {log}"
    raise LaunchError("\n".join((f"{what} cannot be built on {node.name}:", *last)), hint=hint)
