"""The layer before moto: what it adds, and what goes wrong when it is told to."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.core import assets
from tests.sim.ec2.iam import allows
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]


def refused(call: Any, /, **how: Any) -> tuple[str, int]:
    """The code and the HTTP status of the error that this call ends with."""
    with pytest.raises(ClientError) as caught:
        call(**how)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"kind": "ice"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "zone": "us-east-1a"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "instance_type": "t3.micro"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "ice", "node": "one"}, ("InsufficientInstanceCapacity", 500)),
        ({"kind": "throttle"}, ("RequestLimitExceeded", 503)),
        ({"kind": "status500", "action": "RunInstances"}, ("InternalError", 500)),
        ({"kind": "expired"}, ("RequestExpired", 400)),
        ({"kind": "error", "code": "UnauthorizedOperation"}, ("UnauthorizedOperation", 400)),
        ({"kind": "quota", "code": "L-1216C47A", "value": 1}, ("VcpuLimitExceeded", 400)),
    ],
)
def test_a_launch_fails_until_all_is_well(
    lab: Lab, fault: dict[str, Any], expected: tuple[str, int]
) -> None:
    lab.ec2.fault(**fault)
    with pytest.raises(ClientError) as caught:
        lab.launch("one")
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == expected
    assert not lab.ec2.machines
    lab.ec2.clear()
    lab.launch("one")
    lab.ec2.wait(1)


def test_a_fault_keeps_to_its_place(lab: Lab) -> None:
    for how in ({"zone": "us-east-1b"}, {"instance_type": "g4dn.xlarge"}, {"node": "two"}):
        lab.ec2.fault("ice", **how)
    lab.ec2.fault("throttle", action="DescribeVpcs", calls=2)
    lab.launch("one")
    for _ in range(2):
        assert refused(lab.api.describe_vpcs)[0] == "RequestLimitExceeded"
    lab.api.describe_vpcs()
    other = lab.network(zone="us-east-1b")
    with pytest.raises(ClientError, match="us-east-1b"):
        lab.launch("three", subnet=other)


def test_calls_are_slow_and_written_down(lab: Lab) -> None:
    lab.ec2.forget_calls()
    lab.ec2.fault("delay", action="DescribeVpcs", seconds=0.5, calls=1)
    started = time.monotonic()
    lab.api.describe_vpcs()
    assert time.monotonic() - started > 0.5
    lab.launch("one")
    assert lab.ec2.actions == {"ec2:DescribeVpcs", "ec2:RunInstances"}
    (launch,) = (one for one in lab.ec2.calls if one["action"] == "ec2:RunInstances")
    assert (launch["type"], launch["zone"]) == ("t3.micro", "us-east-1a")


def test_machines_that_do_not_come(lab: Lab) -> None:
    lab.ec2.fault("never_boot", node="never")
    lab.ec2.fault("slow_boot", node="slow", seconds=1.5)
    started = time.monotonic()
    for name in ("never", "slow", "quick"):
        lab.launch(name)
    assert [one.name for one in lab.ec2.wait(1).values()] == ["quick"]
    assert {one.name for one in lab.ec2.wait(2).values()} == {"quick", "slow"}
    assert time.monotonic() - started > 1.5
    assert lab.states() == ["running"] * 3


def test_calls_are_written_down_with_what_iam_is_asked(lab: Lab) -> None:
    """Who has clusterctl's policy and no other cannot come near somebody else's instance."""
    policy = json.loads((assets.find_folder("infra") / "ec2" / "policy.json").read_text())
    tags = [{"Key": "clusterctl:cluster", "Value": "c"}]
    own = [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")]

    def allowed(call: Any, /, **how: Any) -> bool:
        lab.ec2.forget_calls()
        call(**how)
        return all(allows(policy, **ask) for one in lab.ec2.calls for ask in one["asks"])

    theirs = lab.launch("theirs", TagSpecifications=[])
    assert not allowed(lab.api.create_tags, Resources=[theirs], Tags=tags)
    lab.api.delete_tags(Resources=[theirs], Tags=[{"Key": "clusterctl:cluster"}])
    stay = {"InstanceInitiatedShutdownBehavior": {"Value": "stop"}}
    assert not allowed(lab.api.modify_instance_attribute, InstanceId=theirs, **stay)
    assert not allowed(lab.api.terminate_instances, InstanceIds=[theirs])

    lab.ec2.forget_calls()
    ours = lab.launch("ours", TagSpecifications=own)
    [launch] = lab.ec2.calls
    assert [ask["resource"] for ask in launch["asks"] if ask["action"] == "ec2:CreateTags"] == [
        f"arn:aws:ec2:us-east-1:123456789012:{kind}/*" for kind in ("instance", "volume")
    ]
    assert all(allows(policy, **ask) for ask in launch["asks"])
    assert allowed(lab.api.create_tags, Resources=[ours], Tags=tags)
    assert allowed(lab.api.modify_instance_attribute, InstanceId=ours, **stay)
    assert allowed(lab.api.terminate_instances, InstanceIds=[ours])


def test_a_call_that_an_sdk_repeats_is_done_once(lab: Lab) -> None:
    """Unless its answer is to be lost: then it is done, and may be done again."""

    def same(request: Any, **_: object) -> None:
        request.headers["amz-sdk-invocation-id"] = "once"

    def groups() -> list[str]:
        of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
        found = lab.api.describe_security_groups(Filters=of_vpc)["SecurityGroups"]
        return sorted(one["GroupName"] for one in found)

    def create(name: str) -> str:
        made = lab.api.create_security_group(GroupName=name, Description=name, VpcId=vpc)
        return str(made["GroupId"])

    subnet = lab.network()
    vpc = lab.api.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    lab.api.meta.events.register("before-send.ec2.CreateSecurityGroup", same)
    first = create("one")
    assert create("one") == first
    lab.api.meta.events.unregister("before-send.ec2.CreateSecurityGroup", same)
    lab.ec2.fault("lost", action="CreateSecurityGroup", calls=1)
    assert refused(lab.api.create_security_group, GroupName="two", Description="d", VpcId=vpc) == (
        "Unavailable",
        503,
    )
    assert groups() == ["default", "one", "two"]
    assert refused(lab.api.create_security_group, GroupName="two", Description="d", VpcId=vpc) == (
        "InvalidGroup.Duplicate",
        400,
    )
