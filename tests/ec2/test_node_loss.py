"""Machines that EC2 takes away under a job: it goes on with new ones, from what it had saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_dead_worker import TRAINS, undisturbed
from tests.ec2.conftest import World

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
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


def trains(folder: Path, steps: int) -> str:
    """A program that goes on from its snapshot, and is busy for a while in each step."""
    program = folder / "program" / "trains.py"
    program.parent.mkdir()
    program.write_text(TRAINS.replace("< 50", f"< {steps}"))
    return str(program)


SPOT = ("--cpu", "t3.xlarge", "--spot", "--spot-fallback", "--runtime", "host", "--yes")


def test_a_job_goes_on_when_ec2_has_no_spot_instance_left(world: World, tmp_path: Path) -> None:
    """A machine goes without notice while nobody follows, and another one costs more: who follows
    later sees the result of an undisturbed run, to the last bit."""
    world.ok("up", *SPOT)
    cheap = rates(world)
    machines = {node["name"]: node["machine"] for node in world.record()["nodes"]}
    started = world.ok("run", "--detach", "--json", *POLICY, trains(tmp_path, 100))
    number = str(started.document()["id"])
    world.wait(lambda: "step 20\n" in world.ok("logs", number).out, 120, "step 20")
    world.ec2.fault("ice", market="spot")
    lost = machines["worker-2"]
    world.ec2.client("ec2").terminate_instances(InstanceIds=[lost])
    world.wait(lambda: lost not in world.ec2.machines, 60, "the end of worker-2")
    followed = world.ok("logs", number, "-f", timeout=280)
    assert "lost worker-2: starting it again" in followed.err
    assert "has no capacity for spot (" in followed.err
    assert "worker-2 on-demand instead, the cluster then costs $" in followed.err
    assert followed.out.count(undisturbed(100)) == 2, followed.out
    assert steps(followed.out)[1] >= 20
    now = {node["name"]: node["machine"] for node in world.record()["nodes"]}
    assert [name for name in now if now[name] != machines[name]] == ["worker-2"]
    dear = rates(world)
    assert dear["worker-2"] > cheap["worker-2"]
    assert {**dear, "worker-2": 0.0} == {**cheap, "worker-2": 0.0}
    assert world.record()["mode_reason"] == "us-east-1, spot (worker-2 on-demand)"
    assert world.ok("up", "--json").document()["phase"] == "ready", "nothing has to change"
    world.ok("down", "--yes", "--discard")
