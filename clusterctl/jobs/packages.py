"""The packages that a program asks for (see `package_sources`), beside those of the nodes' Python:
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from shlex import join, quote
from time import monotonic

import msgspec

from clusterctl import assets
from clusterctl.errors import ClusterctlError, LaunchError, UsageError
from clusterctl.formats import count, format_bytes
from clusterctl.jobs import package_indexes, uv
from clusterctl.jobs.package_model import NONE, Wanted, hash_parts
from clusterctl.jobs.program import find_closest
from clusterctl.model import Cluster, Node, Python
from clusterctl.node_results import make_error
from clusterctl.state import Home
from clusterctl.state.home import write_atomic
from clusterctl.transfer_meter import COPIED
from clusterctl.transport.pool import Pool

KEPT = ("torch", "mpi4py")
"""Packages of the nodes' Python that fit their GPUs and their MPI: others are not put in their
place unless a lock, or a file that was asked for, pins another version."""
ASK_TIMEOUT = 30.0
NAMED = 8
"""Lines of a file that are named where they are left out."""

_CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-(bindings|pathfinder|toolkit)$|(pytorch-)?triton\b")
"""What torch alone needs, and brings itself: gigabytes."""


def save(wanted: Wanted, home: Home) -> None:
    """Keeps what a job asks for, for its environment and for a rerun."""
    path = _locate_stored(home, wanted.digest)
    if path.is_file():
        return
    home.make(path.parent)
    write_atomic(path, msgspec.json.encode(wanted))


def choose(cluster: Cluster, python: str) -> Cluster:
    """The cluster with that Python on its nodes (`3.12`), by its name there and without packages;
    "": its own one."""
    if not python:
        return cluster
    other = Python(executable=f"python{python}", version=python)
    nodes = (replace(node, facts=replace(node.facts, python=other)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def equip(cluster: Cluster, digest: str) -> Cluster:
    """The cluster with the Python of the job's environment on its nodes."""
    if not digest:
        return cluster
    nodes = (
        replace(node, python=f"{locate(node, digest)}/bin/python") if node.facts.python else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=tuple(nodes))


def locate(node: Node, digest: str) -> str:
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


def describe(wanted: Wanted, nodes: Sequence[Node]) -> str:
    """What is installed, and what of the nodes is kept."""
    kept = {
        f"{name} {v}" for node in nodes for name, v in _find_kept(_require_python(node)).items()
    }
    beside = f" beside {' and '.join(sorted(kept))} of the nodes" if kept else ""
    python = {_require_python(node).executable for node in nodes} if wanted.texts else set()
    other = "".join(f" with {name} of the nodes" for name in python if not name.startswith("/"))
    off = "" if wanted.requirements is None else f" (`--requirements {NONE}` turns this off)"
    return f"using the packages of {wanted.source}{beside}{other}{_describe_left_out(wanted)}{off}"


def _describe_left_out(wanted: Wanted) -> str:
    """`, without python=3.11, cudatoolkit`: the first ones by name."""
    named, more = wanted.left_out[:NAMED], len(wanted.left_out) - NAMED
    beyond = f" and {more} more" if more > 0 else ""
    return f", without {', '.join(named)}{beyond}" if named else ""


