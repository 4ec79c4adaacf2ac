"""A command line to call, and a cluster on record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.actions.common import open_store
from clusterctl.cli import console
from clusterctl.cli.main import execute
from tests.unit.calling import Call, Said
from tests.unit.making import cluster
from tests.unit.scripts import write_program


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    """One command line in this process, from a folder with a script."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    # A machine that stands still for seconds adds no line to what a test looks at.
    monkeypatch.setattr(console, "SILENCE", 600.0)

    def one(*arguments: str) -> Said:
        code = execute(list(arguments))
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return one


@pytest.fixture
def lab() -> None:
    """A ready cluster in the records; its machines are not there, and nobody asks them."""
    open_store().save(cluster())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a program."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "train.py").write_text("pass")
    return folder


@pytest.fixture
def terraform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terraform on PATH that tells its version, for plans."""
    script = write_program(
        tmp_path / "bin" / "terraform", """echo '{"terraform_version": "1.11.4"}'"""
    )
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
