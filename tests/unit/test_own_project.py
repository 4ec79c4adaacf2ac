"""A project that is not installed on the nodes, as its own programs find it there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.core.job import ProgramKind
from clusterctl.project import own_project
from clusterctl.project import tree as project_tree
from clusterctl.project.packages import find_script
from clusterctl.project.program import Resolved, resolve_command, resolve_program
from tests.unit.calling import Call
from tests.unit.packaged import find_projects, make_project
from tests.unit.tables import rows

NAMED = '[project]\nname = "My.Project"\nversion = "1.4"\n'
SCRIPTS = '[project.scripts]\npkg-train = "pkg.cli:Tool.main"\n'
CLI = """\
import sys
from importlib.metadata import entry_points, version

class Tool:
    @staticmethod
    def main():
        print(version("my-project"), sys.argv[1:])
        print(*(point.name for point in entry_points(group="console_scripts")))
        return 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "pkg").mkdir(parents=True)
    (folder / "src" / "pkg" / "cli.py").write_text(CLI)
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    return folder


def paths(found: Resolved) -> tuple[str, ...]:
    return tuple(path for project in find_projects(found, "none") for path in project.paths)


def equip(found: Resolved, given: str = "none") -> project_tree.Tree:
    return own_project.equip_own_project(found.tree, find_projects(found, given))


def unpack(found: Resolved, folder: Path) -> None:
    for name, data, mode in equip(found).own:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(mode)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As on a node: the folder on PYTHONPATH, its `bin` on PATH."""
    env = dict(os.environ, PYTHONPATH=f"src:{folder}")
    env["PATH"] = f"{folder}/bin:{Path(sys.executable).parent}:{env['PATH']}"
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_command_of_the_project_runs_as_if_it_were_installed(here: Path, tmp_path: Path) -> None:
    Path("pyproject.toml").write_text(NAMED + SCRIPTS)
    found = resolve_program("pkg-train", ("--lr", "0.1"))
    assert (found.program.kind, found.program.target) == (ProgramKind.COMMAND, "pkg-train")
    unpack(found, tmp_path)
    ended = run(tmp_path, "pkg-train", "--lr", "0.1")
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines()[0] == "1.4 ['--lr', '0.1']"
    assert "pkg-train" in ended.stdout.splitlines()[1].split()


def test_a_program_finds_the_version_of_its_project(here: Path, tmp_path: Path) -> None:
    """`__version__ = version("…")`, as many packages have it, fails where it is unknown."""
    Path("pyproject.toml").write_text('[project]\nname = "my-project"\ndynamic = ["version"]\n')
    unpack(resolve_program("train.py", ()), tmp_path)
    ask = "from importlib.metadata import version; print(version('my_project'))"
    assert run(tmp_path, sys.executable, "-c", ask).stdout == "0+unknown\n"


@rows("text", "own_project.a_file_without_a_project_describes_none")
def test_a_file_without_a_project_describes_none(text: str, here: Path) -> None:
    Path("pyproject.toml").write_text(text)
    found = resolve_program("train.py", ())
    assert equip(found).own == ()
    assert paths(found) == ("src",)


def test_names_that_are_no_commands_make_none(here: Path, tmp_path: Path) -> None:
    names = '"../out" = "pkg.cli:main"\n"a b" = "pkg.cli:main"\nodd = "pkg.cli:main; evil"\n'
    Path("pyproject.toml").write_text(f"{NAMED}[project.scripts]\n{names}")
    found = resolve_program("train.py", ())
    files = [name for name, _, _ in equip(found).own]
    assert all(name.startswith("my_project-1.4.dist-info/") for name in files)
    assert not own_project.is_command(resolve_command(("odd",)).program, found.tree)


def test_the_projects_own_packages_can_be_imported(here: Path) -> None:
    assert paths(resolve_program("train.py", ())) == ()
    Path("pyproject.toml").touch()
    assert paths(resolve_program("train.py", ())) == ("src",)
    Path("src").rename("pkg")
    assert paths(resolve_program("train.py", ())) == (".",)


def test_a_project_in_a_folder_of_a_repository_finds_its_own_packages(here: Path) -> None:
    """As an installed package would be found, by its module's name too."""
    subprocess.run(("git", "init", "-q", str(here)), check=True)
    Path("src").rename("pkg")
    Path("pyproject.toml").touch()
    Path("part/src/mine").mkdir(parents=True)
    Path("part/pyproject.toml").touch()
    Path("part/src/mine/train.py").touch()
    os.chdir("part")
    found = resolve_program("mine.train", ())
    assert paths(found) == ("part/src",)
    assert (found.program.folder, found.program.target) == ("part", "mine.train")
    assert paths(resolve_program("../train.py", ())) == (".",)


