"""Which packages a program asks for: where they are looked for, and what of them the nodes have."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.common import open_store
from clusterctl.actions.run import resolve_run
from clusterctl.core.model import Node, Python
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.options.verbs import Run
from clusterctl.project import packages as project_packages
from clusterctl.project.program import resolve_command, resolve_program
from clusterctl.state.home import find_home
from tests import wheels
from tests.unit.calling import Call
from tests.unit.making import cluster, node
from tests.unit.packaged import (
    HERE,
    KEPT,
    PROJECT,
    Install,
    find,
    here,
    index,
    install,
    make_project,
    project,
    python_of,
    run,
)
from tests.unit.tables import rows

__all__ = ["index", "install", "project"]


def test_a_lock_file_is_found_and_its_versions_are_installed(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    head = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
    Path("pyproject.toml").write_text(f'{head}dependencies = ["demo<2", "trainer"]\n')
    wheels.make(index, "torch", "2.13.0", "helper")
    run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
    one = here("worker-1", tmp_path)
    install("", one)
    assert run(python_of(one), "train.py") == "1.0\n"
    names = {path.name for path in Path(python_of(one)).parents[1].glob("lib/*/site-packages/*")}
    assert "trainer" in names
    assert "torch" not in names


LOCK = """\
version = 1
requires-python = ">=3.10"

[[package]]
name = "mine"
version = "1"
source = { virtual = "." }
"""


def found() -> str | None:
    wanted = project_packages.find_package_files(resolve_program("train.py", ()), "")
    return wanted and wanted.source


def test_where_packages_are_looked_for(project: Path) -> None:
    """The file that says most about versions comes first, and the script's own block before it."""
    Path("requirements-dev.txt").write_text("demo\n")
    Path("environment.yml").write_text("dependencies:\n  - python=3.11\n")
    assert found() is None
    Path("pyproject.toml").write_text(f"{PROJECT}dependencies = []\n")
    assert found() is None
    Path("setup.cfg").write_text("[flake8]\nmax-line-length = 100\n")
    assert found() is None, "that makes no project"
    Path("environment.yml").write_text("dependencies:\n  - pip:\n    - demo\n")
    assert found() == "environment.yml"
    Path("pyproject.toml").write_text(f'{PROJECT}dependencies = ["demo"]\n')
    assert found() == "pyproject.toml"
    Path("requirements.txt").write_text("demo\n")
    assert found() == "requirements.txt"
    Path("pyproject.toml").write_text(f'{PROJECT}requires-python = ">=3.10"\n')
    Path("uv.lock").write_text(LOCK)
    assert found() == "uv.lock"
    assert project_packages.find_package_files(resolve_program("train.py", ()), "none") is None
    assert project_packages.find_package_files(resolve_command(["true"]), "") is None
    assert project_packages.find_package_files(resolve_program("reduce_all.py", ()), "") is None
    Path("train.py").write_text('# /// script\n# dependencies = ["demo"]\n# ///\n')
    assert found() == "train.py"


def test_the_top_of_a_repository_is_looked_at_and_nothing_above_it(project: Path) -> None:
    (project.parent / "requirements.txt").write_text("demo\n")
    (project / "tools").mkdir()
    shutil.copy("train.py", "tools/train.py")
    run("git", "init", "-q", str(project))
    assert project_packages.find_package_files(resolve_program("tools/train.py", ()), "") is None
    Path("requirements.txt").write_text("demo\n")
    wanted = project_packages.find_package_files(resolve_program("tools/train.py", ()), "")
    assert wanted is not None
    assert wanted.source == "requirements.txt"


HAS = "distro-info==1.1build1 demo==2.0 helper==1.5.0+cpu odd-name==3"


def has_all(*nodes: Node, given: str = "") -> bool:
    """Whether nothing is installed on these nodes; False as well for what cannot be resolved."""
    wanted = find(given)
    assert wanted is not None
    tree = resolve_program("train.py", ()).tree
    try:
        return project_packages.resolve_packages(wanted, tree, nodes)[0] is None
    except ClusterctlError:
        return False


