"""A person's first hour on EC2, from a new account to a receipt, as docs/ec2.md tells it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.state.home import name_client
from tests.e2e.cli import Done
from tests.ec2.conftest import OUTSIDE, SAVES, World

pytestmark = [
    pytest.mark.terraform,
    pytest.mark.netns,
    pytest.mark.sshd,
    pytest.mark.timeout(600),
]

HOST = ("--runtime", "host", "--yes")
DENIED = {
    "code": "UnauthorizedOperation",
    "message": "You are not authorized to perform this operation.",
    "status": 403,
}


def test_the_first_hour(world: World) -> None:
    world.on_the_first_day()

    # The account is new: on the free plan, 5 vCPUs, none with GPUs. Whatever is refused names what
    # can be started instead, and nothing was made or written.
    world.ec2.fault("free_plan")
    assert "c7i-flex.large" in check(world)["AWS plan"]["text"]
    refused = world.run("up", "--cpu", "c7i.large:1", *HOST)
    assert "on AWS's free plan, which does not have c7i.large" in refused.err
    world.ok(*read_suggestion(refused), "--dry-run")
    world.ec2.clear()  # it is upgraded

    found = check(world)
    assert found["AWS plan"]["text"] == "paid"
    assert found["quota Standard"]["text"].startswith("5 vCPUs in us-east-1, 0 in use;")
    assert "`clusterctl up --cpu c7i.large:1` fits now" in found["quota Standard"]["hint"]
    assert "--quota-code L-DB2E81BA --desired-value 8" in found["quota G and VT"]["hint"]
    refused = world.run("up", "--gpu", "g4dn", *HOST)
    trial = read_suggestion(refused)
    assert trial == ["up", "default", "--cpu", "c7i.large:1"]
    plan = world.ok(*trial, "--dry-run").out
    assert re.search(r"1 worker +c7i.large +us-east-1a .*\n.*/h, \$.* until the deadline", plan)
    assert "the launcher keeps their logs and outputs, and ends when all are fetched" in plan
    assert world.ec2.left() == []
    assert not (world.home / "clusters").exists()

    # The trial that fits: the first zone is full, and IAM learns late of a tag. `up` bears both.
    world.ec2.fault("ice", zone="us-east-1a", instance_type="c7i.large", others="us-east-1c")
    world.ec2.fault("error", action="CreateSubnet", calls=1, **DENIED)
    setup = world.home.parent / "setup.sh"
    setup.write_text("#!/bin/bash\nwhoami >>/root/setup-ran\n")
    up = world.ok(*trial, "--setup", str(setup), *HOST)
    world.keep_provider()
    assert "perhaps the tags of what was just made are not yet known; trying again" in up.err
    assert "us-east-1a has no capacity" in up.err
    assert "the whole cluster moves to us-east-1c" in up.err
    assert "all-reduce ok: " in up.err
    assert up.err.count(" s  preparing nodes: the nodes by name\n") == 1, up.err
    for phase in ("plan", "create", "bootstrap", "mesh", "all-reduce"):
        assert re.search(rf"^{phase} +\d+\.\d\d s$", up.err, re.MULTILINE), phase
    record = world.record()
    assert [node["name"] for node in record["nodes"]] == ["launcher", "worker-1"]
    assert 8 * 3600 - 300 < record["deadline"] - time.time() < 8 * 3600
    assert world.ec2.machine("worker-1").run("cat", "/root/setup-ran").stdout == "root\n"
    check_tags(world, record)
    check_the_way_in(world, record)

    # A program runs; it hears five minutes before the deadline that it has to save its work.
    job = world.ok("run", "--detach", "--json", world.program("saves.sh", SAVES)).document()["id"]
    logs = ("logs", str(job))
    world.wait(lambda: "at work" in world.ok(*logs).out, 60, "the program")
    assert "shuts down at" in world.ok("extend", "--ttl", "280s", "--yes").err
    armed = world.ok("status", "--live", "--json").document()["nodes"]
    assert {int(node["deadline"]) for node in armed} == {int(world.record()["deadline"])}

    def has_ended() -> bool:
        return bool(world.ok("jobs", "--json").document()["jobs"][-1]["state"] != "running")

    world.wait(has_ended, 40, "the end of a program that was told to save its work")
    assert "saved its work" in world.ok(*logs).out, world.ok("jobs", "--json").out
    world.ok("extend", "--ttl", "4h")
    moved = utc(world.record()["deadline"])
    assert moved in tags_of(world, record["id"])["clusterctl:deadline"]
    [of_schedules] = world.ec2.group_tags.values()
    assert of_schedules["clusterctl:deadline"] == moved
    assert of_schedules["clusterctl:owner"] == "user/moto"

    # What it costs; and the end, with a receipt, when nothing is lost by it.
    status = world.ok("status", "--json").document()
    assert status["dollars"] > 0
    assert status["dollars_per_hour"] == pytest.approx(0.1204, abs=0.001)
    refused = world.run("down", "--yes")
    assert refused.code == 2
    assert f"job {job} has unfetched outputs" in refused.err
    assert "nothing was removed: the machines keep costing $0.12/h until" in refused.err
    down = world.ok("down", "--fetch")
    assert (world.home.parent / f"job-{job}" / "worker-1" / "saved").exists()
    assert "nothing tagged clusterctl:cluster=" in down.err
    assert re.search(r"instance +c7i.large +1 +\d+\.\d{3} +0\.08", down.err), down.err
    assert "nothing to remove" in world.ok("down", "--yes").err
    assert "saved its work" in world.ok(*logs).out


def check(world: World) -> dict[str, dict[str, Any]]:
    """What `check` finds, by subject."""
    found = world.run("check", "--json", timeout=100).document()["findings"]
    return {row["subject"]: row for row in found}


def read_suggestion(refused: Done) -> list[str]:
    """The command that an `up` names which was refused by the account's limits."""
    assert refused.code == 3, refused.err
    said = re.search(r"`clusterctl (up [^`]+)` fits", refused.err)
    assert said, refused.err
    return said[1].split()


