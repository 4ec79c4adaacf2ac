"""What has no wheel is built on the first node, by its Python, and the others get what came of it.

uv is the real one, and so is the agent, on nodes that are folders of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

import pytest
from msgspec.structs import replace

from clusterctl.core.model import Node
from clusterctl.errors import LaunchError
from clusterctl.jobs.install import Delivery
from clusterctl.jobs.install import build_projects as build_on_nodes
from clusterctl.project import own_project
from clusterctl.project.program import Search, resolve_program
from clusterctl.state.home import find_home
from clusterctl.transport.pool import Pool
from tests.unit.calling import Call
from tests.unit.packaged import (
    Install,
    find_projects,
    here,
    index,
    install,
    project,
    run,
)
from tests.unit.tables import rows

__all__ = ["index", "install", "project"]

BUILT = """\
[project]
name = "odd"
version = "1.0"

[build-system]
requires = {}
build-backend = "inner.backend:Hooks"
backend-path = ["."]
"""
BACKEND = """\
import os, sys, tarfile, zipfile

NAME = "odd-1.0-py3-none-any.whl"

class Hooks:
    @staticmethod
    def get_requires_for_build_wheel(config_settings=None):
        return ["helper"]

    @staticmethod
    def build_sdist(out, config_settings=None):
        with tarfile.open(os.path.join(out, "odd-7.tar.gz"), "w:gz") as archive:
            archive.add("PKG-INFO", "odd-7/PKG-INFO")
        return "odd-7.tar.gz"

    @staticmethod
    def build_wheel(out, config_settings=None, metadata_directory=None):
        import helper
        with open({counted!r}, "a") as file:
            file.write("built" + chr(10))
        {action}
        with zipfile.ZipFile(os.path.join(out, NAME), "w") as wheel:
            wheel.writestr("odd/__init__.py", f"MADE = {{(sys.prefix, helper.VERSION)!r}}")
            version = os.environ.get("SETUPTOOLS_SCM_PRETEND_VERSION", "")
            wheel.writestr("odd/_c.so", open("code.c").read() + version)
            info = "odd-1.0.dist-info/"
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: odd\\nVersion: 1.0\\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
            wheel.writestr(info + "RECORD", "")
        return NAME
