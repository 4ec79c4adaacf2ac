"""What cannot be on EC2 is said in words that help. No AWS, no machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl import keys
from clusterctl.errors import NodeUnreachable
from clusterctl.model import Node, NodeResult, Role
from clusterctl.providers.ec2.hostkeys import HostKeys


def test_a_node_that_does_not_answer_names_the_cluster_to_try_again(tmp_path: Path) -> None:
    """`up` without a name would make another cluster, on this machine."""
    folder = tmp_path / "red"
    keys.ensure(folder / "ssh" / "user")
    silent = Node(
        name="worker-1",
        role=Role.WORKER,
        address="127.0.0.1",
        private_address="",
        ssh_port=1,
        job_port=1,
        user="me",
        root="/nowhere",
    )
    with pytest.raises(NodeUnreachable) as caught:
        HostKeys(folder).settle([silent], limit=0, on_up=lambda name, seconds: None)
    assert "`clusterctl up red` tries again, `clusterctl down red` removes" in caught.value.hint
    with pytest.raises(NodeUnreachable, match="worker-1: no sudo") as caught:
        HostKeys(folder)._all([NodeResult(node="worker-1", error="no sudo")])
    assert "`clusterctl up red` goes on" in caught.value.hint
