"""infra/ec2/policy.json: who holds it may do what clusterctl does, to what carries its tag."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import assets
from clusterctl.core.text import read_toml
from clusterctl.machines import ec2
from clusterctl.machines.ec2.remove import KINDS
from tests.sim.ec2.authorization import asks
from tests.sim.ec2.iam import allows
from tests.sim.ec2.wire import Request

POLICY = json.loads((assets.find_folder("infra") / "ec2" / "policy.json").read_text())
TAG = "clusterctl:cluster"
OWN, FOREIGN, UNTAGGED = {TAG: "lab-1"}, {"owner": "somebody"}, dict[str, str]()


def actions() -> list[str]:
    lists = [rule["Action"] for rule in POLICY["Statement"]]
    return sorted({one for item in lists for one in ([item] if isinstance(item, str) else item)})


def may(action: str, tags: dict[str, str], new: dict[str, str] = OWN, **parameters: str) -> bool:
    """Whether IAM allows a call about things with these tags, which gives `new` ones to what it
    makes."""
    request = Request(
        "ec2",
        action,
        "us-east-1",
        {key.replace("_", "."): value for key, value in parameters.items()},
    )
    questions = list(asks(request, lambda name: tags, lambda kind: new))
    assert questions
    return all(allows(POLICY, **question) for question in questions)


ID = "0123456789abcdef0"
TABLES = read_toml(Path(__file__).with_name("policy.toml"))
CALLS: dict[str, dict[str, str]] = TABLES["calls"]

NEW = set(TABLES["new"])


def test_every_action_is_looked_at_here() -> None:
    """A new one has to say what it is about."""
    known = {f"ec2:{name}" for name in (*CALLS, *NEW)}
    looks = ("ec2:Describe", "ec2:Get", "pricing:Get", "servicequotas:Get", "sts:GetCallerIdentity")
    looks += ("ecr:BatchGet", "ecr:Get", "freetier:Get")
    looks += ("scheduler:List",)
    rest = {one for one in actions() if not one.startswith(looks)} - known
    rest -= DISK_KEY
    rest -= {one for one in actions() if one.startswith("scheduler:")}  # a test of their own
    assert rest == {
        "iam:CreateServiceLinkedRole",
        "iam:GetRolePolicy",
        "iam:PassRole",
        "ec2:CreateNetworkInterface",  # of an endpoint
        "ec2:DeleteVpcEndpoints",
        "ec2-instance-connect:OpenTunnel",
        "servicequotas:RequestServiceQuotaIncrease",
    }
    assert known <= set(actions())
    assert not [one for one in actions() if "*" in one]


DISK_KEY = set(TABLES["disk_key"])

PROVIDER = set(TABLES["provider"])


def called_by_us() -> set[str]:
    """The actions that clusterctl's own code names."""
    verbs = "authorize|cancel|create|delete|deregister|describe|detach|disassociate|get|list|lookup"
    verbs += "|release|revoke|run|start|stop|update"
    named = re.compile(rf"[\".]((?:{verbs}|terminate)_[a-z_]+)[\"(]")
    found = {kind.describe for kind in KINDS} | {kind.remove for kind in KINDS}
    for path in Path(ec2.__file__).parent.glob("*.py"):
        found |= set(named.findall(path.read_text()))
    return {"".join(word.capitalize() for word in name.split("_")) for name in found}


