"""Packages that files of conda, other projects and workspaces name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.run import resolve_run
from clusterctl.core.model import Python
from clusterctl.errors import UsageError
from clusterctl.options.verbs import Run
from clusterctl.project import packages as project_packages
from clusterctl.project.program import resolve_program
from tests import wheels
from tests.unit.calling import Call
from tests.unit.making import cluster, node
from tests.unit.packaged import (
    BUILT,
    HERE,
    Install,
    find,
    find_projects,
    here,
    index,
    install,
    make_project,
    project,
    python_of,
    resolve,
    run,
)

__all__ = ["index", "install", "project"]

FACTORY = """\
import re
from types import SimpleNamespace

class Factory:
    def create_poetry(self, folder):
        text = (folder / "pyproject.toml").read_text()
        text = text[text.index("dependencies]"):].partition("[build-system]")[0]
        rows = re.findall(r'(?m)^(\\w+) = (?:"(.*)"|{ path = "(.*)" })$', text)
        lines = [
            f"{name} @ file://{folder / path}" if path else name + version
            for name, version, path in rows
            if name != "python"
        ]
        requires = [SimpleNamespace(to_pep_508=line.format) for line in lines]
        return SimpleNamespace(package=SimpleNamespace(requires=requires))
"""
"""As far as tests need that of Poetry."""
SPECS = "a==1\nb==2.1\nc==2.1\nd==1.*\ne\nf>1\ng==1.*\n"
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
    ("text", "lines"),
    [
        (CONDA, "demo==1.*\nhelper==1.5.*\ntorch>=2.1\nother>=2,<3\ntrainer==1.0\n"),
        (
            "dependencies:\n- python=3.11\n- pip:\n  - 'demo<2'  # ours\n\n  - helper",
            "demo<2\nhelper\n",
        ),
        ("dependencies: [pip, cowsay]\n", "cowsay\n"),
        ("dependencies: [c::a==1, b 2.1, c 2.1 py_0, d=1.*, e=1|2, 'f > 1', 'g=1=py']\n", SPECS),
    ],
)
def test_an_environment_of_conda_is_read_as_pip_has_it(
    text: str, lines: str, project: Path
) -> None:
    Path("environment.yml").write_text(text)
    wanted = find()
    assert wanted is not None
    assert wanted.lines == lines


@pytest.mark.parametrize(
    ("python", "is_said"),
    [("=3.10", 1), ("=3.11", 0), ("==3.11", 0), (" >=3.9,<3.12", 0), (">3.11.2", 1), ("=3.x", 0)],
)
def test_another_python_than_an_environment_of_conda_names_is_said(
    python: str, is_said: int, project: Path
) -> None:
    Path("environment.yml").write_text(f"dependencies: ['python{python}', demo]\n")
    wanted = find()
    assert wanted is not None
    one = node("worker-1", python=Python(**HERE))
    said = (
        f"environment.yml names python {python.lstrip(' =')}, and worker-1 has 3.11.2: `--python "
    )
    found = project_packages.warn_of_python(wanted, [one])
    assert found.startswith(said) if is_said else not found
    chosen = project_packages.choose_packages(cluster(one), "3.12")
    assert not project_packages.warn_of_python(wanted, chosen.nodes), "it was chosen"


def test_what_only_conda_has_is_named(project: Path, index: Path, tmp_path: Path) -> None:
    Path("environment.yml").write_text("dependencies: [demo=1, libfoo, helper=9, helper-foo]\n")
    wheels.make(index, "helper_foo", "1.0")
    (lock,) = resolve("", here("worker-1", tmp_path)).locks.values()
    assert set(lock.packages) == {"demo==1.0", "helper-foo==1.0"}
    assert lock.note == "no package index has helper, libfoo of environment.yml"


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


@pytest.mark.parametrize("build", ["", BUILT], ids=["plain", "unbuilt"])
def test_a_project_of_poetrys_that_is_no_package_gets_what_it_depends_on(
    build: str, project: Path, index: Path, install: Install, tmp_path: Path
) -> None:
    """Poetry does not build it, and neither has it to say how."""
    wheels.make(index, "poetry_core", "2.0", files={"poetry/core/factory.py": FACTORY})
    mode = "" if build else "package-mode = false\n"
    lines = 'python = "^3.10"\ndemo = "<2"\nhelper = { path = "lib" }\n'
    Path("pyproject.toml").write_text(
        f"[tool.poetry]\n{mode}[tool.poetry.dependencies]\n{lines}{build}"
    )
    Path("lib").mkdir()
    Path("lib/pyproject.toml").write_text('[project]\nname = "helper"\nversion = "7"\n')
    for given in ("", "pyproject.toml"):
        wanted = find(given)
        assert wanted
        assert wanted.source == "pyproject.toml"
    worker = here("worker-1", tmp_path)
    install("", worker)
    assert run(python_of(worker), "train.py") == "1.0\n"
    projects = find_projects(resolve_program("train.py", ()), "", worker)
    assert [one.folder for one in projects] == [".", "lib"]
    assert [bool(one.warning) for one in projects] == [bool(build), False]
    Path("pyproject.toml").write_text("[tool.poetry]\ndependencies = 7\n")
    assert "cannot be built" in find_projects(resolve_program("train.py", ()))[0].warning


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


def test_an_extra_that_the_project_does_not_have(project: Path) -> None:
    head = '[project]\nname = "mine"\nversion = "1"\n'
    text = "[project.optional-dependencies]\nThe_Docs = []\n[dependency-groups]\nlint = []\n"
    for parts in (("--extra", "test"), ("--extra", "the.docs", "--group", "docs")):
        Path("pyproject.toml").write_text(head + text)
        found = replace(resolve_program("train.py", ()), parts=parts)
        with pytest.raises(UsageError, match=f"has no {parts[-2][2:]} {parts[-1]}") as caught:
            project_packages.find_package_files(found, "")
        assert caught.value.hint == "it has --extra the-docs, --group lint"
    Path("pyproject.toml").write_text(head + 'dynamic = ["optional-dependencies"]\n')
    found = replace(found, parts=("--extra", "test", "--group", "dev"))
    assert project_packages.find_package_files(found, ""), "only a build says which there are"


def test_extras_and_groups_are_those_of_the_project(
    project: Path, index: Path, tmp_path: Path
) -> None:
    """As `uv run` takes them; with a lock or without one."""
    Path("requirements.txt").write_text("demo\n")
    Path("pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\n'
        '[project.optional-dependencies]\nmore = ["helper"]\n'
        '[dependency-groups]\ndev = ["outdated"]\nrare = ["trainer"]\nusual = ["demo<2"]\n'
        '[tool.uv]\ndefault-groups = ["dev", "usual"]\n'
    )
    parts = ("--extra", "more", "--group", "rare")
    found = replace(resolve_program("train.py", ()), parts=parts)
    one = here("worker-1", tmp_path)
    for locked in (False, True):
        if locked:
            wheels.make(index, "torch", "2.4.1")
            run(str(Path(sys.executable).parent / "uv"), "lock", "--quiet")
        wanted = project_packages.find_package_files(found, "")
        assert wanted
        packages, _ = project_packages.resolve_packages(wanted, found.tree, [one])
        assert packages
        (lock,) = packages.locks.values()
        assert set(lock.packages) == {"demo==1.0", "helper==1.5", "trainer==1.0"}
    behind = replace(resolve_run(Run({"command": ("poetry", "run", "demo-version")})), parts=parts)
    found_behind = project_packages.find_package_files(behind, "")
    assert found_behind
    assert found_behind.options == wanted.options


@pytest.mark.parametrize("name", ["pyproject.toml", "train.py"])
def test_a_project_needs_its_python(name: str, project: Path, index: Path, tmp_path: Path) -> None:
    table = 'requires-python = ">=3.99"\ndependencies = ["demo"]\n'
    block = "".join(f"# {line}\n" for line in ("/// script", *table.splitlines(), "///"))
    texts = {"train.py": f"{block}\n\nimport demo\n"}
    Path(name).write_text(texts.get(name, f'[project]\nname = "x"\nversion = "1"\n{table}'))
    with pytest.raises(UsageError, match=r"needs Python >=3\.99, and worker-1 has 3\."):
        resolve("", here("worker-1", tmp_path))


def test_what_names_packages_and_is_not_read_is_said(
    project: Path, call: Call, lab: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/home/me/env")
    said = call("run", "--dry-run", "train.py").out
    assert "active environment /home/me/env" in said
    assert "pip freeze >requirements.txt" in said
    Path("Pipfile").touch()
    assert "pipenv requirements >requirements.txt" in call("run", "--dry-run", "train.py").out
    Path("requirements.txt").touch()
    assert "requirements.txt`" not in call("run", "--dry-run", "train.py").out
