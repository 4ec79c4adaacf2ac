"""What goes wrong on the way up, and that it costs nothing."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from typing import Any

import pytest

from tests.ec2.conftest import World
from tests.sim.ec2.network import YOU
from tests.sim.lab import UBUNTU

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(400),
]

CPU = ("up", "--cpu", "t3.xlarge:1", "--runtime", "host", "--yes")


def test_a_zone_without_room_moves_the_whole_cluster(world: World) -> None:
    world.ec2.grant(64)
    full = {"zone": "us-east-1a", "instance_type": "t3.xlarge"}
    world.ec2.fault("ice", **full, others="us-east-1b, us-east-1c")
    world.ec2.fault("ice", zone="us-east-1d")
    world.ec2.fault("throttle", action="RunInstances", calls=1)
    world.ec2.fault("price", instance_type="t3.micro", value=50.0)
    up = world.ok(*CPU, "--zones", "us-east-1a,us-east-1d,us-east-1b", "--budget", "40")
    assert "us-east-1a has no capacity" in up.err
    assert "machines in other zones have spent a part of --budget 40" in up.err
    moved = world.record()
    [schedules] = world.ec2.schedules.values()
    assert {round(when - moved["deadline"]) for when in schedules.values()} <= {60, 61}
    assert "the whole cluster moves to us-east-1b" in up.err
    api = world.ec2.client("ec2")
    answer = api.describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["running", "pending"]}]
    )
    zones = [
        i["Placement"]["AvailabilityZone"] for r in answer["Reservations"] for i in r["Instances"]
    ]
    assert zones == ["us-east-1b"] * 2

    # Other machines in their place, another end, less money: nothing of that happens to them.
    running = {node["machine"] for node in world.record()["nodes"]}
    for words, said in (
        (("--gpu", "g4dn"), "worker-1 of cluster default is a t3.xlarge, not a g4dn.xlarge"),
        (("--ttl", "30m"), "`up` does not change that"),
        (("--budget", "20"), "more than --budget 20.00"),
    ):
        refused = world.run("up", *words, "--yes")
        assert (refused.code, said in refused.err) == (2, True), refused.err
    assert set(world.ec2.machines) == running

    # Stopped machines cost what their disks do, and AWS ends them, too. They come back with other
    # addresses, and the same disks.
    worker, launcher = (
        next(node for node in world.record()["nodes"] if node["name"] == name)
        for name in ("worker-1", "launcher")
    )
    stop = world.ok("stop", "--yes", "--json").document()
    assert (stop["phase"], stop["dollars_per_hour"]) == ("stopped", pytest.approx(0.0107, abs=1e-3))
    states = {
        item["State"]["Name"]
        for group in api.describe_instances(InstanceIds=list(running))["Reservations"]
        for item in group["Instances"]
    }
    assert states == {"stopped"}
    [schedules] = world.ec2.schedules.values()
    assert running <= set(schedules)
    refused = world.run("run", "reduce_all.py")
    assert (refused.code, "clusterctl start default" in refused.err) == (7, True), refused.err
    again = world.ok("start", "--yes")
    assert "worker-1 was stopped and is started again" in again.err
    record = world.record()
    assert {node["machine"] for node in record["nodes"]} == running
    moved = next(node for node in record["nodes"] if node["name"] == "launcher")["address"]
    assert moved != launcher["address"]
    assert moved in (world.home / "clusters/default/ssh/config").read_text()

    # A plan that would replace a machine is no plan.
    module = world.home / "clusters/default/terraform/main.tf"
    text = module.read_text()
    module.write_text(re.sub(r"key_name +=.*pair.key_name.*", 'key_name = "other"', text))
    replaced = world.run("up", "--yes")
    assert replaced.code == 3
    assert f'replace aws_instance.this["worker-1"] ({worker["machine"]}' in replaced.err
    assert "cluster default is unchanged and ready" in replaced.err
    assert set(world.ec2.machines) == running
    module.write_text(text)

    # More nodes where there is no room, but money: those that run stay, and are as ready as before.
    world.ok("run", "reduce_all.py", "--max-bytes", "8")
    number = world.ok("jobs", "--json").document()["jobs"][-1]["id"]
    before = world.ok("status", "--json").document()["dollars_per_hour"]
    world.ec2.fault("ice", zone="us-east-1b")
    more = world.run("up", "--workers", "2", "--budget", "60", "--yes")
    assert more.code == 3
    assert "us-east-1b has no capacity for more" in more.err
    assert "cluster default is unchanged and ready" in more.err
    assert len(world.ec2.machines) == 2
    status = world.ok("status", "--json").document()
    assert (status["phase"], status["dollars_per_hour"]) == ("ready", before)

    # Who may not remove it ends nothing on it, and hears what it goes on costing.
    world.ec2.fault("expired")
    kept = world.run("down", "--yes")
    assert kept.code == 3
    assert f"the machines keep costing ${before:.2f}/h until" in kept.err
    world.ec2.clear()

    # Killed, and forgotten until EC2 does not show the machines any more, which its terraform has
    # ended meanwhile.
    world.keep_provider(False)  # one that waits for the ends of machines
    world.ec2.forget_calls()
    process = world.start("down", "--yes")
    world.wait(lambda: "ec2:TerminateInstances" in world.ec2.actions, 60, "the moment")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    world.keep_provider()
    world.wait(lambda: " vpc " not in "\n".join(world.ec2.left()), 90, "what terraform removes")
    world.ec2.forget_ended()
    spent = world.ok("status", "--json").document()
    assert spent["dollars_per_hour"] == 0
    assert (
        "nobody saw when launcher,worker-1 ended (cluster default): the costs are at most $"
        in spent["warnings"][0]
    )
    world.ok("down", "--yes")
    assert "ok: " in world.ok("logs", str(number)).out


def test_faults_of_aws_that_pass_are_ridden_out(world: World) -> None:
    """Those that we ask for ourselves, and those that Terraform asks for; and a region that has no
    room, which is left empty."""
    world.ec2.fault("ice", zone="us-west-1a", instance_type="t3.xlarge")
    world.ec2.fault("ice", zone="us-west-1b", instance_type="t3.xlarge")
    for action in ("DescribeInstanceTypes", "CreateVpc", "RunInstances", "DescribeInstances"):
        world.ec2.fault("status500", action=action, calls=1)
    up = world.ok(*CPU, "--regions", "us-west-1,us-east-1")
    assert "the whole cluster moves from us-west-1 to us-east-1" in up.err
    assert "is left in us-west-1" in up.err
    assert not [line for line in world.ec2.left() if line.startswith("us-west-1 ")]
    assert len(world.ec2.machines) == 2
    for action in ("TerminateInstances", "DeleteVpc", "DescribeVolumes"):
        world.ec2.fault("status500", action=action, calls=1)
    world.ok("down", "--yes", "--force")


def test_faults_of_aws_that_stay_end_in_one_line(world: World) -> None:
    world.ec2.fault("status500")
    up = world.run(*CPU)
    assert up.code == 3
    assert "AWS reports an internal error (InternalError: " in up.err
    assert not (world.home / "clusters").exists()
    world.ec2.clear()

    world.ec2.fault("status500", action="RunInstances")
    up = world.run(*CPU)
    assert up.code == 3
    [said] = [line for line in up.err.splitlines() if line.startswith("clusterctl: ")]
    assert "AWS reports an internal error" in said
    assert "RunInstances" in said
    assert "health.aws.amazon.com" in up.err
    assert not world.ec2.machines
    [left] = [
        line for line in up.err.splitlines() if "no machines are running; left over: " in line
    ]
    assert {"1 VPC", "1 key pair", "2 security groups"} <= set(re.split(", |: ", left)), left
    world.ok("down", "--yes")


def reaches(world: World) -> bool:
    """Whether anything answers on the launcher's port for SSH."""
    try:
        socket.create_connection((str(world.ec2.machine("launcher").public), 22), 1).close()
    except TimeoutError:
        return False
    return True


