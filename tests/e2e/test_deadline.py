"""A local cluster with --ttl: it goes at its time, and nobody has to be there."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.e2e.cli import Traces, wait_for
from tests.e2e.conftest import MakeCli

pytestmark = pytest.mark.sshd

SAVES = """#!/bin/sh
trap 'echo saved at $(date +%s); kill $!; exit 0' TERM
sleep 300 & wait
"""


def test_a_cluster_goes_at_its_time_and_ranks_are_told_before(
    make_cli: MakeCli, tmp_path: Path
) -> None:
    """Once, and all of them."""
    program = tmp_path / "save" / "saves.sh"
    program.parent.mkdir()
    program.write_text(SAVES)
    program.chmod(0o755)
    cli = make_cli()
    up = cli("up", "--ttl", "1h")
    assert "ends " in up.err
    traces = Traces.of(cli)
    status = cli.json("status")
    assert status["warnings"] == [], "somebody waits for the deadline as soon as it is up"
    first = status["deadline"]
    assert 3500 < first - time.time() <= 3600

    # Up again does not move it, extend does; both find the same process waiting.
    cli("up")
    assert cli.json("status")["deadline"] == first
    job = cli.json("run", "--detach", str(program))["id"]
    wait_for(lambda: "running" in cli("jobs").out, 30, "it does not run")
    cli("extend", "--ttl", "40s", "--yes")
    at = cli.json("status")["deadline"]
    time.sleep(max(0.0, at - time.time()))  # a look costs more than to wait
    wait_for(lambda: not cli.json("list")["clusters"], 60, "it outlives its deadline")
    assert traces.left() == []
    said = cli("logs", str(job)).out
    moments = [int(found) for found in re.findall(r"saved at (\d+)", said)]
    assert len(moments) == 2, said
    assert max(moments) < int(at)
