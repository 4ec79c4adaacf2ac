"""A local cluster with --ttl: it goes at its time, and nobody has to be there."""

from __future__ import annotations

import time

import pytest

from tests.e2e.cli import Traces
from tests.e2e.conftest import MakeCli

pytestmark = pytest.mark.sshd


def test_a_cluster_goes_at_its_time(make_cli: MakeCli) -> None:
    cli = make_cli()
    up = cli("up", "--ttl", "1h", "--workers", "1")
    assert "ends " in up.err
    traces = Traces.of(cli)
    first = cli.json("status")["deadline"]
    assert 3500 < first - time.time() <= 3600

    # Up again does not move it, extend does; both find the same process waiting.
    cli("up", "--workers", "1")
    assert cli.json("status")["deadline"] == first
    cli("extend", "--ttl", "2s")
    deadline = time.monotonic() + 30
    while cli.json("list")["clusters"]:
        assert time.monotonic() < deadline, "it outlives its deadline"
        time.sleep(0.2)
    assert traces.left() == []


def test_down_leaves_nobody_waiting(make_cli: MakeCli) -> None:
    cli = make_cli()
    cli("up", "--ttl", "1h", "--workers", "1")
    traces = Traces.of(cli)
    cli("down")
    assert traces.left() == []


def test_extend_needs_a_time(make_cli: MakeCli) -> None:
    cli = make_cli()
    said = cli("extend", code=2)
    assert "--ttl" in said.err
