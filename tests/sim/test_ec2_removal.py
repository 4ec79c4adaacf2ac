"""How all that a cluster has on EC2 goes: in which order, and what keeps it or is shown late. No
Terraform."""

from __future__ import annotations

import threading
from typing import cast

import pytest
from botocore.exceptions import ClientError

from clusterctl.machines.ec2 import create, remove
from clusterctl.machines.ec2.api import UNUSED_TAG, Api, find_instances, terminate_instances
from clusterctl.terraform.folder import Terraform
from tests.ec2.conftest import policy
from tests.sim.lab import Lab
from tests.sim.test_ec2_strict import tagged

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


def network(lab: Lab) -> tuple[str, str, str]:
    """What a cluster has, with its tags: a VPC, its subnet and a group."""
    tags = [{"Key": "clusterctl:cluster", "Value": "lab-1"}]
    subnet = lab.api.describe_subnets(SubnetIds=[lab.subnet])["Subnets"][0]
    group = lab.api.create_security_group(GroupName="g", Description="d", VpcId=subnet["VpcId"])
    ids = subnet["VpcId"], lab.subnet, group["GroupId"]
    lab.api.create_tags(Resources=list(ids), Tags=tags)
    lab.vpcs.clear()
    return ids


class Unknowing:
    """A Terraform that knows of nothing."""

    state = ""

    def list_resources(self) -> dict[str, str]:
        return {}


