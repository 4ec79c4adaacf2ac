"""EC2 Instance Connect Endpoints: what is known before one is made, and connections through one.
The code of clusterctl against the simulated API, and against machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clusterctl.core.model import CloudSpec, ClusterSpec, Node, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import preflight, remove, tunnels
from clusterctl.machines.ec2.api import TAG, Api
from clusterctl.transport.pool import Pool
from tests.e2e.cli import wait_for
from tests.ec2.conftest import policy
from tests.sim.lab import Lab, their_network
from tests.unit.making import node

pytestmark = [pytest.mark.netns, pytest.mark.sshd]

RIGHTS = policy()


@pytest.fixture
def api(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Api:
    folder = lab.ec2.offer_tunnels()
    return lab.connect(monkeypatch, PATH=f"{folder}:{os.environ['PATH']}")


@contextmanager
def endpoint(lab: Lab, subnet: str = "", **tags: str) -> Iterator[str]:
    """One with the default group of its VPC; its id."""
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    more: dict[str, Any] = {}
    if pairs:
        kind = "instance-connect-endpoint"
        more["TagSpecifications"] = [{"ResourceType": kind, "Tags": pairs}]
    made = lab.api.create_instance_connect_endpoint(SubnetId=subnet or lab.subnet, **more)
    id = str(made["InstanceConnectEndpoint"]["InstanceConnectEndpointId"])
    try:
        yield id
    finally:
        lab.api.delete_instance_connect_endpoint(InstanceConnectEndpointId=id)


def spec(**cloud: Any) -> ClusterSpec:
    cloud = {"region": "us-east-1", "instance_connect": True, **cloud}
    groups = (NodeGroup(count=1, family="cpu"),)
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=CloudSpec(**cloud))


def check(api: Api, id: str = "", **cloud: Any) -> tunnels.Existing | None:
    """What is known before money is spent."""
    return tunnels.check_endpoints(api, spec(**cloud), id, there=False)


def behind(lab: Lab, id: str) -> Node:
    """The machine `one` as a node behind an endpoint."""
    [item] = lab.api.describe_instance_connect_endpoints(InstanceConnectEndpointIds=[id])[
        "InstanceConnectEndpoints"
    ]
    private = lab.ec2.machine("one").private
    tunnel = tunnels.build_command("us-east-1", id, item["DnsName"], private)
    return node("launcher", address=private, private_address=private, ssh_port=22, tunnel=tunnel)


def connect(node: Node) -> str:
    """Why no key of ours gets in."""
    with Pool([node], identity=None, known_hosts=Path(os.devnull)) as pool:
        [found] = pool.connect([node.name], timeout=20)
    return found.error


def test_who_has_the_rights_of_an_earlier_version_finds_what_there_is(lab: Lab, api: Api) -> None:
    older = json.loads(json.dumps(RIGHTS))
    older["Statement"][0]["Action"].remove("ec2:DescribeInstanceConnectEndpoints")
    group = lab.group("lab-1-nodes")
    lab.api.create_tags(Resources=[group], Tags=[{"Key": TAG, "Value": "lab-1"}])
    lab.ec2.policy(older)
    try:
        assert [left.id for left in remove.find_tagged(api, "lab-1")] == [group]
    finally:
        lab.ec2.policy(None)


def test_the_endpoint_of_a_network_of_theirs_is_used(lab: Lab, api: Api) -> None:
    with their_network(lab.api, "us-east-1a") as (vpc, subnet):
        assert check(api, vpc=vpc) is None
        with endpoint(lab, subnet) as id:
            for where in ({"vpc": vpc}, {"subnet": (subnet,)}):
                found = check(api, **where)
                assert found
                assert found.id == id
                assert len(found.groups) == 1
                assert id in tunnels.describe_endpoints(found)
        with endpoint(lab, subnet, **{TAG: "lab-2"}):
            with pytest.raises(UsageError, match=r"of cluster lab-2 .* serves that cluster alone"):
                check(api, vpc=vpc)
            assert check(api, "lab-2", vpc=vpc) is None, "its own, which Terraform keeps"
        lab.ec2.fault("slow_endpoint", seconds=6)
        made = lab.api.create_instance_connect_endpoint(SubnetId=subnet)["InstanceConnectEndpoint"]
        with pytest.raises(ProviderError, match="create-in-progress"):
            check(api, vpc=vpc)
        id = made["InstanceConnectEndpointId"]

        def ready() -> bool:
            found = lab.api.describe_instance_connect_endpoints(InstanceConnectEndpointIds=[id])
            return bool(found["InstanceConnectEndpoints"][0]["State"] == "create-complete")

        wait_for(ready, 20, "it to be there")
        assert check(api, vpc=vpc)
        lab.api.delete_instance_connect_endpoint(InstanceConnectEndpointId=id)


def test_an_endpoint_that_is_being_made_is_removed_when_it_is_there(lab: Lab, api: Api) -> None:
    lab.ec2.fault("slow_endpoint", seconds=10)
    tags = [{"Key": TAG, "Value": "lab-1"}]
    made = lab.api.create_instance_connect_endpoint(
        SubnetId=lab.subnet,
        TagSpecifications=[{"ResourceType": "instance-connect-endpoint", "Tags": tags}],
    )["InstanceConnectEndpoint"]
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        lab.api.delete_instance_connect_endpoint(
            InstanceConnectEndpointId=made["InstanceConnectEndpointId"]
        )
    said: list[str] = []
    remove.remove_all(api, "lab-1", said.append)
    assert f"AWS is still creating {made['InstanceConnectEndpointId']}" in said[1]
    assert remove.find_tagged(api, "lab-1") == ()


def test_who_may_make_no_endpoint_is_told_before_it_costs(lab: Lab, api: Api) -> None:
    deny = {"Effect": "Deny", "Action": "ec2:CreateInstanceConnectEndpoint", "Resource": "*"}
    for rights, allowed in ((RIGHTS["Statement"], True), ([*RIGHTS["Statement"], deny], False)):
        lab.ec2.policy({**RIGHTS, "Statement": rights})
        try:
            if allowed:
                preflight.survey(api, spec(), None, lambda line: None)
                continue
            with pytest.raises(ProviderError) as refused:
                preflight.survey(api, spec(), None, lambda line: None)
            assert refused.value.hint.startswith("--instance-connect makes")
        finally:
            lab.ec2.policy(None)
    assert lab.api.describe_instance_connect_endpoints()["InstanceConnectEndpoints"] == []


def test_bytes_go_both_ways_for_whoever_may(lab: Lab, api: Api) -> None:
    lab.launch("one")
    lab.ec2.wait(1)
    with endpoint(lab, **{TAG: "lab-1"}) as id:
        launcher = behind(lab, id)
        lab.ec2.policy(RIGHTS)
        assert "its host key" in connect(launcher), "an sshd answers"
        [call] = [one for one in lab.ec2.calls if one["action"].endswith(":OpenTunnel")]
        assert not call["administrator"]
        lab.ec2.policy({**RIGHTS, "Statement": RIGHTS["Statement"][:1]})
        assert tunnels.DENIED in connect(launcher)
        lab.ec2.policy(None)
        lab.ec2.fault("tunnel", calls=1)
        assert "Try again later" in connect(launcher)
        assert lab.until(lambda: lab.ec2.tunnels, {1, 2, 3}) == 0, "what was closed is closed there"
