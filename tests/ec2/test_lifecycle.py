"""Clusters in the networks of others, and clusters whose record is lost."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.state.home import name_client
from tests.ec2.conftest import World, cut_power
from tests.sim.lab import their_network

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(600),
]

CPU = ("up", "--cpu", "t3.xlarge", "--runtime", "host", "--yes")


@pytest.fixture
def subnet(world: World) -> Iterator[str]:
    """One of somebody else's, whose VPC has to be there in the end as it was."""
    with their_network(world.ec2.client("ec2"), "us-east-1a") as (_, subnet):
        yield subnet


def test_a_changed_host_key_is_refused(world: World, subnet: str) -> None:
    """Of a worker in a network that is not ours."""
    up = world.ok(*CPU, "--workers", "1", "--subnet", subnet)
    assert world.ec2.machine("worker-1").private.startswith("10.99.0.")
    assert f"machines go into {subnet} (us-east-1a)" in up.err
    machine = world.ec2.machine("worker-1")
    before = machine.run("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[1]
    machine.run("rm", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_ed25519_key.pub")
    machine.run("ssh-keygen", "-qt", "ed25519", "-N", "", "-f", "/etc/ssh/ssh_host_ed25519_key")
    after = machine.run("ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[1]
    up = world.run("up", "--yes")
    assert up.code == 4
    assert f"machines go into {subnet} (us-east-1a)" in up.err, "as before"
    assert "worker-1" in up.err
    assert before in up.err
    assert after in up.err
    world.ok("down", "--yes", "--force")


def launch_for(world: World, like: dict[str, Any], cluster: str, owner: str = "") -> str:
    """Launches an instance with our tag, where `like` is. Returns its id."""
    tags = {"clusterctl:cluster": cluster} | (
        {"clusterctl:owner": owner, "clusterctl:client": name_client()} if owner else {}
    )
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    made = world.ec2.client("ec2").run_instances(
        ImageId=like["ImageId"],
        InstanceType="t3.micro",
        MinCount=1,
        MaxCount=1,
        SubnetId=like["SubnetId"],
        TagSpecifications=[{"ResourceType": "instance", "Tags": pairs}],
    )
    return str(made["Instances"][0]["InstanceId"])


@contextlib.contextmanager
def colleague(world: World, name: str) -> Iterator[None]:
    """Somebody else of the account calls meanwhile, with a key of their own."""
    iam = world.ec2.client("iam")
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    mine = {each: world.env[each] for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    world.env["AWS_ACCESS_KEY_ID"] = key["AccessKeyId"]
    world.env["AWS_SECRET_ACCESS_KEY"] = key["SecretAccessKey"]
    try:
        yield
    finally:
        world.env.update(mine)
        iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
        iam.delete_user(UserName=name)


PRIVATE = (*CPU, "--workers", "1", "--ttl", "2h", "--private")


def test_what_has_lost_its_record_is_found_and_removed(world: World) -> None:
    """And what Terraform has never known."""
    world.ec2.fault("slow_gateway", seconds=600)
    cut_power(world, PRIVATE, lambda: "ec2:CreateNatGateway" in world.ec2.actions)
    down = world.ok("down", "--yes")
    assert "the last `up` did not finish" in down.err
    assert world.ec2.left() == []
    cut_power(world, PRIVATE, lambda: "ec2:CreateNatGateway" in world.ec2.actions)
    world.ec2.clear()
    world.ec2.fault("ice", zone="us-east-1a", instance_type="t3.xlarge")
    up = world.ok(*PRIVATE)
    assert re.search("left over: .*1 NAT gateway.*; removing", up.err)
    assert "the whole cluster moves to us-east-1b" in up.err, "with another NAT gateway"
    world.ec2.clear()
    api = world.ec2.client("ec2")
    id = world.record()["id"]
    template = world.ec2.machine("worker-1").id
    image = api.describe_instances(InstanceIds=[template])["Reservations"][0]["Instances"][0]
    launch_for(world, image, id)  # that no Terraform state knows
    shutil.rmtree(world.home / "clusters")
    listed = world.ok("gc", "--dry-run", "--json").document()
    [orphan] = listed["found"]
    assert orphan["id"] == id
    assert [left["kind"] for left in orphan["left"]].count("instance") == 3
    refused = world.run("gc")
    assert refused.code == 2
    assert "--yes" in refused.err
    with colleague(world, "ana"):
        theirs = launch_for(world, image, "ana-1", "user/ana")
        seen = world.ok("gc", "--dry-run", "--json").document()["found"]
        assert {item["id"]: item["owner"] for item in seen} == {
            id: "user/moto",
            "ana-1": "user/ana",
        }
        assert "user/moto" in world.ok("gc", "--yes").err
        states = api.describe_instances(InstanceIds=[theirs, template])["Reservations"]
        [ended, kept] = sorted(
            (item["Instances"][0] for item in states), key=lambda item: item["InstanceId"] != theirs
        )
        assert ended["State"]["Name"] in ("shutting-down", "terminated"), "her own"
        assert kept["State"]["Name"] == "running", "that of somebody else"

    taken = world.ok("gc", "--adopt", "default")
    assert "was taken back" in taken.err
    assert world.ok("status", "--json").document()["dollars_per_hour"] > 0
    resumed = world.run("up", "--yes")
    assert resumed.code == 3
    assert "adopted" in resumed.err
    later = world.run("extend", "--ttl", "9h")
    assert (later.code, "was adopted" in later.err) == (3, True), later.err
    assert world.record()["deadline"] == orphan["deadline"], "the end that its machines have"
    down = world.ok("down", "--yes")
    assert "left over: 3 instances" in down.err
    assert world.ok("gc", "--json").document()["found"] == []
