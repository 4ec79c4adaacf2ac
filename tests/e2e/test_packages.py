"""A project with a lock file, a package layout, a config file and a data set, on nodes that have no
internet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.conftest import Need
from tests.e2e.cli import Cli

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]
PROJECT = Path(__file__).resolve().parents[1] / "project"


def test_a_project_with_a_lock_file_runs_as_it_is(cli: Cli, need: Need, tmp_path: Path) -> None:
    need("uv")
    index = tmp_path / "index"
    wheels.make(index, "demo", "2.0", "helper")
    wheels.make(index, "helper", "1.0")
    wheels.make(index, "torch", "2.13.0")  # what the lock names; the nodes have their own
    env = wheels.settings(index)
    folder = cli.folder / "wave"
    shutil.copytree(PROJECT, folder)
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "lock", "-q"], cwd=folder, env=cli.environment(env), check=True, timeout=60)

    first = cli("run", "train.py", cwd=folder, env=env)
    assert [line.split(":")[0] for rank in range(2) for line in first.of(rank)] == [
        f"demo 2.0, rank {rank} of 2" for rank in range(2)
    ]
    shutil.rmtree(index)
    again = cli("rerun", first.job)
    assert "packages" not in again.err.replace("using the packages", "")
    assert again.of(1) == first.of(1)
    cli("fetch", first.job, "--to", "out")
    assert [path.name for path in (cli.folder / "out").rglob("model.json")] == ["model.json"]