@rows("text, enough", "package_sources.what_the_nodes_have_is_not_installed")
def test_what_the_nodes_have_is_not_installed(
    text: str, enough: bool, project: Path, index: Path
) -> None:
    Path("requirements.txt").write_text(text)
    Path("pins.txt").write_text("demo<2\n")
    Path("more.txt").write_text("missing\n")
    shutil.copy(index / "demo-2.0-py3-none-any.whl", ".")
    python = Python(executable="/p", version="3.11.2", packages=KEPT, installed=HAS)
    one, bare = node("a", python=python), node("b", python=replace(python, installed=""))
    assert has_all(one) is enough
    alone = not any(name in text for name in ("demo", "helper"))
    assert has_all(one, bare) is (enough and alone)


def test_the_project_itself_stands_for_its_dependencies(project: Path, index: Path) -> None:
    extra = '[project.optional-dependencies]\ntrain = ["helper<2"]\nother = ["odd"]\n'
    Path("pyproject.toml").write_text(f'{PROJECT}dependencies = ["demo>=1"]\n{extra}')
    demo = node("a", python=Python(**HERE, packages=KEPT, installed="demo==1.9"))
    both = node("a", python=Python(**HERE, packages=KEPT, installed="demo==1.9 helper==1.5"))
    for line, enough in (("-e .", (True, True)), ("-e .[train]", (False, True))):
        Path("requirements.txt").write_text(f"{line}\nnumpy\n")
        assert (has_all(demo), has_all(both)) == enough
    Path("requirements.txt").unlink()
    make_project(Path(), "mine", {}, "demo>=1", "helper; extra == 'train'")
    assert has_all(demo), "what only a build knows"


def test_a_run_says_which_file_it_uses_and_how_not_to(
    project: Path, index: Path, call: Call, lab: None
) -> None:
    Path("requirements.txt").write_text("torch==2.13.0\nnumpy\n")
    said = call("run", "--dry-run", "train.py")
    assert "packages" not in said.out, "the nodes have these"
    assert "packages" not in call("run", "--emit", "sh", "train.py").err
    Path("requirements.txt").write_text("torch==2.13.0\ndemo\n")
    said = call("run", "--dry-run", "train.py")
    assert "# using the packages of requirements.txt beside " in said.out
    assert "(`--requirements none` turns this off)" in said.out
    emitted = call("run", "--emit", "sh", "train.py")
    assert "nodes, which may lack some of requirements.txt" in emitted.err
    assert "packages" not in call("run", "--dry-run", "--requirements", "none", "train.py").out


@rows("words, found", "package_sources.a_script_of_the_project_gets_its_packages")
def test_a_script_of_the_project_gets_its_packages(
    words: tuple[str, ...], found: bool, project: Path
) -> None:
    """It may start Python; a program of the nodes has what it needs."""
    Path("pyproject.toml").write_text(PROJECT + 'scripts = { pkg-train = "pkg:main" }\n')
    Path("requirements.txt").write_text("# build me\ndemo>1\n")
    Path("job.sh").write_text("python train.py\n")
    Path("wrapper").write_text("#!/bin/sh\npython train.py\n")
    Path("binary").write_text("\x7fELF")
    for name in ("wrapper", "binary"):
        Path(name).chmod(0o755)
    resolved = project_packages.recognize_command(resolve_run(Run({"command": words})), "")
    wanted = project_packages.find_package_files(resolved, "")
    assert (wanted.source if wanted else "") == ("requirements.txt" if found else "")


def test_options_of_python_stand_before_a_script_with_its_own_block(project: Path) -> None:
    """Its lines for --setup count, too. What a module or a line of commands starts is unknown."""
    block = '# dependencies = ["demo"]\n# [tool.clusterctl]\n# setup = "make"\n'
    Path("block.py").write_text(f"# /// script\n{block}# ///\n")
    Path("requirements.txt").write_text("demo\n")
    for words, source, setup in (
        (("python", "-bW", "ignore", "block.py"), "block.py", "make"),
        (("python", "-Om", "pytest", "block.py"), "requirements.txt", ""),
        (("sh", "-c", "python block.py; python train.py"), "requirements.txt", ""),
    ):
        resolved = resolve_command(words)
        wanted = project_packages.find_package_files(resolved, "")
        assert wanted is not None
        assert (wanted.source, project_packages.find_setup(resolved)) == (source, setup)


