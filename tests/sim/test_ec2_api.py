"""The layer before moto: what it asks IAM, and calls that an SDK repeats."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.ec2.conftest import policy
from tests.sim.ec2.iam import allows
from tests.sim.lab import Lab

pytestmark = [pytest.mark.all, pytest.mark.netns, pytest.mark.sshd]


def refused(call: Any, /, **how: Any) -> tuple[str, int]:
    """The code and the HTTP status of the error that this call ends with."""
    with pytest.raises(ClientError) as caught:
        call(**how)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_calls_are_written_down_with_what_iam_is_asked(lab: Lab) -> None:
    """Who has clusterctl's policy and no other cannot come near somebody else's instance."""
    rights = policy()
    tags = [{"Key": "clusterctl:cluster", "Value": "c"}]
    own = [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")]

    def allowed(call: Any, /, **how: Any) -> bool:
        lab.ec2.forget_calls()
        call(**how)
        return all(allows(rights, **ask) for one in lab.ec2.calls for ask in one["asks"])

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
    assert all(allows(rights, **ask) for ask in launch["asks"])
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