@pytest.fixture
def built(here: Path, need: Callable[..., None]) -> Path:
    """A project that only its build knows: its packages are elsewhere, or have other names."""
    need("uv")
    for place in ("lib/deep", "lib/other"):
        (here / place).mkdir(parents=True)
        (here / place / "__init__.py").write_text("STATE = 'old'\n")
    files = {
        "deep/__init__.py": "@lib/deep/__init__.py",
        "deep/_version.py": "version = '1.0'\n",
        "renamed/__init__.py": "@lib/other/__init__.py",
        "mine-1.0.dist-info/entry_points.txt": "[console_scripts]\nmine-x = deep:main\n",
    }
    make_project(here, "mine", files, "demo>=1")
    return here


def test_what_a_build_installs_is_a_command_beside_a_folder_of_its_name(built: Path) -> None:
    """It gets the packages of the project."""
    (built / "mine-x").mkdir()
    for found in (resolve_program("mine-x", ("1",)), resolve_command(("mine-x", "1"))):
        assert (found.program.kind, found.program.target) == (ProgramKind.COMMAND, "mine-x")
        assert own_project.is_command(found.program, found.tree)
        assert find_script(found) is not None
    assert find_script(resolve_command(("gone", "1"))) is None


def test_a_project_is_found_as_its_build_would_install_it(built: Path) -> None:
    """Code is that of the tree, which the next job sees as it is then."""
    found = resolve_program("train.py", ())
    (project,) = find_projects(found)
    assert (project.name, project.paths) == ("mine", ("lib",))
    assert "Requires-Dist: demo>=1\n" in project.metadata
    tree = equip(found, "")
    assert dict(tree.written) == {"lib/deep/_version.py": b"version = '1.0'\n"}
    own = {name: data for name, data, _ in tree.own}
    assert own["renamed/__init__.py"] == b"STATE = 'old'\n", "it has no place in the tree"
    assert "mine-1.0.dist-info/METADATA" in own
    assert b"from deep import main" in own["bin/mine-x"]
    assert not (built / "left-behind").exists(), "a build writes into a copy"
    (built / "lib" / "other" / "__init__.py").write_text("STATE = 'new'\n")
    own = {name: data for name, data, _ in equip(found, "").own}
    assert own["renamed/__init__.py"] == b"STATE = 'new'\n"


def test_a_command_that_only_a_build_knows_is_the_projects(
    built: Path, call: Call, lab: None
) -> None:
    make_project(
        built, "mine", {"mine-1.0.dist-info/entry_points.txt": "[console_scripts]\nrun-it = a:b\n"}
    )
    os.chdir(built)
    said = call("run", "--dry-run", "run-it", "--lr", "1")
    assert said.code == 0, said.err
    assert "run-it --lr 1" in said.out.split("# every rank")[1]
    assert "has to bring" not in said.out


def test_a_project_that_cannot_be_built_is_used_as_it_lies_there(
    built: Path, call: Call, lab: None
) -> None:
    os.chdir(built)
    (built / "backend.py").write_text("raise OSError('no compiler')\n")
    said = call("run", "--dry-run", "train.py")
    assert "cannot be built, so its packages are looked for only in src: " in said.out
    assert "no compiler" in said.out
