"""Subnets of the user's own for workers without public addresses."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.core.model import CloudSpec
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import network, refusals
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.network import ZoneSubnets

CLOUD = CloudSpec(region="us-east-1", vpc="vpc-1", private=True)


class Region(Api):
    """A VPC with these subnets and their free addresses: public ones, and closed ones with a NAT
    gateway."""

    def __init__(self, **free: int) -> None:
        super().__init__("us-east-1")
        self.free = free

    def find_tenancy(self, vpc: str) -> str:
        return "default"

    def check_right(self, action: str, **arguments: Any) -> None:
        """Everything is allowed."""

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        if action == "describe_subnets":
            return [
                {
                    "SubnetId": id,
                    "VpcId": "vpc-1",
                    "AvailabilityZone": "us-east-1a",
                    "AvailableIpAddressCount": free,
                }
                for id, free in self.free.items()
            ]
        ways = {
            "public": {"GatewayId": "igw-1"},
            "closed": {"NatGatewayId": "nat-1"},
            "wide": {"CoreNetworkArn": WAN},
        }
        return [
            {
                "Associations": [{"SubnetId": id}],
                "Routes": [
                    {
                        "DestinationCidrBlock": "0.0.0.0/0",
                        "State": "active",
                        **ways[id.partition("_")[0]],
                    }
                ],
            }
            for id in self.free
        ]


WAN = "arn:aws:networkmanager::123456789012:core-network/core-network-0123456789abcdef0"


def choose(machines: int, *there: str, **free: int) -> dict[str, ZoneSubnets]:
    return network.choose_network(Region(**free), CLOUD, machines, there)


def test_more_private_workers_go_where_the_others_are() -> None:
    """Terraform would have to replace those that run."""
    there: Collection[str] = ("public_2", "closed_2")
    full = {"public_1": 9, "public_2": 0, "closed_1": 9, "closed_2": 2}
    assert choose(2, *there, **full)["us-east-1a"] == ZoneSubnets("closed_2", "public_2", "nat-1")
    with pytest.raises(UsageError, match="closed_2 has 2 free addresses, and the cluster needs 3"):
        choose(3, *there, **full)


def test_a_network_of_dedicated_machines_is_refused() -> None:
    """They cost more than the plan would say. What runs there is left alone."""

    class Dedicated(Region):
        def find_tenancy(self, vpc: str) -> str:
            return "dedicated"

    with pytest.raises(UsageError, match="vpc-1 has the tenancy 'dedicated'") as caught:
        network.choose_network(Dedicated(public=1, closed=3), CLOUD, 3)
    assert "aws ec2 modify-vpc-tenancy --vpc-id vpc-1" in caught.value.hint
    there = ("public", "closed")
    assert network.choose_network(Dedicated(public=1, closed=3), CLOUD, 0, there)


def test_who_may_make_no_security_group_is_told_before_it_costs() -> None:
    """Asked with the tags that it will have, and not where the groups are there already."""
    asked: list[dict[str, Any]] = []

    class Kept(Region):
        def check_right(self, action: str, **arguments: Any) -> None:
            asked.append({"action": action, **arguments})
            raise refusals.make_refusal("create security group", "UnauthorizedOperation", "no", "r")

    cloud = replace(CLOUD, tag=("team=ml",))
    with pytest.raises(ProviderError, match=r"vpc-1: create security group: .*not allowed") as told:
        network.choose_network(Kept(public=1, closed=3), cloud, 3, name="lab")
    assert told.value.hint.startswith("clusterctl makes two security groups there; ")
    [ask] = asked
    assert (ask["action"], ask["VpcId"]) == ("create_security_group", "vpc-1")
    assert {"Key": "team", "Value": "ml"} in ask["TagSpecifications"][0]["Tags"]
    assert network.choose_network(Kept(public=1, closed=3), cloud, 2, ("public", "closed"))
    assert len(asked) == 1
