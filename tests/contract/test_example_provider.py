"""A provider takes a folder and a row: the one that CONTRIBUTING shows does all that `up`, `run`
and `down` take, without a word about it anywhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clusterctl import providers
from clusterctl.actions import open_store, up
from clusterctl.cli import execute
from clusterctl.node_phases import READY, NodePhases

pytestmark = [pytest.mark.sshd, pytest.mark.mpi]


def test_a_row_is_all_that_a_provider_takes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = "tests.contract.example_provider:ProcessProvider"
    monkeypatch.setitem(providers.PROVIDERS, "processes", row)
    monkeypatch.chdir(tmp_path)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # compiled into sshd
    assert execute(["up", "--provider", "processes", "--workers", "2"]) == 0
    folder = open_store().folder("default")
    try:
        pids = [int(path.read_text()) for path in folder.glob("nodes/*.pid")]
        assert len(pids) == 3
        nodes, spec = NodePhases(watched=True), open_store().cluster("default").spec
        up.up(open_store(), spec, lambda line: None, lambda question: True, nodes=nodes)
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
    assert open_store().names() == ()
