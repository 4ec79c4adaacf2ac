"""Ports between hosts, tried with real sockets of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterctl.actions.attach import check_ports
from clusterctl.core.model import Cluster, Role
from clusterctl.errors import NodeUnreachable
from clusterctl.transport.pool import Pool
from tests.unit.making import cluster, node


def hosts(*pythons: str) -> Cluster:
    """Hosts that are all this machine, each with an address of its own. The first one runs ranks
    too."""
    made = [
        replace(node(f"host-{n}", f"127.0.0.{n + 1}"), address="", role=Role.WORKER, python=python)
        for n, python in enumerate(pythons)
    ]
    made[0] = replace(made[0], role=Role.BOTH)
    return cluster(*made, provider="hosts")


def check(where: Cluster) -> None:
    with Pool(where.nodes, identity=None, known_hosts=Path("known_hosts")) as pool:
        check_ports(pool, where)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hosts_that_reach_each_other(count: int) -> None:
    check(hosts(*[sys.executable] * count))


def test_a_firewall_is_named_with_both_hosts(tmp_path: Path) -> None:
    """A host that says that it listens, and that nobody reaches there."""
    closed = tmp_path / "python"
    closed.write_text(
        "#!/bin/sh\nread -r program; read -r request\n"
        """case $request in *'"serve"'*) echo '@@probe {"port": 1}'; cat >&2; exit ;; esac\n"""
        """{ printf '%s\\n' "$program" "$request"; cat; }"""
        f' | {sys.executable} "$@"\n'
    )
    closed.chmod(0o755)
    with pytest.raises(NodeUnreachable, match="not on other ports") as caught:
        check(hosts(sys.executable, str(closed), sys.executable))
    said = caught.value.message
    assert "host-0 → host-1: no connection: " in said
    assert "→ host-0" not in said
    assert "→ host-2" not in said
    assert "refused" in said
    assert "1024 to 65535" in caught.value.hint


def test_a_host_without_python_is_left_out() -> None:
    check(hosts(sys.executable, ""))
