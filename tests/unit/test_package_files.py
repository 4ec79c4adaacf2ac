"""Packages that files of conda and of Poetry name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.jobs import package_indexes, package_sources
from clusterctl.jobs.program import resolve
from tests.unit.packaged import Install, here, index, install, project, python_of, run

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


def test_an_environment_of_conda_as_far_as_an_index_has_it(project: Path) -> None:
    Path("environment.yml").write_text(CONDA)
    wanted = package_sources.find(resolve("train.py", ()), "environment.yml")
    assert wanted is not None
    assert wanted.texts == {
        "environment.yml.txt": "demo==1.*\nhelper==1.5.*\ntorch>=2.1\ntrainer==1.0\nother>=2,<3\n"
    }
    assert wanted.left_out == ("its channels", "python=3.11", "cudatoolkit=12.1")


def test_an_environment_of_conda_gets_the_files_that_it_includes(
    project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    pip = "  - pip:\n    - -r requirements.in\n    - -e .\n"
    Path("environment.yml").write_text(f"dependencies:\n  - python\n  - helper\n  - pip\n{pip}")
    Path("requirements.in").write_text("demo==1.0\n")
    one = here("worker-1", tmp_path)
    install("", one)
    code = "import demo, helper; print(demo.VERSION, helper.VERSION)"
    assert run(python_of(one), "-c", code) == "1.0 1.5\n"


POETRY = """
[tool.poetry]
name = "mine"
version = "1"
[tool.poetry.dependencies]
python = ">=3.10,<3.14"
demo = "^1.0"
{more}
[tool.poetry.extras]
plots = ["helper"]
[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""


def test_what_a_project_of_poetry_depends_on(project: Path, install: Install, index: Path) -> None:
    lines = 'helper = {version = "*", optional = true}'
    (project / "pyproject.toml").write_text(POETRY.format(more=lines))
    node = here("worker-1", project.parent)
    install("", node)
    assert "1.0" in run(python_of(node), "-c", "import demo; print(demo.VERSION)")
    (project / "requirements.txt").write_text("-e .[plots]\n")
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert found.requirements == ("demo>=1.0,<2", "helper")


# https://python-poetry.org/docs/dependency-specification/
@pytest.mark.parametrize(
    ("line", "means"),
    [
        ('a = "^1.2.3"', "a>=1.2.3,<2"),
        ('a = "^0.2.3"', "a>=0.2.3,<0.3"),
        ('a = "^0.0.3"', "a>=0.0.3,<0.0.4"),
        ('a = "^0.0"', "a>=0.0,<0.1"),
        ('a = "^0"', "a>=0,<1"),
        ('a = "^2.0.0rc1"', "a>=2.0.0rc1,<3"),
        ('a = "~1.2.3"', "a>=1.2.3,<1.3"),
        ('a = "~1"', "a>=1,<2"),
        ('a = "~=1.4"', "a~=1.4"),
        ('a = "1.2.3"', "a==1.2.3"),
        ('a = "1.*"', "a==1.*"),
        ('a = "*"', "a"),
        ('a = ">=1, !=1.5 <2"', "a>=1,!=1.5,<2"),
        ('a = {version = "^1", extras = ["x", "y"]}', "a[x,y]>=1,<2"),
        ('a = {git = "https://h/a.git", rev = "f0"}', "a @ git+https://h/a.git@f0"),
        ('a = {url = "https://h/a.whl"}', "a @ https://h/a.whl"),
        ('a = {version = "1", platform = "linux"}', "a==1 ; (sys_platform == 'linux')"),
        (
            'a = {version = "*", python = "^3.8", markers = "m"}',
            "a ; (m) and (python_full_version >= '3.8') and (python_full_version < '4')",
        ),
    ],
)
def test_versions_as_poetry_writes_them(line: str, means: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(POETRY.format(more=line))
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert found.requirements == ("demo>=1.0,<2", means)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('a = "^1 || ^2"', "a = '^1 || ^2' is not understood"),
        ('a = {path = "../a", develop = true}', "local packages are not installed: a"),
    ],
)
def test_what_poetry_alone_can_install(line: str, message: str, project: Path) -> None:
    (project / "pyproject.toml").write_text(POETRY.format(more=line))
    with pytest.raises(UsageError) as caught:
        package_sources.find(resolve("train.py", ()), "")
    assert message in caught.value.message


def test_indexes_that_poetry_names_are_asked(project: Path) -> None:
    source = '[[tool.poetry.source]]\nname = "t"\nurl = "https://h/simple"\n'
    (project / "pyproject.toml").write_text(POETRY.format(more="") + source)
    found = package_sources.find(resolve("train.py", ()), "")
    assert found is not None
    assert package_indexes.list_lines(found.texts) == ["--extra-index-url https://h/simple"]
    assert found.requirements == ("demo>=1.0,<2",)