def utc(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))


def tags_of(world: World, id: str) -> dict[str, set[str]]:
    """The values of each tag on all of the cluster; the simulator keeps those of what has gone."""
    api = world.ec2.client("ec2")
    mine = [{"Name": "key", "Values": ["clusterctl:cluster"]}, {"Name": "value", "Values": [id]}]
    ids = {item["ResourceId"] for item in api.describe_tags(Filters=mine)["Tags"]}
    found: dict[str, dict[str, str]] = {}
    for item in api.describe_tags()["Tags"]:
        if item["ResourceId"] in ids:
            found.setdefault(item["ResourceId"], {})[item["Key"]] = item["Value"]
    keys = {key for tags in found.values() for key in tags}
    return {key: {tags.get(key, "") for tags in found.values()} for key in keys}


def check_tags(world: World, record: dict[str, Any]) -> None:
    """All that was made says whose it is, and until when."""
    tags = tags_of(world, record["id"])
    assert tags["clusterctl:owner"] == {"user/moto"}
    assert tags["clusterctl:client"] == {name_client()}
    assert tags["clusterctl:deadline"] == {utc(record["deadline"])}
    mine = [
        {"Name": "tag:clusterctl:cluster", "Values": [record["id"]]},
        {"Name": "status", "Values": ["in-use"]},
    ]
    cards = world.ec2.client("ec2").describe_network_interfaces(Filters=mine)["NetworkInterfaces"]
    machines = {card["Attachment"]["InstanceId"] for card in cards}
    assert machines == {node["machine"] for node in record["nodes"]}, "their primary interfaces"


def check_the_way_in(world: World, record: dict[str, Any]) -> None:
    """One, from where it was said; nodes know each other by name. The keys that came by user data
    have been replaced, and nothing here holds them any more."""
    groups = world.ec2.client("ec2").describe_security_groups()["SecurityGroups"]
    doors = [
        (rule.get("FromPort"), rule.get("ToPort"), network["CidrIp"])
        for group in groups
        for rule in group["IpPermissions"]
        for network in rule["IpRanges"]
    ]
    assert doors == [(22, 22, OUTSIDE)]
    hosts = world.ec2.machine("worker-1").run("cat", "/etc/hosts").stdout
    known = (world.home / "clusters/default/ssh/known_hosts").read_text()
    key = "/etc/ssh/ssh_host_ed25519_key.pub"
    for node in record["nodes"]:
        assert f"{node['private_address']} {node['name']}\n" in hosts
        shown = world.ec2.machine(node["name"]).run("cut", "-d ", "-f1,2", key).stdout
        assert shown.strip() in known
        assert known.count(node["address"] + " ") == 1
    assert not HostKeys(world.home / "clusters/default").booting