def test_what_guardduty_puts_into_a_network_goes_with_it(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint and a group, which keep the subnet and the VPC."""
    monkeypatch.setattr(remove, "PAUSE", 0.05)
    vpc, subnet, own = network(lab)
    tags = [{"Key": "GuardDutyManaged", "Value": "true"}]
    group = lab.api.create_security_group(
        GroupName=f"GuardDutyManagedSecurityGroup-{vpc}",
        Description="Associated with VPC endpoint",
        VpcId=vpc,
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )["GroupId"]
    assert not remove.is_managed(api, "lab-1")
    lab.api.create_vpc_endpoint(
        VpcEndpointType="Interface",
        VpcId=vpc,
        ServiceName="com.amazonaws.us-east-1.guardduty-data",
        SubnetIds=[subnet],
        SecurityGroupIds=[group],
        TagSpecifications=[{"ResourceType": "vpc-endpoint", "Tags": tags}],
    )
    with pytest.raises(ClientError, match="DependencyViolation"):
        lab.api.delete_subnet(SubnetId=subnet)
    assert remove.is_managed(api, "lab-1"), "so that Terraform is not asked to remove the rest"
    found = {left.kind: left.managed for left in remove.find_tagged(api, "lab-1")}
    assert found["VPC endpoint"]
    keep = create.make_is_known(cast(Terraform, Unknowing()))
    kept = {left.kind: keep(left) for left in remove.find_tagged(api, "lab-1") if left.id != own}
    assert kept.pop("VPC endpoint")
    assert kept.pop("security group"), "a further `up` leaves what is GuardDuty's alone"
    assert not any(kept.values())
    lab.ec2.policy(policy())
    remove.remove_cluster(api, "lab-1", lambda line: None)
    assert lab.ec2.left() == []


def test_all_machines_begin_to_end_with_one_call(lab: Lab, api: Api) -> None:
    """However many they are, they are billed until then. What is not of the cluster stays."""
    for name in ("launcher", "worker-1", "worker-2"):
        lab.launch(name, TagSpecifications=tagged(name))
    other = lab.launch("other")
    lab.ec2.forget_calls()
    terminate_instances(api, "lab-1")
    calls = [call for call in lab.ec2.calls if call["action"] == "ec2:TerminateInstances"]
    assert len(calls) == 1
    assert [item.node for item in find_instances(api, "lab-1")] == []
    lab.api.terminate_instances(InstanceIds=[other])

    lab.ec2.fault("error", action="TerminateInstances", code="OperationNotPermitted")
    lab.launch("launcher", TagSpecifications=tagged("launcher"))
    terminate_instances(api, "lab-1")  # whoever comes next says which, and why
    lab.ec2.clear()
    terminate_instances(api, "lab-1")


def test_what_was_made_just_before_is_found_though_its_tags_are_late(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an `up` that was cut off, `down` looks until AWS has had time to show everything."""
    monkeypatch.setattr(remove, "PAUSE", 0.1)
    lab.ec2.fault("never_boot")
    lab.ec2.fault("late", seconds=3600)
    id = lab.launch("worker-1", TagSpecifications=tagged("worker-1"))
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        lab.api.describe_instances(InstanceIds=[id])
    assert remove.find_tagged(api, "lab-1") == ()
    shown = threading.Timer(0.3, lab.ec2.fault, ("late",), {"seconds": 0})
    shown.start()
    remove.remove_cluster(api, "lab-1", lambda line: None, settle=3.0)
    shown.join()
    [found] = lab.api.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"]
    assert found["State"]["Name"] == "terminated"


@pytest.mark.parametrize("kept", [False, True], ids=["deleted", "refused"])
def test_a_nat_gateway_goes_before_its_address_and_its_network(
    kept: bool, lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS says AuthFailure for the address of one that goes, as if we had no rights. Whether it
    deletes one that comes, its documents do not say."""
    monkeypatch.setattr(remove, "PAUSE", 0.05)
    lab.ec2.policy(policy())
    lab.ec2.fault("slow_end", seconds=1)
    make = api.call
    vpc = make("create_vpc", CidrBlock="10.66.0.0/16", TagSpecifications=tagged("lab", "vpc"))[
        "Vpc"
    ]["VpcId"]
    subnet = make(
        "create_subnet",
        VpcId=vpc,
        CidrBlock="10.66.0.0/20",
        TagSpecifications=tagged("lab", "subnet"),
    )["Subnet"]["SubnetId"]
    gateway = make("create_internet_gateway", TagSpecifications=tagged("lab", "internet-gateway"))[
        "InternetGateway"
    ]["InternetGatewayId"]
    make("attach_internet_gateway", InternetGatewayId=gateway, VpcId=vpc)
    address = make("allocate_address", Domain="vpc", TagSpecifications=tagged("lab", "elastic-ip"))[
        "AllocationId"
    ]
    lab.ec2.fault("slow_gateway", seconds=600, kept=kept)
    of_ours = {"SubnetId": subnet, "TagSpecifications": tagged("lab", "natgateway")}
    make("create_nat_gateway", AllocationId=address, **of_ours)
    make("create_nat_gateway", AllocationId=address, **of_ours)
    states = {one["State"] for one in make("describe_nat_gateways")["NatGateways"]}
    assert states == {"pending", "failed"}, "the first has the address"
    for action, arguments, code in (
        ("release_address", {"AllocationId": address}, "AuthFailure"),
        ("detach_internet_gateway", {"InternetGatewayId": gateway, "VpcId": vpc}, "Dependency"),
        ("delete_subnet", {"SubnetId": subnet}, "Dependency"),
    ):
        with pytest.raises(ClientError, match=code):
            getattr(lab.api, action)(**arguments)
    priced = [one for one in remove.find_priced(api) if one.kind == "NAT gateway"]
    assert sorted(one.hourly or 0 for one in priced) == [0, pytest.approx(0.045)]
    waits: list[str] = []

    def hear(line: str) -> None:
        if "is still creating nat-" in line:
            waits.append(line)
            lab.ec2.fault("slow_gateway", seconds=600, kept=False)

    remove.remove_cluster(api, "lab-1", hear)
    assert remove.find_tagged(api, "lab-1") == ()
    assert len(waits) == kept
    marked = [
        {tag["Key"] for tag in one["Tags"]} for one in make("describe_nat_gateways")["NatGateways"]
    ]
    assert sorted(UNUSED_TAG in tags for tags in marked) == [False, True], (
        "the one that was pending"
    )
