"""Packages that files of conda, other projects and workspaces name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterctl.project.program import resolve_program
from tests import wheels
from tests.unit.packaged import (
    Install,
    find,
    find_projects,
    here,
    index,
    install,
    make_project,
    project,
    python_of,
    run,
)

__all__ = ["index", "install", "project"]

CONDA = """\
name: mine  # of a paper
channels:
  - conda-forge
dependencies:
  - python=3.11
  - demo=1
  - conda-forge::helper=1.5=py311_0
  - pytorch>=2.1
  - cudatoolkit=12.1
  - pip:
      # only there
      - trainer==1.0
  - "other >=2,<3"
variables:
  demo: 3
"""


@pytest.mark.parametrize(
    ("text", "lines", "warned"),
    [
        (CONDA, "trainer==1.0\n", True),
        (
            "dependencies:\n- python=3.11\n- pip:\n  - 'demo<2'  # ours\n\n  - helper",
            "demo<2\nhelper\n",
            False,
        ),
        ("dependencies: [pip, cowsay]\n", "", True),
        ("dependencies:\n  - numpy\n", "", True),
    ],
)
def test_of_an_environment_of_conda_what_pip_installs(
    text: str, lines: str, warned: bool, project: Path
) -> None:
    """What conda alone has is named as missing."""
    Path("environment.yml").write_text(text)
    wanted = find()
    assert wanted is not None
    assert (wanted.text, bool(wanted.warning)) == (lines, warned)


def test_an_environment_of_conda_gets_the_files_that_it_includes(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    pip = "  - pip:\n    - -r requirements.in\n    - ./index/helper-1.5-py3-none-any.whl\n"
    Path("environment.yml").write_text(f"dependencies:\n  - python\n  - pip\n{pip}")
    Path("requirements.in").write_text("demo==1.0\n")
    Path("index").symlink_to(index)
    one = here("worker-1", tmp_path)
    install("", one)
    code = "import demo, helper; print(demo.VERSION, helper.VERSION)"
    assert run(python_of(one), "-c", code) == "1.0 1.5\n"


def test_projects_of_the_tree_bring_what_they_need_and_are_used_where_they_lie(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Named by a path in a requirements file, by a project's own metadata, or by uv's sources."""
    make_project(Path("libs/one"), "one", {}, "two", "helper; extra == 'more'")
    with Path("libs/one/pyproject.toml").open("a") as file:
        file.write('[project]\nname = "one"\nversion = "1.0"\n')
        file.write('dynamic = ["dependencies", "optional-dependencies"]\n')
        file.write('[tool.uv.sources]\ntwo = {path = "../two"}\n')
    make_project(Path("libs/two"), "two", {}, "demo<2")
    wheels.make(index, "two", "1.0", "outdated")  # another one, of that name
    lines = ("-e ./libs/one[more]\n", "libs/one  # ours\nhelper\n", "one[more] @ ./libs/one\n")
    for number, line in enumerate(lines):
        Path("requirements.txt").write_text(line)
        worker = here(f"worker-{number}", tmp_path)
        install("", worker)
        code = "import demo, helper; print(demo.VERSION)"
        assert run(python_of(worker), "-c", code) == "1.0\n"
        names = {path.stem for path in Path(python_of(worker)).parents[1].glob("lib/*/*/*")}
        assert not {"one", "two", "outdated"} & names
    folders = {one.folder for one in find_projects(resolve_program("train.py", ()), "", worker)}
    assert folders == {"libs/one", "libs/two"}
    assert not list(Path("libs").glob("*/left-behind")), "builds write into a copy"


@pytest.mark.parametrize("locked", [False, True])
def test_members_of_a_workspace_are_used_where_they_lie(
    locked: bool, project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    Path("packages/member/src/member").mkdir(parents=True)
    Path("packages/member/src/member/__init__.py").touch()
    head = 'version = "1"\nrequires-python = ">=3.10"\n'
    Path("packages/member/pyproject.toml").write_text(
        f'[project]\nname = "member"\n{head}dependencies = ["demo<2"]\n'
    )
    Path("pyproject.toml").write_text(
        f'[project]\nname = "all"\n{head}dependencies = ["member"]\n'
        "[tool.uv.sources]\nmember = {workspace = true}\n"
        '[tool.uv.workspace]\nmembers = ["packages/*"]\n'
    )
    if locked:
        run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
    worker = here("worker-1", tmp_path)
    install("", worker)
    assert run(python_of(worker), "train.py") == "1.0\n"
    projects = find_projects(resolve_program("train.py", ()), "", worker)
    assert "packages/member/src" in {path for one in projects for path in one.paths}
    run("git", "init", "-q")
    Path("packages/member/program.py").touch()
    wanted = find(script="packages/member/program.py")
    assert wanted
    assert wanted.source == ("uv.lock" if locked else "pyproject.toml")
