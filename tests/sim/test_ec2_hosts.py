"""Light hosts: what a fresh Ubuntu instance does, they do."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.sim.ec2.client import Ec2
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]


def test_hosts_are_machines(lab: Lab) -> None:
    lab.launch("one")
    lab.launch("two")
    machines = lab.ec2.wait(2)
    one, two = lab.ec2.machine("one"), lab.ec2.machine("two")
    assert lab.ssh("one", "hostname; whoami; echo ~") == f"{one.hostname}\nubuntu\n/home/ubuntu\n"
    assert lab.ssh("one", "sudo -n id -u") == "0\n"
    assert lab.ssh("one", "cat /sys/class/net/docker0/operstate /proc/1/comm") != ""
    # Private addresses are for the machines alone: the way to them is through another machine.
    assert lab.ssh("two", "hostname", jump="one") == f"{two.hostname}\n"
    assert len(machines) == 2


def test_user_data_is_executed(lab: Lab) -> None:
    unit = "[Service]\nExecStart=/bin/sh -c 'echo $A > /run/said; sleep 100'\nEnvironment=A=b\n"
    lab.launch(
        "one",
        {
            "write_files": [
                {"path": "/etc/deep/file", "content": "text\n", "permissions": "0640"},
                {"path": "/etc/coded", "content": "Y29kZWQ=", "encoding": "b64"},
                {"path": "/etc/systemd/system/mine.service", "content": unit},
            ],
            "runcmd": [["touch", "/etc/with space"], "systemctl start mine", "echo $((1+1))"],
        },
    )
    lab.ec2.wait(1)
    assert lab.ssh("one", "cloud-init status --wait") == "status: done\n"
    assert lab.ssh("one", "sudo stat -c %a /etc/deep/file; cat /etc/coded") == "640\ncoded"
    assert lab.until(lambda: lab.try_ssh("one", "cat /run/said").stdout, {""}) == "b\n"
    assert lab.ssh("one", "ls '/etc/with space'") == "/etc/with space\n"
    assert (
        lab.ssh("one", "systemctl is-active mine ssh nothing; true") == "active\nactive\ninactive\n"
    )
    assert lab.ssh("one", "sudo tail -1 /var/log/cloud-init-output.log") == "2\n"


def test_a_service_that_dies_comes_back(lab: Lab) -> None:
    unit = "[Service]\nExecStart=/bin/sleep 1000\nRestart=always\n"
    unit += "[Install]\nWantedBy=multi-user.target\n"
    lab.launch(
        "one",
        {
            "write_files": [{"path": "/etc/systemd/system/mine.service", "content": unit}],
            "runcmd": ["systemctl enable --now mine"],
        },
    )
    lab.ec2.wait(1)
    lab.ssh("one", "cloud-init status --wait")
    pid = lab.ssh("one", "systemctl show mine | sed -n s/MainPID=//p").strip()
    lab.ssh("one", f"sudo kill -9 {pid}")
    again = lab.until(
        lambda: lab.ssh("one", "systemctl show mine | sed -n s/MainPID=//p").strip(), {pid, "0"}
    )
    assert again != pid
    # Who asks and is killed harms nobody.
    silent = "import socket; socket.socket(socket.AF_UNIX).connect('/run/sim/init.sock')"
    lab.ssh("one", f'python3 -c "{silent}"')
    lab.ssh("one", "sudo systemctl stop mine")
    assert lab.ssh("one", "pgrep -c -x sleep; systemctl is-active mine; true") == "0\ninactive\n"


def test_it_boots_again(lab: Lab) -> None:
    lab.launch("one", {"runcmd": ["date +%N >> /etc/first"]})
    lab.ec2.wait(1)
    lab.ssh("one", "cloud-init status --wait")
    before = lab.ssh("one", "cat /etc/first")
    boot = lab.ssh("one", "cat /proc/sys/kernel/random/boot_id")
    lab.try_ssh("one", "sudo reboot")
    assert lab.until(lambda: lab.try_ssh("one", "cat /etc/first").stdout, {""}) == before
    assert lab.ssh("one", "cat /proc/sys/kernel/random/boot_id") != boot


def test_metadata(lab: Lab) -> None:
    lab.launch("one", MetadataOptions={"HttpTokens": "required"})
    lab.ec2.wait(1)
    url = "http://169.254.169.254/latest"
    script = (
        f"t=$(curl -sS -X PUT {url}/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 60')\n"
        f'get() {{ curl -sS -o /dev/null -w "%{{http_code}} " -H "X-aws-ec2-metadata-token: $t" '
        f"{url}/meta-data/$1; }}\n"
    )
    (id,) = lab.ec2.machines
    read = f'curl -sS -H "X-aws-ec2-metadata-token: $t" {url}/meta-data/'
    assert lab.ssh("one", f"{script}{read}instance-id") == id
    assert lab.ssh("one", f"curl -sS -o /dev/null -w '%{{http_code}}' {url}/meta-data/") == "401"
    assert lab.ssh("one", f"{script}get spot/instance-action") == "404 "
    lab.ec2.fault("spot_notice", node="one", seconds=12, calls=1)
    ask = lambda: lab.try_ssh("one", f"{script}{read}spot/instance-action").stdout  # noqa: E731
    notice = lab.until(lambda: "action" in ask() and ask(), {False, ""})
    assert json.loads(str(notice))["action"] == "terminate"
    lab.ec2.wait(0)
    assert lab.states() == ["terminated"]


def test_names(lab: Lab) -> None:
    """As in a VPC: both ways, for its own machines; others are unknown, and that is said soon."""
    lab.launch("one")
    lab.launch("two")
    lab.ec2.wait(2)
    two = lab.ec2.machine("two")
    patient = "sudo sh -c 'echo options timeout:60 attempts:2 >>/etc/resolv.conf'"
    lab.ssh("one", patient)  # who waits for an answer waits for two minutes
    started = time.monotonic()
    assert lab.ssh("one", f"getent hosts {two.hostname}").split()[0] == two.private
    assert (
        lab.ssh("one", f"getent hosts {two.private}").split()[1] == f"{two.hostname}.ec2.internal"
    )
    assert lab.try_ssh("one", "getent hosts example.com 10.77.0.200").returncode == 2
    assert time.monotonic() - started < 60


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
