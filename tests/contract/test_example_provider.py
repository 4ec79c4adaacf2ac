"""A provider takes a folder and a row: the one that CONTRIBUTING shows does all that `up`, `run`
and `down` take, without a word about it anywhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.actions import up
from clusterctl.actions.common import open_store
from clusterctl.cli.main import execute
from clusterctl.core.progress import READY, NodePhases
from clusterctl.machines import providers

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
from importlib import import_module
from clusterctl.options.kinds import PROVIDER_OPTIONS, ProviderOptions

PROVIDER_OPTIONS["processes"] = ProviderOptions(title="sshd", shares=frozenset({"--disk"}))
example = import_module("tests.contract.example_provider")
sys.modules["clusterctl.machines.processes.provider"] = example
from clusterctl.cli.main import execute

for line in json.loads(sys.argv[1]):
    print("@@", execute(line), flush=True)
"""
"""Runs command lines, with a row for the example. The exit code comes behind what each prints."""


@pytest.mark.sshd
@pytest.mark.mpi
def test_a_row_is_all_that_a_provider_takes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = "tests.contract.example_provider:ProcessesProvider"
    monkeypatch.setitem(providers.PROVIDERS, "processes", row)
    monkeypatch.chdir(tmp_path)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # compiled into sshd
    assert execute(["up", "--provider", "processes", "--workers", "2"]) == 0
    folder = open_store().locate_folder("default")
    try:
        pids = [int(path.read_text()) for path in folder.glob("nodes/*.pid")]
        assert len(pids) == 3
        nodes, spec = NodePhases(watched=True), open_store().read_cluster("default").spec
        up.bring_up(open_store(), spec, lambda line: None, lambda question: True, nodes=nodes)
        assert [node.phase for node in nodes.look().nodes] == [READY] * 3
        capfd.readouterr()
        assert execute(["run", "--ranks", "4", "reduce_all.py", "--no-table"]) == 0
        assert "ok:" in capfd.readouterr().out
        assert execute(["status", "--live", "--json"]) == 0
        told = json.loads(capfd.readouterr().out)
        assert [node["live"].partition(",")[0] for node in told["nodes"]] == ["running"] * 3
        # It has no deadline, and that is said where one is asked for.
        assert execute(["extend", "--ttl", "1h"]) == 2
        assert "have no deadline" in capfd.readouterr().err
        assert len(pids) == len(list(folder.glob("nodes/*.pid")))
    finally:
        assert execute(["down", "--discard"]) == 0
    assert not folder.exists()
    assert open_store().list_names() == ()


def test_help_and_options_follow_from_the_row(tmp_path: Path) -> None:
    """It says that it shares an option of EC2, and no other one."""
    lines = [
        ["up", "--help"],
        ["up", "--provider", "processes", "--disk", "10", "--dry-run"],
        ["up", "--provider", "processes", "--spot", "--dry-run"],
        ["up", "--provider", "docker", "--disk", "10", "--dry-run"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTERCTL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said, shown, *_ = (" ".join(part.split()) for part in done.stdout.split("@@"))
    assert "local, docker, ec2 or processes (default: as options imply)" in said
    assert "Disk size of each worker, 8 to 16384 (also sshd)" in said
    assert shown.startswith("0 mode: processes")
    assert "3 sshd on this machine with 10 GB" in shown
    codes = [part.split()[0] for part in done.stdout.split("@@")[1:]]
    assert codes == ["0", "0", "2", "2"]
    told = " ".join(done.stderr.split())
    assert "--spot works only with EC2" in told
    assert "--disk works only with EC2 and sshd" in told
    assert "add --provider ec2 or processes, or leave it out" in told
