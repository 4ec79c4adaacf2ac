"""The host keys' way from user data to the node's own: cut off between any two steps, the next
attempt still connects, and never believes a key that it does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from clusterctl.core import keys as core_keys
from clusterctl.core.model import Node, Role
from clusterctl.errors import NodeUnreachable
from clusterctl.machines.ec2.host_keys import HostKeys
from tests.sim.lab import Lab

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(300),
]

SECONDS = 30.0

CLIENT = """
import os, signal, sys
from pathlib import Path
import msgspec
from clusterctl.core.model import Node
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.transport.pool import Pool

folder, dies = Path(sys.argv[1]), int(sys.argv[3])
node = msgspec.json.decode(sys.argv[2], type=Node)
done = []

def reached(step):
    done.append(step)
    if len(done) == dies:
        os.kill(os.getpid(), signal.SIGKILL)

class CountedPool(Pool):
    def call_each(self, *args, **named):
        results = super().call_each(*args, **named)
        if all(result.ok for result in results):
            reached("answered")
        return results

class CountedKeys(HostKeys):
    def write(self, nodes):
        if self.known_hosts.exists():
            reached("noted")
        super().write(nodes)
        reached("written")

    def open_pool(self, nodes):
        return CountedPool(nodes, identity=folder / "ssh" / "user", known_hosts=self.known_hosts)

