"""A Docker engine beside us closes the host's forwarding; its bridge is in e2e/test_programs.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Need
from tests.e2e.cli import Cli

pytestmark = [pytest.mark.netns, pytest.mark.sshd, pytest.mark.mpi]


@pytest.fixture
def closed(need: Need) -> Iterator[None]:
    """As an engine leaves the firewall."""
    iptables = need("iptables")
    before = subprocess.run([f"{iptables}-save"], check=True, capture_output=True).stdout
    subprocess.run([iptables, "-P", "FORWARD", "DROP"], check=True)
    try:
        yield
    finally:
        subprocess.run([f"{iptables}-restore"], input=before, check=True)


def test_a_cluster_works_beside_a_docker_engine(closed: None, tmp_path: Path) -> None:
    """`up` is ready, and ranks on two nodes reach each other over MPI and over gloo."""
    cli = Cli(tmp_path / "state", tmp_path)
    try:
        assert cli.json("up")["mode"] == "namespaces"
        for backend in ("mpi", "gloo"):
            done = cli("run", "--backend", backend, "reduce_all.py", "--no-table")
            assert "each holds 1" in done.out
    finally:
        cli("down", "--force")