def test_a_command_behind_words_is_brought_by_the_packages_that_name_it(
    project: Path, index: Path, call: Call, lab: None
) -> None:
    """A program of the nodes runs beside a file that is not understood."""
    Path("requirements.txt").write_text("demo\n")
    said = call("run", "--dry-run", "mpirun", "-np", "1", "demo", "-x")
    assert "no file demo here: the packages or nodes have to bring that command" in said.out
    assert "packages" not in call("run", "--dry-run", "--", "hostname").out
    Path("requirements.txt").write_bytes(b"\xff\xfed\0e\0m\0o\0")
    assert call("run", "--dry-run", "--", "hostname").code == 0


def test_a_name_that_is_no_file_may_be_a_command_of_packages(
    project: Path, index: Path, call: Call, lab: None
) -> None:
    """Where a file asks for packages; a slip is said before anything is installed."""
    said = call("run", "--dry-run", "hostname")
    assert (said.code, "no script named 'hostname'" in said.err) == (2, True)
    assert "clusterctl run -- hostname" in said.err
    wheels.make(index, "train_er", "1.0")
    Path("requirements.txt").write_text("demo\ntrain-er\n")
    said = call("run", "--dry-run", "demo-version", "-x")
    assert "demo-version -x" in said.out.split("# every rank")[1].split("\n")[1]
    assert "did you mean train.py?" in call("run", "trian").err
    assert call("run", "--dry-run", "train_er").code == 0, "a package of that name"
    assert call("run", "--dry-run", "--requirements", "none", "demo-version").code == 2


def test_a_script_does_without_the_python_that_nodes_lack(call: Call, project: Path) -> None:
    """It may need none."""
    bare = cluster(*(node(name, python=None) for name in ("launcher", "worker-1", "worker-2")))
    open_store().save(bare)
    Path("requirements.txt").write_text("demo\n")
    Path("job.sh").write_text("hostname\n")
    ended = call("run", "--dry-run", "bash", "job.sh")
    assert (ended.code, "requirements.txt" in ended.out + ended.err) == (0, False)
    assert call("run", "--dry-run", "train.py").code == 6, "it needs one"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("packages.toml", "", "packages.toml names no packages"),
        ("environment.yml", "dependencies:\n  - python=3.11\n", "names no packages"),
        ("train.py", "print()\n", "train.py names no packages"),
        ("requirements.txt", b"\xff\xfed\0e\0m\0o\0", "line 1 is not UTF-8"),
    ],
)
def test_a_file_that_is_not_understood(
    name: str, text: str | bytes, message: str, project: Path
) -> None:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        project_packages.find_package_files(resolve_program("train.py", ()), name)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("missing-package\n", UsageError, "^No solution found .*: .*missing-package was not found"),
        ("demo ==\n", UsageError, "^Couldn't parse requirement in `requirements.txt`"),
    ],
)
def test_packages_that_cannot_be_resolved(
    text: str,
    kind: type[ClusterctlError],
    message: str,
    project: Path,
    index: Path,
    install: Install,
    tmp_path: Path,
) -> None:
    Path("requirements.txt").write_text(text)
    with pytest.raises(kind, match=message) as caught:
        install("requirements.txt", here("worker-1", tmp_path))
    assert "\n" not in caught.value.message
    assert str(caught.value.hint).startswith("requirements.txt: correct the file"), "ours"


def test_a_dry_run_shows_them_and_keeps_nothing(
    project: Path, index: Path, call: Call, lab: None
) -> None:
    Path("requirements.txt").write_text("demo\n")
    said = call("run", "--dry-run", "--requirements", "requirements.txt", "train.py")
    kept = "mpi4py 4.1.0 and torch 2.13.0 of the nodes"
    assert f"# using the packages of requirements.txt beside {kept}" in said.out
    assert "/packages/" in said.out.split("# every rank")[1].split("\n")[1]
    assert not find_home().packages.exists()
