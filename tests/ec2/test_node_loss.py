"""Machines that EC2 takes away under a job: it goes on with new ones, from what it had saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_dead_worker import TRAINS, undisturbed
from tests.ec2.conftest import World

pytestmark = [
    *(pytest.mark.terraform, pytest.mark.netns, pytest.mark.sshd, pytest.mark.mpi),
    pytest.mark.timeout(600),
]

POLICY = ("--on-node-loss", "replace")


def steps(text: str) -> list[int]:
    """Where rank 0 began, each time."""
    return [int(line.split()[-1]) for line in text.splitlines() if line.startswith("[0] from ")]


def rates(world: World) -> dict[str, float]:
    """Of the machines that run, in dollars per hour."""
    charges = [item for item in world.record()["charges"] if item["part"] == "instance"]
    return {item["node"]: item["hourly"] for item in charges if item["until"] is None}


def test_a_job_goes_on_when_ec2_takes_its_machines_away(world: World, tmp_path: Path) -> None:
    """First with two minutes' notice and a client that follows it, then with none and nobody there,
    while there is no room for spot instances: each time the result is that of an undisturbed run,
    to the last bit."""
    program = tmp_path / "program" / "trains.py"
    program.parent.mkdir()
    program.write_text(TRAINS.replace("< 100", "< 200"))
    expected = undisturbed(200)
    spot = ("--cpu", "t3.xlarge", "--spot", "--spot-fallback", "--runtime", "host", "--yes")
    world.ok("up", *spot)
    cheap = rates(world)
    machines = {node["name"]: node["machine"] for node in world.record()["nodes"]}

    running = world.start("run", *POLICY, str(program))
    jobs = world.home / "jobs"
    world.wait(
        lambda: any("step 20\n" in file.read_text() for file in jobs.glob("*/out/*/rank-0.out")),
        120,
        "step 20",
    )
    world.ec2.fault("spot_notice", node="worker-1", seconds=60, calls=1)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert "EC2 reclaimed worker-1: starting it again, then continuing job" in err
    assert out.count(expected) == 2, out
    assert steps(out)[1] >= 20
    world.ec2.clear()

    number = str(world.ok("run", "--detach", "--json", *POLICY, str(program)).document()["id"])
    world.wait(lambda: "step 20\n" in world.ok("logs", number).out, 120, "step 20 again")
    machine = {node["name"]: node["machine"] for node in world.record()["nodes"]}["worker-2"]
    assert machine == machines["worker-2"], "who was not taken away has stayed"
    assert rates(world) == cheap
    world.ec2.fault("ice", market="spot")
    world.ec2.client("ec2").terminate_instances(InstanceIds=[machine])
    world.wait(lambda: machine not in world.ec2.machines, 60, "the end of worker-2")
    followed = world.ok("logs", number, "-f", timeout=280)
    assert "lost worker-2: starting it again" in followed.err
    assert "no capacity for spot (no capacity" in followed.err
    assert "worker-2 on-demand instead, the cluster then costs $" in followed.err
    assert followed.out.count(expected) == 2, followed.out
    assert steps(followed.out)[1] >= 20
    dear = rates(world)
    assert dear["worker-2"] > cheap["worker-2"]
    assert {**dear, "worker-2": 0.0} == {**cheap, "worker-2": 0.0}
    assert world.record()["mode_reason"] == "us-east-1, spot (worker-2 on-demand)"
    assert world.ok("up", "--json").document()["phase"] == "ready", "nothing has to change"
    world.ok("down", "--yes", "--discard")
