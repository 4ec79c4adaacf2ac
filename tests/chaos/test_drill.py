"""`clusterctl drill` as CI runs it: few faults and a short program. A long one is run by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, tagged

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.mpi]


def test_a_drill_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state", tmp_path)
    names = ("kill-rank", "kill-client", "lose-node", "reboot-node")
    found = cli.json("drill", "--faults", ",".join(names), "--steps", 40, timeout=280)
    rounds = {item["strike"]["fault"]: item for item in found["rounds"]}
    assert [item["misses"] for item in rounds.values()] == [[], [], [], []]
    assert found["ok"]
    outcomes = [rounds[name]["outcome"] for name in names]
    assert outcomes == ["retried", "continued", "replaced", "replaced"]
    node = rounds["lose-node"]["strike"]["node"]
    assert rounds["lose-node"]["reason"].startswith(f"lost {node}")
    assert cli.clusters() == []
    record = json.loads(next(cli.home.glob("jobs/*/job.json")).read_text())
    assert tagged(f"CLUSTERCTL_NODE={record['cluster_id']}/") == []