_, pool = CountedKeys(folder).settle([node], limit=30, report=lambda text: None)
pool.close()
print(" ".join(done))
"""
"""Settles the key of one node, and dies by SIGKILL when so many of the single steps are done."""

CONNECT, PREPARE, SWITCH = ["answered"], ["answered"], ["answered"]
PROVE = ["answered", "answered"]
KNOW = ["noted", "written"]
STEPS = ["written", *CONNECT, *PREPARE, *KNOW, *SWITCH, *PROVE, *KNOW]


class Booted:
    """A machine that shows a key which we have made, as `up` boots it. `image`: files that were in
    its image, as cloud-init writes them."""

    def __init__(self, lab: Lab, folder: Path, name: str, image: Sequence[Any] = ()) -> None:
        self.name = name
        self.folder = folder / name
        self.lab = lab
        user = core_keys.ensure(self.folder / "ssh" / "user")
        pair = self.keys.make_boot_keys([name], living=())[name]
        self.first = pair.public
        said = {"ed25519_private": pair.private, "ed25519_public": pair.public}
        lab.ec2.refill()
        files = {"write_files": list(image)}
        lab.launch(name, {"ssh_keys": said, "ssh_authorized_keys": [user], **files})

    @property
    def keys(self) -> HostKeys:
        return HostKeys(self.folder)

    @property
    def node(self) -> Node:
        machine = self.lab.ec2.machine(self.name)
        assert machine.public
        return Node(
            name=self.name,
            role=Role.LAUNCHER,
            address=machine.public,
            private_address=machine.private,
            ssh_port=22,
            job_port=22,
            user="ubuntu",
            root="/home/ubuntu/r",
        )

    def own(self) -> set[str]:
        """The keys that the machine has made itself: the one to be, and the one in use."""
        script = "cat /etc/clusterctl/next_host_key.pub /etc/ssh/ssh_host_ed25519_key.pub"
        said = self.lab.ec2.machine(self.name).run("sh", "-c", f"{script} 2>/dev/null").stdout
        return {" ".join(line.split()[:2]) for line in said.splitlines()} - {self.first}

    def settle(self) -> None:
        """The next attempt, and what has to be true after it."""
        node = self.node
        if self.keys.known_hosts.exists():
            trusted = {
                line.split(" ", 1)[1] for line in self.keys.known_hosts.read_text().splitlines()
            }
            assert trusted <= {self.first} | self.own()
        final, pool = self.keys.settle([node], limit=SECONDS, report=lambda text: None)
        with pool:
            assert pool.run("true", timeout=SECONDS)[0].ok
        assert {final[self.name]} == self.own()
        assert self.keys.known == {self.name: (final[self.name],)}
        assert self.keys.known_hosts.read_text() == f"{node.address} {final[self.name]}\n"
        assert not self.keys.booting


def booted(lab: Lab, count: int) -> list[Booted]:
    made = [Booted(lab, lab.folder / "states", f"node-{number}") for number in range(count)]
    lab.ec2.wait(count, 60)
    return made


def client(one: Booted, dies: int) -> subprocess.CompletedProcess[str]:
    import msgspec

    node = msgspec.json.encode(one.node).decode()
    argv = [sys.executable, "-c", CLIENT, str(one.folder), node, str(dies)]
    root = Path(__file__).parents[2]
    return subprocess.run(argv, capture_output=True, text=True, cwd=root, timeout=60)


@pytest.mark.all
def test_a_client_killed_after_any_step_goes_on(lab: Lab) -> None:
    whole, *others = booted(lab, len(STEPS) + 1)
    done = client(whole, 0)
    assert done.stdout.split() == STEPS, done.stderr
    whole.settle()
    for dies, one in enumerate(others, 1):
        assert client(one, dies).returncode == -9
        one.settle()


MARK = "/etc/clusterctl/host-key-made-here"


def test_a_machine_made_from_the_image_of_a_node_gets_a_key_of_its_own(lab: Lab) -> None:
    """There is the mark that the node has left, beside the key that came by user data."""
    of_node = core_keys.ensure(lab.folder / "of the node")
    mark = {"path": MARK, "content": f"{of_node}\n"}
    one = Booted(lab, lab.folder / "states", "node-1", image=[mark])
    lab.ec2.wait(1, 60)
    one.settle()
    assert one.own(), "and no longer shows that of the user data"


AS_ROOT = "exec sudo -n /bin/sh -s"


def script(step: str) -> str:
    return assets.render("ec2/hostkey.sh.j2", step=step)


@pytest.mark.all
@pytest.mark.parametrize("step", ["prepare", "switch"])
def test_a_node_cut_off_after_any_line_goes_on(lab: Lab, step: str) -> None:
    """The node's shell dies in the middle of a step: a lost connection, a full disk, a reboot."""
    lines = script(step).splitlines()
    places = [index for index, line in enumerate(lines) if line and not line.startswith("#")]
    for place, one in zip(places, booted(lab, len(places)), strict=True):
        node = one.node
        one.keys.write([node])
        with one.keys.open_pool([node]) as pool:
            if step == "switch":
                [prepared] = pool.run(AS_ROOT, stdin=script("prepare").encode(), timeout=SECONDS)
                path = one.folder / "ec2" / "host-keys.json"
                kept = json.loads(path.read_text())
                kept["known"][one.name].append(prepared.text.strip())
                path.write_text(json.dumps(kept))
                one.keys.write([node])
            cut = "\n".join([*lines[:place], "kill -9 $$", *lines[place:]])
            pool.run(AS_ROOT, stdin=cut.encode(), timeout=SECONDS)
        one.settle()


def changed(one: Booted) -> None:
    """Another machine answers at its address."""
    machine = one.lab.ec2.machine(one.name)
    path = "/etc/ssh/ssh_host_ed25519_key"
    machine.run("rm", path, f"{path}.pub")
    machine.run("ssh-keygen", "-qt", "ed25519", "-N", "", "-f", path)


def test_nothing_is_trusted_on_first_use_at_any_step(lab: Lab) -> None:
    """Before the first connection, with both keys known, and at the end."""
    for dies, one in zip((1, 5, 0), booted(lab, 3), strict=True):
        client(one, dies)
        changed(one)
        with pytest.raises(NodeUnreachable, match="host key has changed"):
            one.keys.settle([one.node], limit=SECONDS, report=lambda text: None)
