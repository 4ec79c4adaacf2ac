"""Where SSH is closed: clusters that are reached through an EC2 Instance Connect Endpoint alone."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.ec2.conftest import World, policy

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(600),
]

UP = ("up", "--cpu", "t3.xlarge", "--runtime", "host", "--instance-connect", "--yes")
COUNTS = """#!/bin/sh
for n in $(seq 1 30); do echo count $n; sleep 0.2; done
"""
WHOLE = [f"count {n}" for n in range(1, 31)]


@pytest.fixture
def closed(world: World) -> World:
    """No address is let in. The AWS CLI is on PATH."""
    world.settings.unlink()
    world.env["PATH"] = f"{world.ec2.offer_tunnels()}:{world.env['PATH']}"
    return world


def follow_through(world: World, breaks: bool) -> None:
    """Follows a job while its connection ends; `breaks`: because the network cuts it."""
    words = ("--detach", "--ranks", "1", "--json", world.program("counts.sh", COUNTS))
    number = str(world.ok("run", *words).document()["id"])
    logs = world.start("logs", "-f", number)
    assert logs.stdout
    assert logs.stderr
    shown = [logs.stdout.readline() for _ in range(3)]
    if breaks:
        assert world.ec2.cut_tunnels() >= 1
    with logs.stdout, logs.stderr:
        shown += logs.stdout.readlines()
        err = logs.stderr.read()
    assert logs.wait(60) == 0, err
    lines = [line.rpartition("] ")[2].strip() for line in shown]
    assert [line for line in lines if line.startswith("count")] == WHOLE, err
    assert "reconnected to launcher" in err


def plain_ssh(world: World, *words: str) -> str:
    """As a person types it in another terminal, or an editor starts it, which has not what the
    shell has in which `up` was typed."""
    config = str(Path(world.env["HOME"], ".ssh", "config"))
    env = {name: value for name, value in world.env.items() if name != "AWS_PROFILE"}
    done = subprocess.run(
        ["ssh", "-F", config, *words], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_cluster_is_used_without_any_open_port(closed: World) -> None:
    world = closed
    world.ec2.fault("slow_endpoint", seconds=3)  # on AWS, minutes
    up = world.ok(*UP)
    assert "SSH to the launcher goes through an EC2 Instance Connect Endpoint" in up.err
    launcher = world.ec2.machine("launcher")
    assert launcher.public, "for packages: it costs less than a NAT gateway"
    with pytest.raises(TimeoutError):
        socket.create_connection((launcher.public, 22), timeout=2).close()

    follow_through(world, breaks=True)
    world.ec2.fault("short_tunnels", seconds=3)  # on AWS, an hour
    follow_through(world, breaks=False)
    world.ec2.clear()

    names = {name: world.ec2.machine(name).hostname for name in ("launcher", "worker-1")}
    for name, hostname in names.items():
        assert world.ok("ssh", name, "--", "hostname").out.strip() == hostname
    world.ok("ssh-config")
    assert plain_ssh(world, "default-launcher", "hostname") == names["launcher"]
    assert plain_ssh(world, "default-worker-1", "hostname") == names["worker-1"]
    sent = Path(world.program("sent", "text"))
    world.ok("cp", str(sent), "worker-1:sent")
    assert plain_ssh(world, "default-worker-1", "cat sent") == "text"
    assert "worker-2" in world.ok("status", "--live").out

    allow = world.run("allow")
    assert allow.code == 2
    assert "only through its EC2 Instance Connect Endpoint" in allow.err
    world.ec2.fault("tunnel", calls=2)
    refused = world.run("ssh", "launcher", "--", "true")
    assert refused.code == 4
    assert "Try again later." in refused.err
    world.ec2.clear()
    again = world.run("up", "--ssh-cidr", "203.0.113.7", "--yes")
    assert (again.code, "--ssh-cidr" in again.err) == (2, True), again.err
    world.ec2.fault("slow_end", seconds=3)  # its interface holds subnet and group
    world.ok("down", "--yes", "--force")
    assert world.ec2.tunnels == 0


@pytest.mark.all
def test_no_machine_needs_a_public_address(closed: World) -> None:
    world = closed
    rights = policy()
    wanted = "ec2-instance-connect:OpenTunnel"
    rest = [one for one in rights["Statement"] if one["Action"] != wanted]
    world.ec2.policy({**rights, "Statement": rest})
    up = world.run(*UP, "--private", "--workers", "1")
    assert up.code == 4
    assert f"is not authorized to perform: {wanted}" in up.err
    world.ec2.policy(rights)
    up = world.ok("up", "--yes")
    machines = world.ec2.machines.values()
    assert [one.public for one in machines] == [None, None]
    hostname = world.ec2.machine("worker-1").hostname
    assert world.ok("ssh", "worker-1", "--", "hostname").out.strip() == hostname
    world.ok("stop", "--yes")
    world.ok("start", "--yes")
    assert world.ok("ssh", "worker-1", "--", "hostname").out.strip() == hostname
    world.ok("down", "--yes", "--force")