def read_versions(digest: str, node: Node, home: Home) -> tuple[str, ...]:
    """The packages of the job's environment on that node, as `name==version`."""
    if not digest or node.facts.python is None:
        return ()
    with suppress(OSError):
        text = (home.packages / f"{_make_key(digest, node)}.txt").read_text(encoding="utf-8")
        return tuple(entry.split()[0] for entry in uv.list_entries(text))
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
        node.name: f"cd {quote(locate(node, wanted.digest))}/bin && ls && [ -x {quote(word)} ]"
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
        questions = {node.name: f"[ -d {quote(locate(node, self._digest))} ]" for node in nodes}
        found = self._pool.run(questions, timeout=ASK_TIMEOUT)
        for result in found:
            if result.exit_code is None:
                raise make_error("installing packages", result)
        holders = [by_name[result.node] for result in found if result.ok]
        missing = [by_name[result.node] for result in found if not result.ok]
        if not missing:
            return
        started, number = monotonic(), len(missing)
        self._find_python(missing)
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

    def _locate_scratch(self, node: Node) -> str:
        return locate(node, self._digest) + self._part

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
            lines = package_indexes.list_lines(wanted.texts)
            lock.write_text("\n".join((*lines, text)), encoding="utf-8")
            number = len(uv.list_entries(text))
            self._report(f"fetching {count(number, 'package')} for Python {python.version}")
            if number:
                options = ["--no-deps", "--target", str(packages), "--requirements", str(lock)]
                # Versions are decided: one that only a later index has is looked for there.
                options += ["--index-strategy", "unsafe-best-match"]
                target = uv.make_target_options(node)
                with COPIED.count_download():
                    uv.call("packages", "pip", "install", "--quiet", *options, *target)
            self._check_platform(packages, node)
            size = sum(path.lstat().st_size for path in packages.rglob("*"))
            self._report(f"copying {format_bytes(size)} of packages to {node.name}")
            place = self._locate_packages(node, self._locate_scratch(node))
            sent = self._pool.find_transport(node.name).put(
                packages, place, timeout=uv.FETCH_TIMEOUT
            )
        if not sent.ok:
            raise make_error("installing packages", replace(sent, node=node.name))
        self._set_up([node])

    def _check_platform(self, packages: Path, node: Node) -> None:
        """What had to be built was built for this machine: only plain Python runs elsewhere."""
        version = "".join(_require_python(node).version.split(".")[:2])
        own = f"cp{sys.version_info[0]}{sys.version_info[1]}-"
        for wheel in packages.glob("*.dist-info/WHEEL"):
            tags = re.findall(r"(?m)^Tag: (\S+)", wheel.read_text(encoding="utf-8"))
            built = [tag for tag in tags if tag.endswith(f"-linux_{os.uname().machine}")]
            foreign = os.uname().machine != node.facts.arch or not own.startswith(f"cp{version}-")
            if (built and foreign) or any("macosx" in tag for tag in tags):
                name = wheel.parent.name.removesuffix(".dist-info")
                raise LaunchError(
                    f"{name} has no wheel for Python {version[0]}.{version[1:]} on Linux"
                    f" {node.facts.arch}, and what is built here does not run on {node.name}",
                    hint="choose a version that has one",
                )

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
            next(iter(wanted.texts.values())) if wanted.locked else uv.resolve(wanted, kept, node)
        )
        entries = [
            entry
            for entry in uv.list_entries(text)
            if uv.read_name(entry) not in kept
            and not ("torch" in kept and _CUDA.match(uv.read_name(entry)))
        ]
        if not wanted.decides and any(uv.read_name(entry) == "torch" for entry in entries):
            raise LaunchError(
                f"{wanted.source} needs torch, which {node.name} does not have",
                hint=f"`--requirements {wanted.source}` installs it (it may be gigabytes),"
                f" `--requirements {NONE}` installs nothing",
            )
        entries = package_indexes.keep_hashes(entries, wanted.texts, wanted.source)
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
            packages = quote(self._locate_packages(node, locate(node, self._digest)))
            commands[name] = (
                f"TAR_OPTIONS= tar -C {packages} -cf - . |"
                f" {quote(node.root)}/bin/clusterctl-ssh {target.name} {quote(there)}"
            )
        for result in self._pool.run(commands, timeout=uv.FETCH_TIMEOUT):
            if not result.ok:
                target_name = pairs[result.node].name
                raise make_error(f"copying packages to {target_name} from {result.node}", result)
        self._set_up(list(pairs.values()))

    def _find_python(self, nodes: Sequence[Node]) -> None:
        """Raises LaunchError where a Python that was asked for by its version is missing."""
        wanted = _require_python(nodes[0]).executable
        if wanted.startswith("/"):
            return
        commands = {node.name: _run_inside(node, f"{_PATH} command -v {wanted}") for node in nodes}
        results = self._pool.run(commands, timeout=ASK_TIMEOUT)
        for result in results:
            if result.exit_code is None:
                raise make_error("installing packages", result)
        if lacking := [result.node for result in results if not result.ok]:
            raise LaunchError(
                f"no {wanted} on {', '.join(lacking)}",
                hint=f"install it there (apt-get install {wanted}, or `uv python install"
                f" {wanted.removeprefix('python')}`), or leave out --python",
            )

    def _set_up(self, nodes: Sequence[Node]) -> None:
        script = assets.render("job/environment.py").encode()
        commands = {}
        for node in nodes:
            words = (self._locate_scratch(node), locate(node, self._digest))
            command = join((_require_python(node).executable, "-I", "-", *words))
            commands[node.name] = _run_inside(node, f"{_PATH} {command}")
        for result in self._pool.run(commands, stdin=script, timeout=uv.FETCH_TIMEOUT):
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
        keeps = wanted.keeps_nodes
        other = f" (`--requirements {keeps}` keeps that of the nodes)" if keeps else ""
        report(
            f"{name} {pins[0]} of {wanted.source} is used instead of the nodes' {version}{other}"
        )
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
