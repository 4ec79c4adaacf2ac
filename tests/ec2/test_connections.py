"""How often `up` connects, and how often it starts something: counted by the nodes' own sshd."""

from __future__ import annotations

import base64
import re
from collections import Counter

import pytest

from clusterctl.core.keys import compute_fingerprint
from tests.ec2.conftest import World

pytestmark = [pytest.mark.terraform, pytest.mark.netns, pytest.mark.sshd, pytest.mark.timeout(400)]

LOG = "/var/log/auth.log"
NODES = ("launcher", "worker-1", "worker-2")


def counted(world: World) -> tuple[dict[str, int], dict[str, int]]:
    """Connections and commands per node that came with the cluster's user key: from us, not from
    its other nodes. The logs are empty afterwards."""
    public = (world.home / "clusters/default/ssh/user.pub").read_text().split()[1]
    ours = compute_fingerprint(base64.b64decode(public))
    connections, commands = {}, {}
    for name in NODES:
        machine = world.ec2.machine(name)
        text = machine.run("cat", LOG).stdout
        machine.run("truncate", "--size=0", LOG)
        accepted = rf"Accepted publickey for ubuntu from (\S+ port \d+) ssh2: \S+ {re.escape(ours)}"
        came = set(re.findall(accepted, text))
        started = Counter(
            re.findall(r"Starting session: command for ubuntu from (\S+ port \d+)", text)
        )
        connections[name] = len(came)
        commands[name] = sum(number for whence, number in started.items() if whence in came)
    return connections, commands


@pytest.mark.all
def test_one_connection_and_two_commands_per_node(world: World) -> None:
    world.ok("up", "--cpu", "t3.xlarge", "--runtime", "host", "--yes")
    connections, _ = counted(world)
    # One with the key of the user data; one with the node's own, for all that follows.
    assert connections == dict.fromkeys(NODES, 2)

    # A mesh with a hole ends `up` between the bootstrap and the first job.
    second = next(n for n in world.record()["nodes"] if n["name"] == "worker-2")
    deny = f"DenyUsers ubuntu@{second['private_address']}\n"
    worker = world.ec2.machine("worker-1")
    worker.run("sh", "-c", f"echo '{deny}' >/etc/ssh/sshd_config.d/deny.conf")
    worker.run("systemctl", "reload", "ssh")
    up = world.run("up", "--yes")
    assert up.code == 4, up.err
    assert "worker-2 → worker-1" in up.err
    connections, commands = counted(world)
    # First the launcher is told that the cluster is used: no worker may end as unused meanwhile.
    assert connections == {"launcher": 2, "worker-1": 1, "worker-2": 1}
    # The second asks what the clock shows; the launcher's fourth is the mesh.
    assert commands == {"launcher": 4, "worker-1": 2, "worker-2": 2}

    worker.run("rm", "/etc/ssh/sshd_config.d/deny.conf")
    worker.run("systemctl", "reload", "ssh")
    world.ok("up", "--yes")
    connections, _ = counted(world)
    assert connections == {"launcher": 2, "worker-1": 1, "worker-2": 1}, (
        "the mesh and the first job make none of ours"
    )
    world.ok("down", "--yes", "--force")
