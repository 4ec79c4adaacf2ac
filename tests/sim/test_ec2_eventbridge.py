"""The deadline that AWS keeps, against EventBridge Scheduler as it is simulated. No Terraform."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import remove, schedules
from clusterctl.machines.ec2.api import Api
from tests.ec2.conftest import policy
from tests.sim.lab import Lab

pytestmark = [pytest.mark.netns, pytest.mark.sshd]


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """As clusterctl asks AWS, with the rights of infra/ec2/policy.json."""
    made = lab.connect(monkeypatch)
    lab.ec2.make_role()
    lab.ec2.policy(policy())
    yield made
    lab.ec2.policy(None)
    for group in lab.ec2.schedules:
        schedules.remove_schedule(made, group)


def arm(api: Api, ids: list[str], deadline: float) -> None:
    schedules.prepare(api, "lab-1")
    schedules.schedule_ends(api, "lab-1", ids, deadline)


def test_machines_that_left_the_cluster_have_no_schedule(lab: Lab, api: Api) -> None:
    ids = [f"i-{number:017}" for number in range(3)]
    arm(api, ids, time.time() + 3600)
    arm(api, ids[:2], time.time() + 3600)
    assert set(lab.ec2.schedules["clusterctl-lab-1"]) == set(ids[:2])


def test_aws_removes_a_nat_gateway_and_then_its_address(lab: Lab, api: Api) -> None:
    """Those of the cluster: private workers need none after their deadline."""
    ids = {}
    for cluster in ("lab-1", "other"):
        tags = [{"Key": "clusterctl:cluster", "Value": cluster}]
        address = lab.api.allocate_address(
            Domain="vpc", TagSpecifications=[{"ResourceType": "elastic-ip", "Tags": tags}]
        )["AllocationId"]
        gateway = lab.api.create_nat_gateway(
            SubnetId=lab.subnet,
            AllocationId=address,
            TagSpecifications=[{"ResourceType": "natgateway", "Tags": tags}],
        )["NatGateway"]["NatGatewayId"]
        ids[cluster] = (gateway, address)
    said = schedules.check_schedule(api, nat=True)
    assert said == "AWS terminates what still runs one minute later, and removes the NAT gateway"
    deadline = time.time() + 3600
    schedules.prepare(api, "lab-1")
    schedules.schedule_ends(api, "lab-1", [], deadline, nat=True)
    [group] = lab.ec2.schedules.values()
    assert set(group) == set(ids["lab-1"])

    lab.ec2.turn_the_scheduler_ahead(3600 + 1000)
    until = time.monotonic() + 20
    while [one["AllocationId"] for one in lab.api.describe_addresses()["Addresses"]] != [
        ids["other"][1]
    ]:
        assert time.monotonic() < until
        time.sleep(0.1)
    states = {
        one["NatGatewayId"]: one["State"] for one in lab.api.describe_nat_gateways()["NatGateways"]
    }
    assert states[ids["other"][0]] == "available"
    assert states.get(ids["lab-1"][0], "deleted") == "deleted"
    lab.api.delete_nat_gateway(NatGatewayId=ids["other"][0])
    lab.api.release_address(AllocationId=ids["other"][1])


def test_schedules_go_with_the_cluster_and_are_found_without_it(lab: Lab, api: Api) -> None:
    arm(api, [f"i-{7:017}"], time.time() + 3600)
    [left] = [item for item in remove.find_tagged(api) if item.kind == schedules.KIND]
    assert (left.id, left.cluster) == ("clusterctl-lab-1", "lab-1")
    remove.remove_cluster(api, "lab-1", print)
    assert lab.ec2.schedules == {}
    assert remove.find_tagged(api, "lab-1") == ()


def test_whoever_may_make_roles_makes_this_one_once(lab: Lab, api: Api) -> None:
    """A role that is new is not known everywhere at once; without the right nothing is made."""
    lab.ec2.remove_role()
    assert "if you may create the role clusterctl-deadline" in schedules.check_schedule(api)
    with pytest.raises(ProviderError, match=r"not allowed to do that.*iam:CreateRole"):
        schedules.prepare(api, "lab-1")
    assert lab.ec2.schedules == {}
    lab.ec2.policy(None)
    lab.ec2.fault("late", seconds=1.5)
    arm(api, [f"i-{7:017}"], time.time() + 3600)
    assert len(lab.ec2.schedules["clusterctl-lab-1"]) == 1
    lab.ec2.policy(policy())
    assert schedules.check_schedule(api) == "AWS terminates what still runs one minute later"


def test_without_the_rights_there_is_nothing_to_find(lab: Lab, api: Api) -> None:
    lab.ec2.policy({"Statement": [{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}]})
    with pytest.raises(ProviderError, match="not allowed to do that"):
        schedules.check_schedule(api)
    assert schedules.find_schedule(api, "lab-1") == []
