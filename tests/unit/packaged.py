"""An index with a few packages, and nodes that are folders of this machine and install from it with
the real uv. A way from one node to another is a program that runs a command here."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.core.model import Node, Python
from clusterctl.jobs import install as jobs_install
from clusterctl.project import own_project
from clusterctl.project import packages as project_packages
from clusterctl.project.program import Resolved, resolve_program
from clusterctl.state.home import find_home
from clusterctl.transport.pool import Pool
from tests import wheels
from tests.unit.making import node

PROJECT = '[project]\nname = "mine"\nversion = "1"\n'
HERE = {"executable": "/p", "version": "3.11.2"}
KEPT = {"torch": "2.13.0+cpu", "mpi4py": "4.1.0", "numpy": "2.3.0"}
SSH = """#!/bin/sh
echo "$1" >>{log}
shift
exec /bin/sh -c "$*"
"""

BACKEND = """\
import os, zipfile

def build_wheel(out, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(os.path.join(out, "{name}-1.0-py3-none-any.whl"), "w") as wheel:
        for path, source in {files!r}.items():
            text = open(source[1:]).read() if source.startswith("@") else source
            wheel.writestr(path, text)
        wheel.writestr("{name}-1.0.dist-info/RECORD", "")
    open("left-behind", "w").close()
    return "{name}-1.0-py3-none-any.whl"

build_editable = build_wheel
"""
BUILT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'

Said = list[str]
Install = Callable[..., Said]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import demo\nprint(demo.VERSION)\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    wheels.make(folder, "demo", "1.0")
    wheels.make(folder, "demo", "2.0", "helper>=1", script=True)
    wheels.make(folder, "helper", "1.5")
    wheels.make(folder, "trainer", "1.0", "torch>=2.1")
    wheels.make(folder, "outdated", "1.0", "torch<2.5")
    for name, value in wheels.settings(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def here(name: str, folder: Path, **changes: str) -> Node:
    """A node that is a folder of this machine, with its Python."""
    installed = {"packages": KEPT, "version": platform.python_version(), **changes}
    python = Python(**{"executable": sys.executable, **installed})  # type: ignore[arg-type]
    made = node(name, address="", root=str(folder / name), python=python)
    made = replace(made, private_address="", python=python.executable)
    ssh = folder / name / "bin" / "clusterctl-ssh"
    ssh.parent.mkdir(parents=True)
    ssh.write_text(SSH.format(log=folder / "passed-on"))
    ssh.chmod(0o755)
    return made


@pytest.fixture
def install(tmp_path: Path, need: Callable[..., None]) -> Install:
    """Finds the packages of train.py and brings them to nodes."""
    need("uv")

    def install(given: str, *nodes: Node) -> Said:
        return bring(resolve(given, *nodes).digest, *nodes)

    return install


def find(given: str = "", script: str = "train.py") -> project_packages.Wanted | None:
    """What the program asks for."""
    return project_packages.find_package_files(resolve_program(script, ()), given)


def resolve(given: str, *nodes: Node) -> project_packages.Packages:
    """What uv makes of it, as it is kept with a job."""
    wanted = find(given)
    assert wanted is not None
    tree = resolve_program("train.py", ()).tree
    packages, _ = project_packages.resolve_packages(wanted, tree, nodes, in_any_case=True)
    assert packages is not None
    project_packages.save(packages, find_home())
    return packages


def bring(digest: str, *nodes: Node) -> Said:
    said: Said = []
    with Pool(nodes, identity=None, known_hosts=Path("none")) as pool:
        by = jobs_install.Delivery(pool, find_home(), said.append, "lab")
        jobs_install.install(digest, nodes, by)
    return said


def python_of(node: Node) -> str:
    [found] = Path(node.root, "packages").iterdir()
    return str(found / "bin" / "python")


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout


def make_project(folder: Path, name: str, files: dict[str, str], *requires: str) -> None:
    """A project whose build makes a wheel of `files` (`@PATH`: what lies there), version 1.0."""
    folder.mkdir(parents=True, exist_ok=True)
    info, needs = f"{name}-1.0.dist-info", "".join(f"Requires-Dist: {one}\n" for one in requires)
    extras = "".join(
        f"Provides-Extra: {part.split(chr(39))[1]}\n" for part in requires if "extra" in part
    )
    described = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}{extras}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    (folder / "backend.py").write_text(BACKEND.format(name=name, files={**files, **described}))
    (folder / "pyproject.toml").write_text(BUILT)


def find_projects(found: Resolved, given: str = "", *nodes: Node) -> list[own_project.Project]:
    """The projects that a run of the program uses on these nodes."""
    wanted = project_packages.find_package_files(found, given)
    folders: tuple[str, ...] = ()
    if wanted and nodes:
        _, folders = project_packages.resolve_packages(wanted, found.tree, nodes)
    return own_project.find_own_project(found.program, found.tree, folders, given)