def test_no_right_is_there_that_nobody_uses() -> None:
    """The rest of what is asked for, tests of tests/ec2 do with these rights alone."""
    others = {"iam:CreateServiceLinkedRole", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"}
    # IAM asks about these where a schedule is made with its role, a group with tags, and an
    # endpoint with its interface; a tunnel is no call of the API.
    others |= DISK_KEY
    others |= {"iam:PassRole", "scheduler:TagResource"}
    others |= {"ec2:CreateNetworkInterface", "ec2-instance-connect:OpenTunnel"}
    others |= {"servicequotas:RequestServiceQuotaIncrease"}  # a command that is printed
    used = called_by_us() | PROVIDER
    assert {one for one in actions() if one.partition(":")[2] not in used} == others
    assert {f"ec2:{one}" for one in PROVIDER} <= set(actions())


@pytest.mark.parametrize("action", CALLS)
def test_what_is_not_ours_can_be_neither_tagged_nor_changed_nor_removed(action: str) -> None:
    assert may(action, OWN, **CALLS[action])
    assert not may(action, FOREIGN, **CALLS[action])
    assert not may(action, UNTAGGED, **CALLS[action])


@pytest.mark.parametrize("action", sorted(NEW))
def test_what_is_new_is_tagged_as_it_is_made(action: str) -> None:
    spot = {"InstanceMarketOptions_MarketType": "spot"} if action == "RunInstances" else {}
    assert may(action, OWN, **spot)


def test_machines_can_be_made_in_a_network_of_theirs_and_nothing_be_changed_there() -> None:
    place = {"VpcId": f"vpc-{ID}", "SubnetId": f"subnet-{ID}"}
    assert may("CreateSecurityGroup", UNTAGGED, VpcId=place["VpcId"], GroupName="lab-1")
    assert may("RunInstances", UNTAGGED, SubnetId=place["SubnetId"])
    assert not may("CreateSubnet", UNTAGGED, VpcId=place["VpcId"])
    # Without an Elastic IP, only the subnet says whose network it is in.
    gateway = {"SubnetId": place["SubnetId"], "ConnectivityType": "private"}
    assert may("CreateNatGateway", OWN, **gateway)
    assert not may("CreateNatGateway", UNTAGGED, **gateway)


def test_an_endpoint_can_be_made_in_a_network_of_theirs() -> None:
    """Also in its default group, about which AWS may ask where a request names none, as that before
    the question about money does."""
    tags = {f"subnet-{ID}": UNTAGGED, f"sg-{ID}": OWN}
    for named in ({"SecurityGroupId.1": f"sg-{ID}"}, {}):
        form = {"SubnetId": f"subnet-{ID}", **named}
        request = Request("ec2", "CreateInstanceConnectEndpoint", "us-east-1", form)
        asked = [*asks(request, tags.get, lambda kind: OWN)]
        assert any("security-group" in one["resource"] for one in asked)
        assert all(allows(POLICY, **one) for one in asked)


OPEN = {"remotePort": "22", "privateIpAddress": "10.77.0.9", "maxTunnelDuration": "3600"}


@pytest.mark.parametrize(
    ("said", "tags", "can"),
    [
        ({}, OWN, True),
        ({}, FOREIGN, False),
        ({"remotePort": "3389"}, OWN, False),
        ({"maxTunnelDuration": "86400"}, OWN, False),
    ],
)
def test_tunnels_lead_to_ssh_through_endpoints_of_clusters(
    said: dict[str, str], tags: dict[str, str], can: bool
) -> None:
    arn = f"arn:aws:ec2:us-east-1:123456789012:instance-connect-endpoint/eice-{ID}"
    context = {f"ec2-instance-connect:{name}": value for name, value in (OPEN | said).items()}
    context |= {f"aws:ResourceTag/{name}": value for name, value in tags.items()}
    assert allows(POLICY, "ec2-instance-connect:OpenTunnel", arn, context) is can


def test_the_only_roles_that_can_be_made_are_those_for_spot_instances_and_endpoints() -> None:
    def can(service: str) -> bool:
        role = f"arn:aws:iam::123456789012:role/aws-service-role/{service}/AWSServiceRole"
        return allows(POLICY, "iam:CreateServiceLinkedRole", role, {"iam:AWSServiceName": service})

    assert can("spot.amazonaws.com")
    assert can("ec2-instance-connect.amazonaws.com")
    assert not can("ec2.amazonaws.com")


def test_the_command_that_asks_for_a_larger_quota_is_allowed() -> None:
    """`check` and errors print it; quotas of other services are none of ours."""
    for service in ("ec2", "iam"):
        arn = f"arn:aws:servicequotas:us-east-1:123456789012:{service}/L-DB2E81BA"
        can = allows(POLICY, "servicequotas:RequestServiceQuotaIncrease", arn, {})
        assert can is (service == "ec2")


def test_keys_are_used_through_ec2_alone() -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/mine"
    for action in sorted(DISK_KEY):
        assert allows(POLICY, action, key, {"kms:ViaService": "ec2.us-east-1.amazonaws.com"})
        assert not allows(POLICY, action, key, {})
    assert not allows(POLICY, "kms:Decrypt", key, {"kms:ViaService": "s3.us-east-1.amazonaws.com"})


def test_what_guardduty_puts_into_a_network_can_be_removed() -> None:
    """It carries a tag of its own, and none of ours."""
    managed = {"GuardDutyManaged": "true"}
    for action, parameters in {
        "DeleteVpcEndpoints": {"VpcEndpointId_1": f"vpce-{ID}"},
        "DeleteSecurityGroup": {"GroupId": f"sg-{ID}"},
    }.items():
        assert may(action, managed, **parameters)
        assert not may(action, FOREIGN, **parameters)
    assert not may("TerminateInstances", managed, InstanceId_1=f"i-{ID}")


ROLE = "arn:aws:iam::123456789012:role/clusterctl-deadline"


def may_schedule(action: str, role: str = ROLE, **parameters: Any) -> bool:
    target = {} if "Group" in action else {"Target": {"RoleArn": role}}
    request = Request("scheduler", action, "us-east-1", {**parameters, **target})
    return all(allows(POLICY, **question) for question in asks(request, lambda _: {}, lambda _: {}))


def test_schedules_are_made_for_clusters_alone_and_with_one_role_alone() -> None:
    tags = [{"Key": TAG, "Value": "lab-1"}]
    assert may_schedule("CreateScheduleGroup", Name="clusterctl-lab-1", Tags=tags)
    assert not may_schedule("CreateScheduleGroup", Name="payroll", Tags=tags)
    assert not may_schedule("DeleteScheduleGroup", Name="payroll")
    for action in ("CreateSchedule", "UpdateSchedule", "DeleteSchedule"):
        assert may_schedule(action, GroupName="clusterctl-lab-1", Name="i-1")
        assert not may_schedule(action, GroupName="default", Name="i-1")
    other = ROLE.replace("deadline", "admin")
    assert not may_schedule("CreateSchedule", other, GroupName="clusterctl-lab-1", Name="i-1")
    assert not allows(POLICY, "iam:PassRole", ROLE, {"iam:PassedToService": "ec2.amazonaws.com"})


def test_nobody_gets_the_right_to_make_roles() -> None:
    """Or to change one: that would be every right in the account."""
    changing = ("CreateRole", "PutRolePolicy", "AttachRolePolicy", "UpdateAssumeRolePolicy")
    assert not any(allows(POLICY, f"iam:{action}", ROLE, {}) for action in changing)


@pytest.mark.parametrize(
    ("action", "thing"),
    [
        ("TerminateInstances", f"instance/i-{ID}"),
        ("DeleteNatGateway", f"natgateway/nat-{ID}"),
        ("ReleaseAddress", f"elastic-ip/eipalloc-{ID}"),
    ],
)
def test_the_role_of_schedules_ends_what_is_ours_and_nothing_else(action: str, thing: str) -> None:
    text = (assets.find_folder("infra") / "ec2" / "deadline-role.json").read_text()
    arn = f"arn:aws:ec2:us-east-1:123456789012:{thing}"
    ours = {f"aws:ResourceTag/{TAG}": "lab-1"}
    assert allows(json.loads(text), f"ec2:{action}", arn, ours)
    assert not allows(json.loads(text), f"ec2:{action}", arn, {})
    assert not allows(json.loads(text), "ec2:StopInstances", arn, ours)


def test_it_fits_into_a_managed_policy() -> None:
    """6,144 characters, of which white space is not counted."""
    assert len("".join(json.dumps(POLICY).split())) <= 6144
