"""Subnets of the user's own for workers without public addresses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import ProviderError, UsageError
from clusterctl.model import CloudSpec
from clusterctl.providers.ec2 import failures, networks
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.networks import ZoneSubnets

CLOUD = CloudSpec(region="us-east-1", vpc="vpc-1", private=True)


class Region(Api):
    """A VPC with these subnets and their free addresses: public ones, and closed ones with a NAT
    gateway. `acls`: the rules of the network ACLs of some."""

    def __init__(self, acls: Mapping[str, Sequence[dict[str, Any]]] = {}, **free: int) -> None:
        super().__init__("us-east-1")
        self.free = free
        self.acls = acls

    def resolves_names(self, vpc: str) -> bool:
        return True

    def find_tenancy(self, vpc: str) -> str:
        return "default"

    def check_right(self, action: str, **arguments: Any) -> None:
        """Everything is allowed."""

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        if action == "describe_network_acls":
            return [
                {
                    "NetworkAclId": f"acl-{id}",
                    "Associations": [{"SubnetId": id}],
                    "Entries": [*rules, rule(32767, "deny"), rule(32767, "deny", out=True)],
                }
                for id, rules in self.acls.items()
            ]
        if action == "describe_subnets":
            return [
                {
                    "SubnetId": id,
                    "VpcId": "vpc-1",
                    "CidrBlock": "10.0.0.0/24" if id.startswith("public") else "10.0.1.0/24",
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


def rule(
    number: int, action: str, cidr: str = "0.0.0.0/0", *ports: int, out: bool = False
) -> dict[str, Any]:
    """Of TCP where ports are named, else of all traffic."""
    found = {"RuleNumber": number, "RuleAction": action, "CidrBlock": cidr, "Egress": out}
    if not ports:
        return {**found, "Protocol": "-1"}
    return {**found, "Protocol": "6", "PortRange": {"From": ports[0], "To": ports[-1]}}


def choose(machines: int, *there: str, **free: int) -> dict[str, ZoneSubnets]:
    return networks.choose(Region(**free), CLOUD, machines, there)


def test_private_workers_and_their_launcher_are_in_subnets_of_one_zone() -> None:
    found = choose(3, public=1, closed=3)
    assert found == {"us-east-1a": ZoneSubnets("closed", "public", "nat-1")}
    # AWS Cloud WAN: botocore's model of EC2, Route
    assert choose(3, public=1, wide=3) == {"us-east-1a": ZoneSubnets("wide", "public", WAN)}


def test_more_private_workers_go_where_the_others_are() -> None:
    """Terraform would have to replace those that run."""
    there: Collection[str] = ("public_2", "closed_2")
    full = {"public_1": 9, "public_2": 0, "closed_1": 9, "closed_2": 2}
    assert choose(2, *there, **full)["us-east-1a"] == ZoneSubnets("closed_2", "public_2", "nat-1")
    with pytest.raises(UsageError, match="closed_2 has 2 free addresses, and the cluster needs 3"):
        choose(3, *there, **full)


ME = "198.51.100.9"
IN, OUT = rule(100, "allow"), rule(100, "allow", out=True)
INSIDE = "10.0.0.0/16"
SSH_IN = rule(90, "allow", f"{ME}/32", 22)
PACKAGES = [
    rule(110, "allow", "0.0.0.0/0", 443, out=True),
    rule(120, "allow", "0.0.0.0/0", 80, out=True),
    rule(130, "allow", "0.0.0.0/0", 1024, 65535),
    rule(140, "allow", "0.0.0.0/0", 1024, 65535, out=True),
]


def look(
    *rules: dict[str, Any], image: str = "", me: str = ME, machines: int = 3, said: str = ""
) -> dict[str, ZoneSubnets]:
    """A public subnet with these rules."""
    cloud = replace(CLOUD, private=False, subnet=("public",), ami=image, ssh_cidr=said)
    region = Region({"public": rules}, public=9)
    return networks.choose(region, cloud, machines, me=lambda: me)


@pytest.mark.parametrize(
    "rules",
    [
        [IN, OUT],
        [SSH_IN, *PACKAGES],
        [rule(90, "deny", "192.0.2.0/24"), IN, OUT],
        [rule(90, "deny", "0.0.0.0/0", 23), rule(91, "deny", "0.0.0.0/0", 25, out=True), IN, OUT],
        [{**rule(50, "deny"), "Protocol": "17"}, IN, OUT],
        [{"RuleNumber": 50, "RuleAction": "deny", "Egress": True, "Protocol": "-1"}, IN, OUT],
        # A part is open: whether it is the right one is seen when machines run.
        [rule(90, "allow", "203.0.113.0/24", 443, out=True), SSH_IN, *PACKAGES[1:]],
    ],
)
def test_a_network_acl_that_lets_a_cluster_work_is_no_trouble(rules: list[dict[str, Any]]) -> None:
    assert look(*rules)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([OUT], f"blocks SSH from {ME}/32 (TCP 22, no rule allows it)"),
        (
            [rule(90, "deny", "0.0.0.0/0", 22), IN, OUT],
            f"blocks SSH from {ME}/32 (TCP 22, rule 90)",
        ),
        ([rule(90, "allow", "203.0.113.0/24", 22), *PACKAGES], "blocks SSH from"),
        ([IN], f"blocks answers of SSH to {ME}/32 (TCP 1024-65535, no rule"),
        ([IN, *PACKAGES[1:]], "blocks traffic to the internet (TCP 443, no rule allows it)"),
        (
            [IN, PACKAGES[0], *PACKAGES[2:]],
            "blocks traffic to the internet (TCP 80, no rule allows it)",
        ),
        ([IN, rule(90, "deny", "0.0.0.0/0", 400, 500, out=True), OUT], "(TCP 443, rule 90)"),
        # The own network is no part of the internet.
        ([IN, rule(90, "allow", INSIDE, out=True), *PACKAGES[2:]], "(TCP 443, no rule"),
        ([SSH_IN, rule(95, "allow", INSIDE), OUT], "blocks answers from the internet"),
        (
            [IN, rule(90, "deny", "0.0.0.0/0", out=True), {**OUT, "RuleNumber": 32767}],
            "(TCP 1024-65535, rule 90)",
        ),
        (
            [SSH_IN, {**rule(1, "deny"), "RuleNumber": 32767}, OUT],
            "(TCP 32768-60999, no rule allows it)",
        ),
    ],
)
def test_a_network_acl_that_keeps_a_cluster_from_working_is_named(
    rules: list[dict[str, Any]], said: str
) -> None:
    """Before it costs anything, and not after ten minutes of waiting for SSH or packages."""
    with pytest.raises(UsageError, match="public cannot be used: its network ACL acl-public") as no:
        look(*rules)
    assert said in no.value.message
    assert no.value.hint == "choose another --subnet, or have that ACL changed"


def test_who_comes_from_where_decides() -> None:
    closed = [SSH_IN, *PACKAGES]
    assert look(*closed, said=f"192.0.2.0/24,{ME}")
    with pytest.raises(UsageError, match=r"blocks SSH from 192\.0\.2\.0/24"):
        look(*closed, said="192.0.2.0/24")
    assert look(*closed, me="unknown"), "nobody knows it: what lets somebody in may do"
    with pytest.raises(UsageError, match="blocks SSH from anywhere"):
        look(*PACKAGES[:2], PACKAGES[3], me="unknown")


def test_an_image_of_theirs_may_have_ubuntu_s_packages() -> None:
    assert look(IN, PACKAGES[0], *PACKAGES[2:], image="ami-1")


def test_machines_that_run_are_not_judged_by_an_acl() -> None:
    assert look(machines=0)


def test_private_workers_and_their_launcher_have_to_reach_each_other() -> None:
    """Their subnets have ACLs of their own."""

    def pair(closed: list[dict[str, Any]], public: list[dict[str, Any]]) -> dict[str, ZoneSubnets]:
        region = Region({"closed": closed, "public": public}, public=1, closed=3)
        return networks.choose(region, CLOUD, 3, me=lambda: ME)

    everything = [IN, OUT]
    assert pair(everything, everything)
    assert pair([rule(90, "allow", "10.0.0.0/24"), *PACKAGES], everything)
    with pytest.raises(
        UsageError, match=r"closed cannot be used: .* blocks traffic to the internet"
    ):
        pair([IN, rule(90, "allow", INSIDE, out=True)], everything)
    said = r"closed is closed to public: network ACL acl-closed blocks traffic from the launcher"
    with pytest.raises(UsageError, match=rf"{said} \(10.0.0.0/24, TCP 22, no rule allows it\)"):
        pair(PACKAGES, everything)
    said = r"acl-public blocks traffic to the workers \(10.0.1.0/24, TCP 22, no rule allows it\)"
    with pytest.raises(UsageError, match=said):
        pair(everything, [IN, *PACKAGES])


def test_who_may_not_look_at_network_acls_is_not_kept() -> None:
    class Silent(Region):
        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            if action == "describe_network_acls":
                raise failures.make_refusal(action, "UnauthorizedOperation", "", "us-east-1")
            return super().list_all(action, key, service, **how)

    assert networks.choose(Silent(public=1, closed=3), CLOUD, 3)


def test_a_network_of_dedicated_machines_is_refused() -> None:
    """They cost more than the plan would say. What runs there is left alone."""

    class Dedicated(Region):
        def find_tenancy(self, vpc: str) -> str:
            return "dedicated"

    with pytest.raises(UsageError, match="vpc-1 has the tenancy 'dedicated'") as caught:
        networks.choose(Dedicated(public=1, closed=3), CLOUD, 3)
    assert "aws ec2 modify-vpc-tenancy --vpc-id vpc-1" in caught.value.hint
    there = ("public", "closed")
    assert networks.choose(Dedicated(public=1, closed=3), CLOUD, 0, there)


def test_who_may_make_no_security_group_is_told_before_it_costs() -> None:
    """Asked with the tags that it will have, and not where the groups are there already."""
    asked: list[dict[str, Any]] = []

    class Kept(Region):
        def check_right(self, action: str, **arguments: Any) -> None:
            asked.append({"action": action, **arguments})
            raise failures.make_refusal("create security group", "UnauthorizedOperation", "no", "r")

    cloud = replace(CLOUD, tag=("team=ml",))
    with pytest.raises(ProviderError, match=r"vpc-1: create security group: .*not allowed") as told:
        networks.choose(Kept(public=1, closed=3), cloud, 3, name="lab")
    assert told.value.hint.startswith("clusterctl makes two security groups there; ")
    [ask] = asked
    assert (ask["action"], ask["VpcId"]) == ("create_security_group", "vpc-1")
    assert {"Key": "team", "Value": "ml"} in ask["TagSpecifications"][0]["Tags"]
    assert networks.choose(Kept(public=1, closed=3), cloud, 2, ("public", "closed"))
    assert len(asked) == 1
