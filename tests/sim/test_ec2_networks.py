"""Networks as accounts have them, before anything costs money: quotas, rights, DNS. The code of
clusterctl against the simulated API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.actions import up_plan
from clusterctl.core import assets
from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import preflight
from clusterctl.machines.ec2.api import Api
from tests.sim.lab import Lab, their_network

pytestmark = [pytest.mark.netns, pytest.mark.sshd]

CIDR = "10.98.0.0/24"


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Api:
    return lab.connect(monkeypatch)


def survey(api: Api, **cloud: Any) -> preflight.Survey:
    """What `up` looks at before it asks about money."""
    cloud = {"region": api.region, **cloud}
    groups = (NodeGroup(count=1, family="cpu"),)
    spec = ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=CloudSpec(**cloud))
    return preflight.survey(api, spec, {}, "", lambda line: None)


@pytest.mark.parametrize(
    ("action", "private"),
    [("CreateVpc", False), ("CreateInternetGateway", False), ("AllocateAddress", True)],
)
def test_who_may_make_no_network_is_told_before_it_costs(
    lab: Lab, api: Api, action: str, private: bool
) -> None:
    """As in many organizations; asked by dry runs, of which nothing stays."""
    rights = json.loads((assets.find_folder("infra") / "ec2" / "policy.json").read_text())
    lab.ec2.policy(rights)
    before = lab.ec2.left()
    assert survey(api, private=private).zones
    assert lab.ec2.left() == before
    deny = {"Effect": "Deny", "Action": f"ec2:{action}", "Resource": "*"}
    lab.ec2.policy({**rights, "Statement": [*rights["Statement"], deny]})
    with pytest.raises(ProviderError, match=f"not authorized to perform: ec2:{action}") as caught:
        survey(api, private=private)
    assert "--vpc" in caught.value.hint
    with their_network(lab.api, "us-east-1a") as (vpc, _):
        assert survey(api, vpc=vpc).zones, "where nothing is made, nothing is asked"


def test_who_may_make_no_security_group_in_a_network_of_theirs_is_told_before_it_costs(
    lab: Lab, api: Api
) -> None:
    rights = json.loads((assets.find_folder("infra") / "ec2" / "policy.json").read_text())
    with their_network(lab.api, "us-east-1a") as (vpc, _):
        lab.ec2.policy(rights)
        before = lab.ec2.left()
        assert survey(api, vpc=vpc).zones
        assert lab.ec2.left() == before
        deny = {"Effect": "Deny", "Action": "ec2:CreateSecurityGroup", "Resource": "*"}
        lab.ec2.policy({**rights, "Statement": [*rights["Statement"], deny]})
        with pytest.raises(ProviderError, match="perform: ec2:CreateSecurityGroup") as caught:
            survey(api, vpc=vpc)
        assert "two security groups" in caught.value.hint
        lab.ec2.policy(None)


def test_a_network_of_theirs_for_dedicated_machines_is_refused_before_it_costs(
    lab: Lab, api: Api
) -> None:
    vpc = lab.api.create_vpc(CidrBlock=CIDR, InstanceTenancy="dedicated")["Vpc"]["VpcId"]
    subnet = lab.api.create_subnet(VpcId=vpc, CidrBlock=CIDR)["Subnet"]["SubnetId"]
    try:
        with pytest.raises(UsageError, match=f"{vpc} has the tenancy 'dedicated'"):
            survey(api, vpc=vpc)
        lab.api.modify_vpc_tenancy(VpcId=vpc, InstanceTenancy="default")
        with pytest.raises(UsageError, match="no route to an internet gateway"):
            survey(api, vpc=vpc)
    finally:
        lab.api.delete_subnet(SubnetId=subnet)
        lab.api.delete_vpc(VpcId=vpc)


def test_no_security_group_is_called_like_the_id_of_one(lab: Lab) -> None:
    """Whose name begins with sg- would have a cluster whose groups EC2 refuses."""
    with their_network(lab.api, "us-east-1a") as (vpc, _):
        for owner in ("user/sg", "assumed-role/Dev/SG-Group.4@example.org"):
            id = up_plan.make_id(owner, "lab")
            made = lab.api.create_security_group(
                GroupName=f"{id}-ssh", Description="SSH", VpcId=vpc
            )
            lab.api.delete_security_group(GroupId=made["GroupId"])
        with pytest.raises(ClientError, match=r"may not be in the format sg-\*"):
            lab.api.create_security_group(GroupName="sg-lab", Description="no", VpcId=vpc)
