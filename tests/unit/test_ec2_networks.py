"""Subnets of the user's own for workers without public addresses."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from clusterctl.errors import UsageError
from clusterctl.model import CloudSpec
from clusterctl.providers.ec2 import networks
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.networks import ZoneSubnets

CLOUD = CloudSpec(region="us-east-1", vpc="vpc-1", private=True)


class Region(Api):
    """A VPC with these subnets and their free addresses: public ones, and closed ones with a NAT
    gateway."""

    def __init__(self, **free: int) -> None:
        super().__init__("us-east-1")
        self.free = free

    def all(self, action: str, key: str, service: str = "ec2", /, **arguments: Any) -> list[Any]:
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
        ways = {"public": {"GatewayId": "igw-1"}, "closed": {"NatGatewayId": "nat-1"}}
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


def choose(machines: int, *there: str, **free: int) -> dict[str, ZoneSubnets]:
    return networks.choose(Region(**free), CLOUD, machines, there)


def test_private_workers_and_their_launcher_are_in_subnets_of_one_zone() -> None:
    found = choose(3, public=1, closed=3)
    assert found == {"us-east-1a": ZoneSubnets("closed", "public", "nat-1")}


def test_more_private_workers_go_where_the_others_are() -> None:
    """Terraform would have to replace those that run."""
    there: Collection[str] = ("public_2", "closed_2")
    full = {"public_1": 9, "public_2": 0, "closed_1": 9, "closed_2": 2}
    assert choose(2, *there, **full)["us-east-1a"] == ZoneSubnets("closed_2", "public_2", "nat-1")
    with pytest.raises(UsageError, match="closed_2 has 2 free addresses, and the cluster needs 3"):
        choose(3, *there, **full)