"""


def write_sources(folder: Path, counted: Path, action: str = "", requires: str = "[]") -> None:
    """A project whose build says how often it ran, asks for `helper`, and names ext_modules."""
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "backend.py").write_text(
        BACKEND.format(counted=str(counted), action=action) + "\n\next_modules = 1\n"
    )
    (folder / "pyproject.toml").write_text(f"{BUILT.format(requires)}# ext_modules\n")
    (folder / "code.c").write_text("one")
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: odd\nVersion: 1.0\n")


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    return tmp_path / "counted"


def put_into_index(index: Path, counted: Path, **more: str) -> None:
    write_sources(index / "sources", counted, **more)
    with tarfile.open(index / "odd-1.0.tar.gz", "w:gz") as archive:
        archive.add(index / "sources", "odd-1.0")
    Path("requirements.txt").write_text("odd\n")


def test_sources_of_a_package_are_built_on_the_first_node_and_sent_to_the_others(
    project: Path, index: Path, install: Install, tmp_path: Path, counted: Path
) -> None:
    put_into_index(index, counted, requires='["demo<2"]')
    nodes = [here(f"worker-{number}", tmp_path) for number in (1, 2)]
    said = install("", *nodes)
    assert any(line.startswith("odd is built on worker-1 after ") for line in said)
    for one in nodes:
        (found,) = (
            path
            for path in Path(one.root, "packages").iterdir()
            if list(path.glob("lib/*/site-packages/odd"))
        )
        prefix, version = run(
            str(found / "bin/python"), "-c", "import odd; print(*odd.MADE)"
        ).split()
        assert prefix.startswith(f"{nodes[0].root}/packages/"), "by the node, in an environment"
        assert version == "1.5", "that has what the build asks for while it runs"
    assert not list(Path(nodes[0].root, "builds").iterdir())
    install("", here("worker-1", tmp_path / "later"))
    assert counted.read_text() == "built\n", "once for what is in it"


@rows("action, hint", "builds.a_build_that_fails_shows_its_end_and_what_is_missing")
def test_a_build_that_fails_shows_its_end_and_what_is_missing(
    action: str,
    hint: str,
    project: Path,
    index: Path,
    install: Install,
    tmp_path: Path,
    counted: Path,
) -> None:
    put_into_index(index, counted, action=action)
    old = find_home().packages / "built" / "old"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    one = here("worker-1", tmp_path)
    with pytest.raises(LaunchError, match=r"^odd cannot be built on worker-1:\n") as caught:
        install("", one)
    assert "error" in caught.value.message.lower()
    assert hint in str(caught.value.hint)
    assert "g++" in hint or "apt-get install g++" not in str(caught.value.hint)
    assert ".log" in str(caught.value.hint)
    assert not list(Path(one.root, "builds").iterdir())
    assert not old.exists(), "what nothing has used for a month"
    logs = list((find_home().packages / "built").glob("*.log"))
    assert [log.read_text().splitlines()[-1] for log in logs] == caught.value.message.split("\n")[
        -1:
    ]


def test_a_dry_run_says_what_would_be_built_and_where(
    project: Path, index: Path, call: Call, lab: None, counted: Path
) -> None:
    put_into_index(index, counted)
    ended = call("run", "--dry-run", "--verbose", "train.py")
    assert "resolving the packages of requirements.txt" in ended.err
    assert "the project in" not in ended.err, "there is none"
    assert "; worker-1 builds odd (no wheel)" in ended.out
    write_sources(Path("own"), counted)
    shutil.copy("train.py", "own/train.py")
    ended = call("run", "--dry-run", "--verbose", "--stage", ".", "own/train.py")
    assert "finding what the project in own has" in ended.err
    assert "# odd has compiled parts: worker-1 builds it first" in ended.out
    assert not counted.exists()


def test_a_project_that_is_not_compiled_hides_no_installed_package(
    project: Path, call: Call, lab: None, counted: Path
) -> None:
    own = Path("own")
    write_sources(own, counted)
    shutil.copy(project / "train.py", own)

    def find_paths() -> tuple[str, ...]:
        found = resolve_program("own/train.py", (), Search(chosen=own))
        (one,) = find_projects(found, "none")
        return own_project.leave_out_unbuilt(found.tree, one).paths

    line = ("run", "--dry-run", "--requirements", "none", "--stage", "own", "own/train.py")
    assert "# odd has compiled parts, which this job does not build: " in call(*line).out
    assert find_paths() == ()
    (own / "odd.so").touch()
    assert "compiled parts" not in call(*line).out
    assert find_paths() == (".",), "it was compiled where it lies"
    (own / "odd.so").unlink()
    (own / "pyproject.toml").write_text(f"{BUILT.format('[]')}# a robust Extension of others")
    assert find_paths() == (".",), "Python alone"
    assert not counted.exists()


def build_projects(*nodes: Node, **variables: str) -> list[own_project.Project]:
    found = resolve_program("train.py", ())
    projects = find_projects(found)
    with Pool(nodes, identity=None, known_hosts=Path("none")) as pool:
        by = Delivery(pool, find_home(), print, "lab", {"LR": token_hex(4), **variables})
        return build_on_nodes(projects, found.tree, nodes, by)


def test_compiled_parts_of_a_project_are_built_on_a_node_when_they_have_changed(
    project: Path, index: Path, tmp_path: Path, counted: Path, need: Callable[..., None]
) -> None:
    """Its other code is that of the tree, and costs no build."""
    need("uv")
    write_sources(project, counted)
    (project / "odd").mkdir()
    (project / "odd" / "__init__.py").write_text("MINE = 1\n")
    with (project / "pyproject.toml").open("a") as file:
        file.write("# setuptools-scm\n")
    one = here("worker-1", tmp_path)
    (made,) = build_projects(one)
    assert (made.paths, dict(made.made)) == ((".",), {"odd/_c.so": b"one7"}), "git is asked here"
    (project / "odd" / "__init__.py").write_text("MINE = 2\n")
    for new in ("try.py", "tools/again.py"):
        (project / new).parent.mkdir(exist_ok=True)
        (project / new).touch()
    build_projects(one)
    assert counted.read_text() == "built\n", "no build file names them"
    tree = resolve_program("train.py", ()).tree

    def find_key() -> str:
        return own_project.hash_deciding(tree, ".", compiled=True)

    key = find_key()
    (project / "setup.py").write_text('cythonize("tools/*.py")\n')
    tree = replace(tree, files=(*tree.files, "setup.py"))
    named = find_key()
    (project / "tools" / "again.py").write_text("NEW = 1\n")
    assert len({key, named, find_key()}) == 3, "it may compile them all"
    (project / "setup.py").unlink()
    (project / "code.c").write_text("two")
    (made,) = build_projects(one)
    assert dict(made.made) == {"odd/_c.so": b"two7"}
    build_projects(one, CFLAGS="-O3")
    other = replace(one, facts=replace(one.facts, arch=one.facts.arch + "-other"))
    with pytest.raises(LaunchError):  # no wheel of the build's needs is for it
        build_projects(other)
    assert counted.read_text() == "built\n" * 3


def test_nothing_of_a_build_is_left_when_nobody_waits_for_it(tmp_path: Path) -> None:
    place = tmp_path / "build"
    place.mkdir()
    (place / "tag").write_text("CLUSTERCTL_JOB=test-build/1;")
    argv = ["sh", "-c", "echo $$; exec sleep 300"]
    given = ", ".join(map(repr, (str(place), argv, str(place), {})))
    code = f"from clusterctl.agent import setup; setup.build({given})"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    pid = child.stdout.readline().strip()
    child.stdout.close()
    child.wait(60)
    assert not Path(f"/proc/{pid}").exists()
    assert not place.exists()


def test_a_build_may_print_more_than_a_connection_collects(tmp_path: Path) -> None:
    """Its start and its end are kept."""
    (tmp_path / "tag").touch()
    text = "print('start'); print(('x' * 99 + chr(10)) * 700000); print('end')"
    given = ", ".join(map(repr, (str(tmp_path), [sys.executable, "-c", text], str(tmp_path), {})))
    code = f"import sys; from clusterctl.agent import setup; sys.exit(setup.build({given}))"
    said = run(sys.executable, "-c", code)
    assert len(said) < 32 << 20
    assert said.startswith("start\n")
    assert said.endswith("\nend\n")
    assert "bytes are left out here]\n" in said
