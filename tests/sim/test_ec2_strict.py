"""Where EC2 is stricter than a simulator has to be, and what clusterctl makes of it.

docs/internals/ec2-strictness.md lists them with AWS's own words. No Terraform here: what asks AWS
itself runs against the simulated API, in seconds.
"""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import create, preflight, remove
from clusterctl.machines.ec2.api import UNUSED_TAG, Api, find_instances, terminate_instances
from clusterctl.terraform.folder import Terraform
from tests.ec2.conftest import policy
from tests.sim.lab import UBUNTU, Lab, their_network
from tests.unit.tables import rows

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


def tagged(node: str, *kinds: str) -> list[dict[str, Any]]:
    tags = {"clusterctl:cluster": "lab-1", "clusterctl:node": node, "Name": node}
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds or ("instance",)]


def test_a_stopped_machine_has_no_public_address_and_is_started_again(lab: Lab, api: Api) -> None:
    lab.launch("worker-1", TagSpecifications=tagged("worker-1"))
    lab.ec2.wait(1)
    before = lab.instance("worker-1")
    marker = lab.ssh("worker-1", "echo here >~/file && cat ~/file")
    told: list[str] = []
    create.stop(api, "lab-1", told.append)
    create.stop(api, "lab-1", told.append)
    assert told == ["stopping worker-1"], "what is stopped stays so"
    stopped = lab.instance("worker-1")
    assert stopped["State"]["Name"] == "stopped"
    assert "PublicIpAddress" not in stopped
    assert "Association" not in stopped["NetworkInterfaces"][0], "what the provider reads"

    told.clear()
    create.start_stopped(api, "lab-1", told.append)
    assert told == ["worker-1: stopped; starting again"]
    after = lab.instance("worker-1")
    assert after["State"]["Name"] == "running"
    assert after["PublicIpAddress"] != before["PublicIpAddress"]
    lab.ec2.wait(1)
    assert lab.ssh("worker-1", "cat ~/file") == marker, "the same disk, and the same host key"
    create.start_stopped(api, "lab-1", told.append)
    assert len(told) == 1


def test_a_stopped_machine_that_does_not_start_is_named(lab: Lab, api: Api) -> None:
    id = lab.launch("worker-1", TagSpecifications=tagged("worker-1"))
    lab.api.stop_instances(InstanceIds=[id])
    lab.ec2.fault("error", action="StartInstances", code="InsufficientInstanceCapacity", status=500)
    with pytest.raises(ProviderError, match="worker-1 was stopped and cannot be started") as caught:
        create.start_stopped(api, "lab-1", print)
    assert "no machine was replaced" in caught.value.hint


CPU = NodeGroup(count=1, family="cpu")


def survey(api: Api, group: NodeGroup = CPU, **cloud: Any) -> preflight.Survey:
    """What `up` looks at before it asks about money."""
    cloud = {"region": api.region, **cloud}
    spec = ClusterSpec(name="lab", provider="ec2", groups=(group,), cloud=CloudSpec(**cloud))
    return preflight.survey(api, spec, None, lambda line: None)


def test_local_zones_are_left_out(lab: Lab, api: Api) -> None:
    """Where an account has opted in to them they are among the offerings, and first."""
    offered = lab.api.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": ["c7i.xlarge"]}],
    )["InstanceTypeOfferings"]
    assert "us-east-1-bos-1a" in [one["Location"] for one in offered]
    assert survey(api).zones[0] == "us-east-1a"
    with pytest.raises(UsageError, match="us-east-1-bos-1a: not an availability zone"):
        survey(api, zones=("us-east-1-bos-1a",))


@rows("kind, cloud, said", "ec2_strict.what_cannot_boot_is_refused_before_it_costs")
def test_what_cannot_boot_is_refused_before_it_costs(
    lab: Lab, api: Api, kind: str, cloud: dict[str, Any], said: str
) -> None:
    lab.ec2.grant(64)
    with pytest.raises(UsageError, match=said) as caught:
        survey(api, NodeGroup(count=1, instance_type=kind), **cloud)
    assert caught.value.hint


def test_a_region_that_is_not_enabled_is_named(lab: Lab, api: Api) -> None:
    """AWS answers there as if the credentials were wrong."""
    with pytest.raises(ProviderError, match="af-south-1: this region is not enabled") as caught:
        Api("af-south-1").find_account()
    assert "enable it in the AWS console" in caught.value.hint
    lab.ec2.fault("error", code="InvalidClientTokenId", status=403)
    with pytest.raises(ProviderError, match="AWS does not recognize your credentials"):
        Api("af-south-1").find_account()


