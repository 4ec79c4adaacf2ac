"""File systems of the user's own: what `up --shared ID` finds out before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from clusterctl.core.model import CloudSpec, ClusterSpec, NodeGroup
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import network, preflight, refusals
from clusterctl.machines.ec2.preflight import Survey
from tests.unit.fake_ec2 import Offering
from tests.unit.tables import rows

EFS, FSX = "fs-0123456789abcdef0", "fs-0aaaaaaaaaaaaaaaa"
OPEN = {
    "IpProtocol": "tcp",
    "FromPort": 2049,
    "ToPort": 2049,
    "IpRanges": [{"CidrIp": "10.0.0.0/16"}],
}


QUESTIONS = {
    "describe_vpcs": "Vpcs",
    "describe_subnets": "Subnets",
    "describe_route_tables": "RouteTables",
    "describe_network_interfaces": "NetworkInterfaces",
    "describe_security_groups": "SecurityGroups",
    "describe_mount_targets": "MountTargets",
    "describe_file_systems": "FileSystems",
}
FILTERS = {
    "Vpcs": {"vpc-id"},
    "Subnets": {"subnet-id", "vpc-id"},
    "RouteTables": {"vpc-id"},
    "NetworkInterfaces": {"network-interface-id"},
    "SecurityGroups": {"group-id"},
    "MountTargets": set[str](),
    "FileSystems": set[str](),
}


def rule(**changes: Any) -> list[dict[str, Any]]:
    return [{**OPEN, **changes}]


@dataclass
class Account:
    """A VPC with a public subnet in each of two zones. EFS has mount targets in `targets`, by zone;
    FSx has `fsx`; both are behind a group with these `rules`."""

    targets: tuple[str, ...] = ("us-east-1a", "us-east-1b")
    state: str = "available"
    fsx: str = ""
    rules: list[dict[str, Any]] = field(default_factory=rule)
    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b")
    denied: tuple[str, ...] = ()
    """Services and actions that refuse to answer."""
    groups: tuple[str, ...] = ("sg-1",)
    """Of each network interface."""
    known: bool = True
    """FSx says which interfaces a file system has."""


class Region(Offering):
    def __init__(self, account: Account) -> None:
        super().__init__("us-east-1")
        self._ask_account = account
        self.asked: list[str] = []

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        self.asked.append(f"{service}:{action}")
        asked = {one["Name"] for one in arguments.get("Filters", ())}
        assert (key, asked <= FILTERS[key]) == (QUESTIONS.get(action), True), "AWS knows no other"
        assert all(one["Values"] for one in arguments.get("Filters", ())), "it refuses an empty one"
        if {service, action} & {*self._ask_account.denied}:
            code, text = "AccessDeniedException", "User: me is not authorized to perform: that"
            raise refusals.make_refusal(action.replace("_", " "), code, text, self.region)
        found = getattr(self, f"_{service}")(key, arguments)
        values = {
            value
            for one in arguments.get("Filters", ())
            if one["Name"] != "vpc-id"
            for value in one["Values"]
        }
        ids = [
            name
            for name in ("SubnetId", "GroupId", "NetworkInterfaceId")
            if found and name in found[0]
        ]
        return [item for item in found if not values or not ids or item[ids[0]] in values]

    def _ec2(self, key: str, arguments: Any) -> list[Any]:
        zones = enumerate(self._ask_account.zones)
        way = {"DestinationCidrBlock": "0.0.0.0/0", "State": "active", "GatewayId": "igw-1"}
        return {
            "Subnets": [
                {
                    "SubnetId": f"subnet-0000000{zone[-1]}",
                    "VpcId": "vpc-00000001",
                    "CidrBlock": f"10.0.{number}.0/24",
                    "AvailabilityZone": zone,
                    "AvailableIpAddressCount": 99,
                }
                for number, zone in zones
            ],
            "Vpcs": [{"VpcId": "vpc-00000001", "InstanceTenancy": "default"}],
            "RouteTables": [{"Associations": [{"Main": True}], "Routes": [way]}],
            "NetworkInterfaces": [
                {
                    "NetworkInterfaceId": f"eni-0000000{letter}",
                    "Groups": [{"GroupId": name} for name in self._ask_account.groups],
                }
                for letter in "abx"
            ],
            "SecurityGroups": [
                {"GroupId": "sg-2"},
                {"GroupId": "sg-1", "IpPermissions": self._ask_account.rules},
            ],
        }.get(key, [])

    def _efs(self, key: str, arguments: Any) -> list[Any]:
        if arguments["FileSystemId"] != EFS:
            text = "File system 'fs-1' does not exist."
            raise refusals.make_refusal(
                "describe file systems", "FileSystemNotFound", text, self.region
            )
        return [
            {
                "LifeCycleState": self._ask_account.state,
                "VpcId": "vpc-00000001",
                "AvailabilityZoneName": zone,
                "IpAddress": f"10.0.0.{ord(zone[-1])}",
                "NetworkInterfaceId": f"eni-0000000{zone[-1]}",
            }
            for zone in self._ask_account.targets
        ]

    def _fsx(self, key: str, arguments: Any) -> list[Any]:
        if arguments["FileSystemIds"] != [FSX] or not self._ask_account.fsx:
            text = "File system 'fs-1' does not exist."
            raise refusals.make_refusal(
                "describe file systems", "FileSystemNotFound", text, self.region
            )
        return [
            {
                "FileSystemType": self._ask_account.fsx,
                "Lifecycle": self._ask_account.state.upper(),
                "VpcId": "vpc-00000001",
                "DNSName": f"{FSX}.fsx.example",
                **({"NetworkInterfaceIds": ["eni-0000000x"]} if self._ask_account.known else {}),
            }
        ]


def survey(account: Account, wanted: str = EFS, present: Any = None, **cloud: Any) -> Survey:
    groups = (NodeGroup(count=1, family="cpu"),)
    asked = CloudSpec(region="us-east-1", file_system=wanted, **cloud)
    spec = ClusterSpec(name="lab", provider="ec2", groups=groups, shared=True, cloud=asked)
    return preflight.survey(Region(account), spec, present or {}, "", lambda line: None)


def test_the_cluster_goes_where_the_file_system_is() -> None:
    """Without --vpc, into its network; the nodes of a zone mount what that zone has."""
    found = survey(Account())
    assert {zone: place.workers for zone, place in found.subnets.items()} == {
        "us-east-1a": "subnet-0000000a",
        "us-east-1b": "subnet-0000000b",
    }
    theirs = found.file_system
    assert theirs
    assert [theirs.name_source(zone) for zone in found.zones] == ["10.0.0.97:/", "10.0.0.98:/"]
    team = survey(Account(), f"{EFS}:/team").file_system
    assert team
    assert (team.id, team.name_source("us-east-1a")) == (EFS, "10.0.0.97:/team")
    assert theirs.describe("us-east-1b") == (
        f"shared folder: /shared is 10.0.0.98:/ of EFS {EFS}, over NFS without"
        " encryption; its cost is not included, and `down` leaves it as it is"
    )
    spec = ClusterSpec(name="lab", provider="ec2", groups=(NodeGroup(count=1),))
    assert network.fill_in_network(spec, theirs).cloud.vpc == "vpc-00000001", "as it is on record"
    mine = network.fill_in_network(spec, None).cloud
    assert mine.vpc == "", "a cluster without one makes its own network"
    for own in (CloudSpec(vpc="vpc-7"), CloudSpec(subnet=("subnet-7",))):
        assert network.fill_in_network(replace(spec, cloud=own), theirs).cloud == own


def test_a_zone_without_a_mount_target_is_no_place_for_the_cluster() -> None:
    assert survey(Account(targets=("us-east-1b",))).zones == ("us-east-1b",)
    with pytest.raises(UsageError, match="has mount targets in us-east-1c") as told:
        survey(Account(targets=("us-east-1c",)))
    assert "can be in us-east-1a, us-east-1b only" in told.value.message
    assert "create-mount-target" in told.value.hint


@pytest.mark.parametrize(
    ("account", "wanted", "said"),
    [
        (Account(), "fs-0bbbbbbbbbbbbbbbb", "no file system fs-0bbbbbbbbbbbbbbbb in us-east-1"),
        (Account(targets=()), EFS, f"{EFS} has no available mount target"),
        (Account(state="creating"), EFS, f"{EFS} has no available mount target"),
        (Account(fsx="OPENZFS", state="DELETING"), FSX, "it is FSx for Openzfs, deleting"),
        (Account(fsx="LUSTRE"), FSX, f"{FSX} cannot be mounted over NFS: it is FSx for Lustre"),
        (Account(fsx="WINDOWS"), FSX, "it is FSx for Windows, available"),
        (Account(fsx="ONTAP"), FSX, "it is FSx for Ontap, available"),
    ],
)
def test_what_cannot_be_mounted_is_refused(account: Account, wanted: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        survey(account, wanted)
    assert told.value.hint


@pytest.mark.parametrize(("folder", "path"), [("", "/fsx"), (":/fsx/team", "/fsx/team")])
def test_fsx_with_nfs_serves_all_zones(folder: str, path: str) -> None:
    found = survey(Account(fsx="OPENZFS", state="MISCONFIGURED"), f"{FSX}{folder}")
    assert found.file_system
    assert found.file_system.describe("us-east-1a").startswith(
        f"shared folder: /shared is {FSX}.fsx.example:{path} of FSx for OpenZFS {FSX}, over NFS"
    )
    assert found.zones == ("us-east-1a", "us-east-1b")
    sources = {found.file_system.name_source(zone) for zone in found.zones}
    assert sources == {f"{FSX}.fsx.example:{path}"}


def test_who_may_not_ask_hears_which_right_is_missing() -> None:
    """Of FSx nobody has to know whose file system is one of EFS."""
    with pytest.raises(ProviderError, match="not allowed to do that") as told:
        survey(Account(denied=("efs",)))
    assert "infra/ec2/policy.json" in told.value.hint
    assert survey(Account(denied=("fsx",))).file_system
    shut = Account(rules=[], denied=("describe_security_groups",))
    assert survey(shut).file_system, "that shows when it is mounted"
    assert survey(Account(fsx="OPENZFS", rules=[], known=False), FSX).file_system


@rows("rules, open_zones", "ec2_file_systems.a_security_group_that_keeps_the_nodes_out_is_named")
def test_a_security_group_that_keeps_the_nodes_out_is_named(
    rules: list[dict[str, Any]], open_zones: str
) -> None:
    """The default group of a VPC lets in itself alone; clusterctl changes no group of theirs."""
    account = Account(rules=rules, groups=("sg-2", "sg-1"))
    if open_zones:
        assert survey(account).zones == tuple(f"us-east-1{letter}" for letter in open_zones)
        return
    with pytest.raises(UsageError, match=r"in us-east-1a \(sg-1, sg-2\) do not allow") as told:
        survey(account)
    assert told.value.message.startswith(f"the security groups of {EFS} in ")
    assert told.value.message.endswith(" NFS (TCP 2049) from 10.0.0.0/24")
    assert "--group-id sg-1 --protocol tcp --port 2049 --cidr 10.0.0.0/24`" in told.value.hint
    assert "other --zones" in told.value.hint
    running = {"launcher": "t3.micro", "worker-1": "c7i.xlarge"}
    assert survey(account, present=running).zones, "their own groups may be let in by now"
    with pytest.raises(UsageError, match="do not allow NFS"):
        survey(replace(account, fsx="OPENZFS"), FSX)
    with pytest.raises(UsageError, match=r"in us-east-1a \(none\) do not allow") as told:
        survey(replace(account, groups=()))
    assert "--group-id sg-… --protocol" in told.value.hint


def test_a_network_that_is_named_has_to_be_that_of_the_file_system() -> None:
    found = network.find_file_system(Region(Account()), EFS)
    other = network.FileSystem(wanted=EFS, kind="EFS", vpc="vpc-00000002", targets=found.targets)
    places = survey(Account(), vpc="vpc-00000001").subnets
    with pytest.raises(
        UsageError, match="can be mounted in vpc-00000002, and subnet-0000000a is in vpc-00000001"
    ) as told:
        network.keep_reachable(Region(Account()), other, ("us-east-1a",), places, there=False)
    assert told.value.hint.startswith("leave --vpc and --subnet out")


@rows(
    "service, action, key, words",
    "ec2_file_systems.the_answers_in_these_tests_are_as_aws_writes_them",
)
def test_the_answers_in_these_tests_are_as_aws_writes_them(
    service: str, action: str, key: str, words: dict[str, Any]
) -> None:
    """By the SDK's own model: there is no simulator of FSx."""
    import boto3
    from botocore.stub import Stubber

    answer = Region(Account(fsx="OPENZFS")).list_all(action, key, service, **words)
    needed = {"FileSystemId": EFS, "MountTargetId": "fsmt-00000001", "SubnetId": "subnet-00000001"}
    answer = [{**needed, **item} for item in answer] if service == "efs" else answer
    client = boto3.client(service, region_name="us-east-1")
    Stubber(client).add_response(action, {key: answer})


def test_nothing_is_asked_about_file_systems_without_one() -> None:
    region = Region(Account())
    spec = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=1, family="cpu"),),
        cloud=CloudSpec(region="us-east-1"),
    )
    preflight.survey(region, spec, {}, "", lambda line: None)
    assert not [one for one in region.asked if one.startswith(("efs", "fsx"))]
