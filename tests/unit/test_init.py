"""`init`: a settings file that clusterctl reads, for the project at hand."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from clusterctl.actions import init
from clusterctl.insight import messages
from clusterctl.options import kinds
from clusterctl.options.verbs import VERBS
from tests.unit.calling import Call
from tests.unit.making import job


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def read() -> kinds.Settings:
    return kinds.read_settings({verb: options.options() for verb, options in VERBS.items()})


def test_commands_and_packages_of_a_project(project: Path, call: Call) -> None:
    text = '[project]\nname = "p"\nversion = "1"\nscripts = { p-train = "p.train:main" }\n'
    (project / "pyproject.toml").write_text(text)
    said = call("init", "--print").out
    assert "#     clusterctl run p-train\n" in said


def test_every_line_is_one_that_clusterctl_reads(project: Path) -> None:
    lines = init.make_text(project).splitlines()
    whole = [line.removeprefix("# ") if " = " in line else line for line in lines]
    (project / "clusterctl.toml").write_text("\n".join(whole))
    found = read()
    for verb, samples in init.SAMPLES.items():
        assert set(found[verb]) == set(samples)


def test_a_file_that_is_there_stays(project: Path, call: Call) -> None:
    (project / "clusterctl.toml").write_text("# mine\n")
    said = call("init")
    assert said.code == 2
    assert "already exists" in said.err
    assert (project / "clusterctl.toml").read_text() == "# mine\n"
    assert call("init", "--print").out == init.make_text(project)


def test_exit_codes_that_say_something_have_a_hint() -> None:
    assert "memory" in messages.explain_exit(137, job())
    assert "PATH" in messages.explain_exit(127, job())
    assert messages.explain_exit(1, job()) == ""


def test_nothing_is_left_where_the_disk_is_full(project: Path, call: Call) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert call("init").code != 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(project.iterdir()) == []
    assert call("init").code == 0