def test_who_is_shut_out_is_let_in_and_a_node_that_never_boots_is_named(world: World) -> None:
    """It has an image of the user's own, whose agent never starts: AWS ends it all the same."""
    api = world.ec2.client("ec2")
    copy = api.copy_image(SourceImageId=UBUNTU, SourceRegion="us-east-1", Name="mine")
    image = copy["ImageId"]
    world.ec2.fault("never_boot", node="worker-1")
    # It would build a container, so its disk is faster: the receipt has that, too.
    own = ("up", "--cpu", "t3.xlarge:1", "--runtime", "docker", "--yes", "--ami", image)
    up = world.run(*own, "--ssh-cidr", "192.0.2.1", "--boot-timeout", "3s")
    assert up.code == 4
    assert re.search(r"launcher: .*no answer", up.err), up.err
    assert world.ec2.machine("launcher").up
    assert "68 GiB at 250 MB/s" in up.err
    disks = api.describe_volumes()["Volumes"]
    assert sorted((disk["Size"], disk["Throughput"]) for disk in disks) == [(30, 125), (68, 250)]
    assert not reaches(world)
    world.ok("allow", YOU)
    world.wait(lambda: reaches(world), 10, "an open port")

    up = world.run(*own, "--boot-timeout", "6s")
    assert up.code == 4
    assert "worker-1: " in up.err
    assert "waited 6 s for the machine to boot" in up.err
    console = re.search(r"worker-1: the end of its console\n(.+\n)+", up.err)
    assert console, up.err
    assert "\x1b" not in console[0]
    assert "`clusterctl down default` removes the cluster" in up.err
    looked = world.ok("doctor", "--cluster", "default").out
    assert re.search(
        r"^worker-1: running; .+\n  the end of its console:\n(    .+\n)+", looked, re.M
    )

    [schedules] = world.ec2.schedules.values()
    assert len(schedules) == 2
    world.ec2.turn_the_scheduler_ahead(world.record()["deadline"] - time.time() + 120)
    world.wait(lambda: list_states(api) == {"terminated"}, 20, "what AWS itself ends")
    assert world.ok("status", "--live", "--json").document()["dollars_per_hour"] == 0
    world.ok("down", "--yes")
    api.deregister_image(ImageId=image)


def list_states(api: Any) -> set[str]:
    """Of all instances."""
    groups = api.describe_instances()["Reservations"]
    return {one["State"]["Name"] for group in groups for one in group["Instances"]}


def test_ctrl_c_lets_terraform_finish_its_step(world: World) -> None:
    world.on_the_first_day()
    process = world.start(*CPU)
    world.wait(lambda: world.ec2.machines, 60, "the moment")
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "waiting for terraform to finish" in err
    [said] = [line for line in err.splitlines() if "still running: " in line]
    assert re.search(
        r"(launcher|worker-1).*, \$0\.\d+/h until .*`clusterctl down default` removes", said
    )
    assert out == ""
    world.keep_provider()
    # Cut short, the provider may not know what it has made: that is removed, and made again.
    up = world.ok(*CPU)
    assert "all-reduce ok" in up.err
    names = sorted(machine.name for machine in world.ec2.machines.values())
    assert names == ["launcher", "worker-1"]
    world.ok("down", "--yes", "--force")
