"""A CPU cluster from nothing to nothing, with all that a person does in between."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from clusterctl.state.home import name_client
from tests.ec2.conftest import OUTSIDE, SAVES, World, cut_power
from tests.sim.lab import their_network

pytestmark = [
    pytest.mark.usefixtures("many_cpus"),
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(600),
]

CPU = ("up", "--cpu", "t3.xlarge", "--runtime", "host", "--yes")


def tags_of(world: World, id: str) -> dict[str, set[str]]:
    """The values of each tag on all that carries the cluster's."""
    api = world.ec2.client("ec2")
    mine = [{"Name": "key", "Values": ["clusterctl:cluster"]}, {"Name": "value", "Values": [id]}]
    ids = {item["ResourceId"] for item in api.describe_tags(Filters=mine)["Tags"]}
    found: dict[str, dict[str, str]] = {}
    for item in api.describe_tags()["Tags"]:
        if item["ResourceId"] in ids:
            found.setdefault(item["ResourceId"], {})[item["Key"]] = item["Value"]
    keys = {key for tags in found.values() for key in tags}
    return {key: {tags.get(key, "") for tags in found.values()} for key in keys}


def utc(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))


def test_from_nothing_to_nothing(world: World) -> None:
    world.on_the_first_day()
    dry = world.ok("up", "--cpu", "t3.xlarge:2", "--dry-run")
    assert "2 worker" in dry.out
    assert "t3.xlarge" in dry.out
    assert "$/h" in dry.out
    assert world.ec2.left() == []
    assert not world.home.exists()

    setup = world.home.parent / "setup.sh"
    setup.write_text("#!/bin/bash\nwhoami >>/root/setup-ran\n")
    up = world.ok(*CPU, "--setup", str(setup))
    world.keep_provider()
    assert world.ec2.machine("worker-2").run("cat", "/root/setup-ran").stdout == "root\n"
    assert "all-reduce ok: 2 ranks on 2 hosts, each holds 1" in up.err
    assert re.search(r"ends \d{4}-\d\d-\d\d", up.err)
    assert up.err.count(" s  preparing nodes: the nodes by name\n") == 1, up.err
    for phase in ("plan", "create", "bootstrap", "mesh", "all-reduce"):
        assert re.search(rf"^{phase} +\d+\.\d\d s$", up.err, re.MULTILINE), phase
    record = world.record()
    nodes = {node["name"]: node for node in record["nodes"]}
    assert list(nodes) == ["launcher", "worker-1", "worker-2"]
    assert nodes["worker-1"]["via"] == "launcher"
    assert 8 * 3600 - 300 < record["deadline"] - time.time() < 8 * 3600

    tags = tags_of(world, record["id"])
    assert tags["clusterctl:owner"] == {"user/moto"}
    assert tags["clusterctl:client"] == {name_client()}
    assert tags["clusterctl:deadline"] == {utc(record["deadline"])}
    mine = [{"Name": "tag:clusterctl:cluster", "Values": [record["id"]]}]
    cards = world.ec2.client("ec2").describe_network_interfaces(Filters=mine)["NetworkInterfaces"]
    machines = {card["Attachment"]["InstanceId"] for card in cards}
    assert machines == {node["machine"] for node in record["nodes"]}, "their primary interfaces"

    groups = world.ec2.client("ec2").describe_security_groups()["SecurityGroups"]
    doors = [
        (rule.get("FromPort"), rule.get("ToPort"), network["CidrIp"])
        for group in groups
        for rule in group["IpPermissions"]
        for network in rule["IpRanges"]
    ]
    assert doors == [(22, 22, OUTSIDE)], "one way in, from where it was said"

    hosts = world.ec2.machine("worker-1").run("cat", "/etc/hosts").stdout
    for name in nodes:
        assert f"{nodes[name]['private_address']} {name}\n" in hosts

    # The keys that came by user data have been replaced, and nothing here holds them any more.
    for name in nodes:
        machine = world.ec2.machine(name)
        shown = machine.run("cut", "-d ", "-f1,2", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
        known = (world.home / "clusters/default/ssh/known_hosts").read_text()
        assert shown.strip() in known
        assert known.count(nodes[name]["address"] + " ") == 1
    assert not list((world.home / "clusters/default/ec2/boot-keys").iterdir())

    # Every node keeps the deadline itself; extend moves it everywhere; SIGTERM comes five minutes
    # before, and the program saves its work.
    job = world.ok("run", "--detach", "--json", world.program("saves.sh", SAVES))
    number = job.document()["id"]
    logs = ("logs", str(number))
    world.wait(lambda: world.ok(*logs).out.count("at work") == 2, 60, "both ranks")
    done = world.ok("extend", "--ttl", "280s", "--yes")
    assert "shuts down at" in done.err
    armed = world.ok("status", "--live", "--json").document()["nodes"]
    assert {int(node["deadline"]) for node in armed} == {int(world.record()["deadline"])}
    world.wait(
        lambda: world.ok("jobs", "--json").document()["jobs"][-1]["state"] != "running",
        40,
        "the programs end when they are told to save their work",
    )
    saved = world.ok(*logs)
    assert saved.out.count("saved its work") == 2, world.ok("jobs", "--json").out
    world.ok("extend", "--ttl", "4h")
    moved = world.record()["deadline"]
    assert tags_of(world, record["id"])["clusterctl:deadline"] == {utc(moved)}
    [of_schedules] = world.ec2.group_tags.values()
    assert of_schedules["clusterctl:deadline"] == utc(moved)
    assert of_schedules["clusterctl:owner"] == "user/moto"
    status = world.ok("status", "--json").document()
    assert status["dollars"] > 0
    assert status["dollars_per_hour"] == pytest.approx(0.3681, abs=0.001)

    refused = world.run("down", "--yes")
    assert refused.code == 2
    assert f"job {number} has unfetched outputs" in refused.err
    assert "nothing was removed: the machines keep costing $0.37/h until" in refused.err
    down = world.ok("down", "--discard")
    assert "nothing tagged clusterctl:cluster=" in down.err
    assert re.search(r"instance +t3.xlarge +2 +\d+\.\d{3} +0\.1664", down.err)
    again = world.ok("down", "--yes")
    assert "nothing to remove" in again.err


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
    assert world.record()["deadline"] is None, "an end that no machine has"
    down = world.ok("down", "--yes")
    assert "left over: 3 instances" in down.err
    assert world.ok("gc", "--json").document()["found"] == []