def test_down_removes_nothing_from_a_network_of_theirs(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither their machine beside ours, nor what GuardDuty has put there; and that takes no more
    rights than infra/ec2/policy.json gives."""
    monkeypatch.setattr(remove, "PAUSE", 0.05)
    lab.ec2.fault("never_boot")
    lab.ec2.policy(policy())
    with their_network(lab.api, "us-east-1a") as (vpc, subnet):
        end = lab.api.create_vpc_endpoint(
            VpcEndpointType="Interface",
            VpcId=vpc,
            ServiceName="com.amazonaws.us-east-1.guardduty-data",
            SubnetIds=[subnet],
        )["VpcEndpoint"]["VpcEndpointId"]
        theirs = lab.launch("theirs", subnet=subnet)
        group = api.call(
            "create_security_group",
            GroupName="lab-1-nodes",
            Description="d",
            VpcId=vpc,
            TagSpecifications=tagged("lab", "security-group"),
        )["GroupId"]
        lab.launch("worker-1", subnet=subnet, TagSpecifications=tagged("worker-1", "instance"))
        assert not remove.is_managed(api, "lab-1")
        remove.remove_cluster(api, "lab-1", lambda line: None)
        groups = lab.api.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
        assert group not in [one["GroupId"] for one in groups["SecurityGroups"]]
        assert lab.instance("worker-1")["State"]["Name"] == "terminated"
        assert lab.instance("theirs")["State"]["Name"] in ("pending", "running")
        ends = lab.api.describe_vpc_endpoints(VpcEndpointIds=[end])["VpcEndpoints"]
        assert [one["State"] for one in ends if one["VpcEndpointId"] == end] == ["available"]
        lab.api.terminate_instances(InstanceIds=[theirs])
        lab.api.delete_vpc_endpoints(VpcEndpointIds=[end])


def test_an_account_without_a_default_network_is_as_good(lab: Lab, api: Api) -> None:
    """AWS refuses a launch that names no subnet there; every launch of ours names one."""
    default = [{"Name": "isDefault", "Values": ["true"]}]
    [vpc] = lab.api.describe_vpcs(Filters=default)["Vpcs"]
    of_it = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    for subnet in lab.api.describe_subnets(Filters=of_it)["Subnets"]:
        lab.api.delete_subnet(SubnetId=subnet["SubnetId"])
    lab.api.delete_vpc(VpcId=vpc["VpcId"])
    with pytest.raises(ClientError, match="VPCIdNotSpecified"):
        lab.api.run_instances(ImageId=UBUNTU, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    assert survey(api).zones[0] == "us-east-1a"


def test_missing_rights_are_known_before_the_question(lab: Lab, api: Api) -> None:
    """By a dry run, with the tags that the policy's conditions look at."""
    rights = policy()
    lab.ec2.policy(rights)
    lab.ec2.fault("ice", calls=1)
    assert survey(api, spot=True).account == "123456789012"
    with pytest.raises(ClientError, match="sufficient"):
        lab.launch("one")  # a dry run says nothing about capacity
    lab.ec2.forget_calls()
    for statement in rights["Statement"]:
        if statement["Sid"] == "TagNewResources":
            statement["Condition"]["StringEquals"]["ec2:CreateAction"].remove("RunInstances")
    lab.ec2.policy(rights)
    with pytest.raises(ProviderError, match="your AWS user is not allowed to do that") as caught:
        survey(api)
    assert "is not authorized to perform: ec2:CreateTags" in caught.value.message
    assert "policy.json" in caught.value.hint
    assert not [
        call
        for call in lab.ec2.calls
        if call["action"] == "ec2:RunInstances" and "dry_run" not in call
    ]


GUARDRAILS = (
    ("instance", "StringNotEquals", "ec2:MetadataHttpTokens", "required"),
    ("volume", "Bool", "ec2:Encrypted", "false"),
    ("volume", "Null", "ec2:Encrypted", "true"),
    ("volume", "StringNotEquals", "ec2:VolumeType", "gp3"),
)
"""What organizations deny: machines without IMDSv2, and disks that are not encrypted. Sources: AWS
Organizations User Guide, "Example SCPs for Amazon EC2"; karpenter-provider-aws, issue 9018."""


def denied(kind: str, operator: str, key: str, value: str) -> dict[str, Any]:
    return {
        "Effect": "Deny",
        "Action": "ec2:RunInstances",
        "Resource": f"arn:aws:ec2:*:*:{kind}/*",
        "Condition": {operator: {key: value}},
    }


def test_what_an_organization_asks_of_a_launch_is_asked_for(lab: Lab, api: Api) -> None:
    """The dry run says what the launch is going to say, so that one is denied as the other is."""
    rights = policy()
    rights["Statement"] += [denied(*row) for row in GUARDRAILS]
    lab.ec2.policy(rights)
    assert survey(api).zones
    with their_network(lab.api, "us-east-1a") as (_, subnet):
        assert survey(api, subnet=(subnet,)).zones
        row = ("network-interface", "Bool", "ec2:AssociatePublicIpAddress", "true")
        lab.ec2.policy({"Statement": [*rights["Statement"], denied(*row)]})
        with pytest.raises(ProviderError, match="not allowed"):
            survey(api, subnet=(subnet,))
        with pytest.raises(ProviderError, match="not allowed"):
            survey(api)  # the launcher of a new network has a public address, too


# -------------------------------------------------------------------------------------------------
# A clock of this machine that AWS does not accept.


# -------------------------------------------------------------------------------------------------
# How all that a cluster has on EC2 goes: in which order, and what keeps it or is shown late. No
# Terraform.


def make_network(lab: Lab) -> tuple[str, str, str]:
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

    def find_tainted(self) -> frozenset[str]:
        return frozenset()

    def list_resources(self) -> dict[str, str]:
        return {}


def test_what_guardduty_puts_into_a_network_goes_with_it(
    lab: Lab, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint and a group, which keep the subnet and the VPC."""
    monkeypatch.setattr(remove, "PAUSE", 0.05)
    vpc, subnet, own = make_network(lab)
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
