"""Light hosts: where they are as strict as real machines, and that they leave nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.sim.ec2.client import Ec2
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]


def test_hosts_are_as_strict_as_machines(lab: Lab) -> None:
    """What cloud-init does not know is an error; metadata want a token; each Docker engine has the
    same address."""
    wrong = {"write_files": [{"path": "/etc/a", "content": "a", "owner": "ubuntu"}], "packages": []}
    lab.launch("one", wrong, MetadataOptions={"HttpTokens": "required"})
    lab.ec2.wait(1)
    said = lab.try_ssh("one", "cloud-init status --wait --long")
    assert said.returncode == 1
    assert "does not know {'owner'}" in said.stdout
    assert "does not know 'packages'" in said.stdout
    url = "http://169.254.169.254/latest/meta-data/"
    assert lab.ssh("one", f"curl -sS -o /dev/null -w '%{{http_code}}' {url}") == "401"
    assert "172.17.0.1/16" in lab.ssh("one", "ip -o address show docker0")


def test_nothing_of_a_killed_simulator_stays(need_root: None, tmp_path: Path) -> None:
    simulator = Ec2(tmp_path)
    try:
        lab = Lab(simulator, tmp_path)
        lab.launch("one")
        (machine,) = simulator.wait(1).values()
        simulator.kill()
        lab.until(lambda: Path(f"/proc/{machine.pid}").exists(), {True})

        def route() -> str:
            argv = ["ip", "route", "show", f"{machine.public}/32"]
            return subprocess.run(argv, capture_output=True, text=True).stdout

        lab.until(lambda: bool(route()), {True})
    finally:
        simulator.close()


def test_it_is_reached_where_it_is_after_a_stop(lab: Lab) -> None:
    """However short: the loop may see it run before and after, with another address."""
    id = lab.launch("one")
    lab.ec2.wait(1)
    lab.ssh("one", "sudo touch /etc/kept")
    lab.api.stop_instances(InstanceIds=[id])
    lab.api.start_instances(InstanceIds=[id])
    address = lab.instance("one")["PublicIpAddress"]
    lab.until(lambda: lab.ec2.machine("one").public == address, {False})
    assert lab.until(lambda: lab.try_ssh("one", "ls /etc/kept").stdout, {""}) == "/etc/kept\n"
