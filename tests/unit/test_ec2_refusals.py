"""What cannot be on EC2 is said in words that help. No AWS, no machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core import keys
from clusterctl.core.model import (
    CloudSpec,
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    Phase,
    Runtime,
)
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.machines.ec2 import api, preflight, refusals, schedules, spec
from clusterctl.machines.ec2 import host_keys as ec2_host_keys
from clusterctl.machines.ec2 import network as ec2_network
from clusterctl.machines.ec2.api import Api, Image, Instance, InstanceType
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.protocol import LAUNCHER
from tests.unit.deaf import deaf_port
from tests.unit.fake_ec2 import Offering, instance
from tests.unit.making import cluster, node, wish
from tests.unit.scripts import write_program
from tests.unit.tables import rows


def survey(wanted: ClusterSpec) -> preflight.Survey:
    return preflight.survey(Offering("us-east-1"), wanted, None, print)


@rows("ami, image, images, refused", "ec2_refusals.gpus_before_turing_need_a_driver_and_an_image")
def test_gpus_before_turing_need_a_driver_and_an_image(
    ami: str, image: str, images: dict[str, str], refused: bool
) -> None:
    """Neither those of ours has code for them: the first kernel would say so, for money."""
    kind = InstanceType(name="p3dn.24xlarge", vcpus=96, gpus=8, gpu_maker="NVIDIA", gpu="V100")
    wanted = replace(
        wish(NodeGroup(count=1, instance_type=kind.name), ami=ami), image=image, images=images
    )
    if not refused:
        preflight.check_types("us-east-1", wanted, {kind.name: kind})
        return
    with pytest.raises(UsageError, match=r"p3dn\.24xlarge has V100 GPUs") as caught:
        preflight.check_types("us-east-1", wanted, {kind.name: kind})
    assert "--ami" in caught.value.hint


@rows("maker, runtime, image, ami, refused", "ec2_refusals.efa_needs_libfabric_where_ranks_run")
def test_efa_needs_libfabric_where_ranks_run(
    maker: str, runtime: str, image: str, ami: str, refused: str
) -> None:
    """It would be paid for otherwise, and no rank would use it."""
    kind = InstanceType(name="p4d.24xlarge", vcpus=96, gpu_maker=maker, efa=("efa",))
    wanted = wish(NodeGroup(count=2, instance_type=kind.name), efa=True, ami=ami)
    wanted = replace(wanted, runtime=Runtime(runtime), image=image)
    if not refused:
        preflight.check_types("us-east-1", wanted, {kind.name: kind})
        return
    with pytest.raises(UsageError, match=f"--efa: the {refused} .* no libfabric") as caught:
        preflight.check_types("us-east-1", wanted, {kind.name: kind})
    assert "--image" in caught.value.hint


@pytest.mark.parametrize("hidden", [False, True])
def test_an_account_that_keeps_its_networks_closed_is_named(hidden: bool) -> None:
    """EC2 makes the network and the machines, and nobody would reach them, but through an
    endpoint."""

    class Closing(Offering):
        mode = "block-ingress"

        def find_block_mode(self) -> str:
            return self.mode

    def look(**more: Any) -> preflight.Survey:
        cloud = {"private": hidden, "instance_connect": hidden, **more}
        wanted = wish(**cloud)
        return preflight.survey(Closing("us-east-1"), wanted, None, print)

    if hidden:
        assert look().zones
        Closing.mode = "block-bidirectional"
    with pytest.raises(ProviderError, match="VPC Block Public Access is on in us-east-1") as caught:
        look()
    assert "--vpc that is excluded" in caught.value.hint
    assert ("without public addresses: --instance-connect" in caught.value.hint) != hidden
    for half in ({"private": True}, {"instance_connect": True}):
        wanted = wish(**half)
        with pytest.raises(ProviderError, match="could not be reached from the internet"):
            ec2_network.check_new_network(Closing("us-east-1"), wanted)


def test_who_may_make_no_network_is_told_before_it_costs() -> None:
    """By dry runs, with all that its parts will have; where nothing is made, nothing is asked."""
    asked: dict[str, dict[str, Any]] = {}

    class Kept(Offering):
        denied = ""

        def check_right(self, action: str, **arguments: Any) -> None:
            asked[action] = arguments
            if action == self.denied:
                raise refusals.make_refusal("create vpc", "UnauthorizedOperation", "no", "r")

    def check(there: bool = False, **cloud: Any) -> list[str]:
        asked.clear()
        wanted = wish(tag=("team=ml",), **cloud)
        ec2_network.check_new_network(
            Kept("us-east-1"), wanted, **({"there": True} if there else {})
        )
        return list(asked)

    assert check(there=True) == check(vpc="vpc-1") == check(subnet=("subnet-1",)) == []
    assert check() == ["create_vpc", "create_internet_gateway"]
    check(private=True)
    kinds = {specs[0].pop("ResourceType") for specs in _take_tags(asked)}
    assert kinds == {"vpc", "internet-gateway", "elastic-ip"}
    tags = [{"Key": api.TAG, "Value": "lab"}, {"Key": "team", "Value": "ml"}]
    assert asked == {
        "create_vpc": {"CidrBlock": ec2_network.CIDR, "TagSpecifications": [{"Tags": tags}]},
        "create_internet_gateway": {"TagSpecifications": [{"Tags": tags}]},
        "allocate_address": {"Domain": "vpc", "TagSpecifications": [{"Tags": tags}]},
    }
    Kept.denied = "create_vpc"
    with pytest.raises(ProviderError, match=r"^create vpc: .*not allowed") as caught:
        check()
    assert caught.value.hint.startswith("use a network that your administrators have made: --vpc")


def _take_tags(asked: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    return [arguments["TagSpecifications"] for arguments in asked.values()]


@pytest.mark.parametrize("spot", [True, False])
def test_a_type_that_is_not_sold_that_way_is_refused(spot: bool) -> None:
    class Particular(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            markets = ("on-demand",) if spot else ("capacity-block", "spot")
            found = super().list_instance_types(names)
            return found | {"t3.xlarge": replace(found["t3.xlarge"], markets=markets)}

    wanted = wish(NodeGroup(count=1, instance_type="t3.xlarge"), spot=spot)
    said = "as spot instances" if spot else "on demand"
    with pytest.raises(UsageError, match=f"does not sell t3.xlarge {said} in us-east-1") as no:
        preflight.survey(Particular("us-east-1"), wanted, None, print)
    assert no.value.hint


@rows("network, cards", "ec2_refusals.efa_has_an_interface_on_each_network_card")
def test_efa_has_an_interface_on_each_network_card(
    network: dict[str, Any], cards: list[str]
) -> None:
    class Described(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            return Api.list_instance_types(self, names)

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            row = {"InstanceType": "p4d.24xlarge", "VCpuInfo": {"DefaultVCpus": 96}}
            return [{**row, "NetworkInfo": network}]

    found = Described("us-east-1").list_instance_types(["p4d.24xlarge"])
    assert list(found["p4d.24xlarge"].efa) == cards


def test_several_network_cards_need_private_workers() -> None:
    """EC2: the associatePublicIPAddress parameter cannot be specified when launching with multiple
    network interfaces (karpenter-provider-aws, pull request 5666)."""

    class Large(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            cards = ("efa", "efa-only", "efa-only", "efa-only")
            found = super().list_instance_types(names)
            return found | {"t3.xlarge": replace(found["t3.xlarge"], efa=cards)}

    group = NodeGroup(count=1, instance_type="t3.xlarge")
    with pytest.raises(UsageError, match=r"--efa: t3\.xlarge has 4 network") as caught:
        preflight.survey(Large("us-east-1"), wish(group, efa=True), None, print)
    assert "--private" in caught.value.hint
    found = preflight.survey(Large("us-east-1"), wish(group, efa=True, private=True), None, print)
    assert found.nat


def unreachable() -> Node:
    return node("worker-1", "127.0.0.1", private_address="", ssh_port=1, job_port=1)


def test_who_waits_for_a_node_hears_which_one_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong network would look like a slow boot for ten minutes."""

    class Heard(Exception):
        pass

    def report(text: str) -> None:
        raise Heard(text)

    monkeypatch.setattr(ec2_host_keys, "TOLD_AFTER", 0.0)
    folder = tmp_path / "red"
    keys.ensure(folder / "ssh" / "user")
    said = "no SSH answer yet, waiting up to 600 s: worker-1: nothing listens on port 1"
    with pytest.raises(Heard, match=said):
        HostKeys(folder).settle([unreachable()], limit=600, report=report)


def test_who_may_use_no_endpoint_is_told_at_once(tmp_path: Path) -> None:
    """A wait for machines that boot would last ten minutes."""
    keys.ensure(tmp_path / "red" / "ssh" / "user")
    said = """sh -c 'echo "AccessDenied: no right ec2-instance-connect:OpenTunnel" >&2'"""
    hidden = replace(unreachable(), tunnel=said)
    with pytest.raises(NodeUnreachable, match="no right ec2-instance-connect:OpenTunnel") as caught:
        HostKeys(tmp_path / "red").settle([hidden], limit=600, report=lambda text: None)
    assert not caught.value.transient


@pytest.mark.terraform
@pytest.mark.parametrize("said", ["aws-cli/1.45.11 Python/3.11.7", "aws-cli/2.11.9", "sh: no", ""])
def test_an_aws_cli_that_opens_no_tunnels_is_seen_before_it_costs(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "aws", f"echo '{said}'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    wanted = wish(instance_connect=True)
    with pytest.raises(ProviderError, match=rf"2\.12 or newer.*{said}"):
        Ec2Provider(Offering).plan(wanted)
    write_program(tmp_path / "aws", "echo aws-cli/2.12.0")
    assert Ec2Provider(Offering).plan(wanted)


def test_a_node_that_does_not_answer_names_the_cluster_to_try_again(tmp_path: Path) -> None:
    """`up` without a name would make another cluster, on this machine."""
    folder = tmp_path / "red"
    keys.ensure(folder / "ssh" / "user")
    silent = unreachable()
    with pytest.raises(NodeUnreachable) as caught:
        HostKeys(folder).settle([silent], limit=0, report=lambda text: None)
    assert "`clusterctl up red` tries again, `clusterctl down red` removes" in caught.value.hint


def test_a_node_that_no_packet_reaches_may_be_behind_a_firewall_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Companies and VPNs let no SSH out, or from another address: the cluster's name lets the
    command line look at that."""
    monkeypatch.setattr(ec2_host_keys, "ATTEMPT", 0.5)
    keys.ensure(tmp_path / "red" / "ssh" / "user")
    with deaf_port() as port:
        deaf = node("launcher", address="127.0.0.1", ssh_port=port)
        with pytest.raises(NodeUnreachable, match="no answer within") as caught:
            HostKeys(tmp_path / "red").settle([deaf], limit=0, report=lambda text: None)
    assert caught.value.cluster == "red"
    assert "allows outgoing SSH (port 22)" in caught.value.hint
    assert "Where SSH is closed" in caught.value.hint, "what to do if it does not"


def test_a_node_that_refuses_names_the_cluster_to_go_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is this machine, where `sudo` is a script that refuses: nothing else is on PATH."""
    script = write_program(tmp_path / "bin" / "sudo", "echo no sudo >&2\nexit 1")
    monkeypatch.setenv("PATH", str(script.parent))
    host_keys = HostKeys(tmp_path / "red")
    host_keys.make_boot_keys(["worker-1"], living=())
    here = node("worker-1", address="", root=str(tmp_path))
    with pytest.raises(NodeUnreachable, match="worker-1: exit 1: no sudo") as caught:
        host_keys.settle([here], limit=0, report=lambda text: None)
    assert "`clusterctl up red` continues" in caught.value.hint


@rows("zones, wrong", "ec2_refusals.a_zone_that_offers_nothing_is_named")
def test_a_zone_that_offers_nothing_is_named(zones: tuple[str, ...], wrong: str) -> None:
    with pytest.raises(UsageError, match=f"^--zones {wrong}: ") as caught:
        survey(wish(zones=zones))
    assert "zones that do: us-east-1a, us-east-1b" in caught.value.hint


@pytest.mark.parametrize(
    "ask",
    [
        lambda current, folder: preflight.survey(
            Offering("us-east-1"), current.spec, current, print
        ),
        lambda current, folder: Ec2Provider(Offering).list_things(current, folder),
        lambda current, folder: Ec2Provider(Offering).destroy(current, folder, print),
        lambda current, folder: Ec2Provider(Offering).describe(current, folder),
    ],
    ids=["up", "billed", "down", "status"],
)
def test_credentials_of_another_account_find_nothing_that_counts(
    ask: Callable[[Cluster, Path], object], tmp_path: Path
) -> None:
    """`down` would take nothing found for nothing left."""
    current = Cluster(
        id="lab-1",
        spec=wish(),
        phase=Phase.READY,
        created=0.0,
        account="210987654321",
    )
    with pytest.raises(ProviderError, match="in the AWS account 210987654321, and") as caught:
        ask(current, tmp_path)
    assert "AWS_PROFILE" in caught.value.hint


def test_a_mistyped_family_is_told_before_aws_is_asked() -> None:
    with pytest.raises(UsageError, match="unknown GPU family 'g4d'") as caught:
        Ec2Provider(lambda region: pytest.fail("asked AWS")).plan(
            wish(NodeGroup(count=2, family="g4d"))
        )
    assert caught.value.hint == "did you mean 'g4dn'?"


def test_a_launcher_is_a_small_machine() -> None:
    wanted = wish(launcher_type="t3.micr")
    with pytest.raises(UsageError) as caught:
        survey(wanted)
    assert "--region" in caught.value.hint


class Busy(Offering):
    """What runs there takes 4 vCPUs of the on-demand quota, and 4 of the spot quota."""

    limit = 10.0

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return [instance("", type="t3.xlarge", spot=number > 1) for number in range(4)]

    def find_quota(self, code: str, service: str = "ec2") -> float:
        return self.limit


@rows("workers, spot, refused", "ec2_refusals.what_runs_already_counts_towards_the_quota")
def test_what_runs_already_counts_towards_the_quota(
    workers: int, spot: bool, refused: bool
) -> None:
    """Two vCPUs each; the launcher is never a spot instance."""
    wanted = wish(NodeGroup(count=workers, family="cpu"), spot=spot)

    def look() -> object:
        return preflight.survey(Busy("us-east-1"), wanted, None, print)

    if not refused:
        look()
        return
    with pytest.raises(ProviderError, match=r"is 10 vCPUs, of which 4 are in use") as caught:
        look()
    assert "request-service-quota-increase" in caught.value.hint
    assert "--desired-value 12" in caught.value.hint
    fits = "`clusterctl up lab --cpu c7i.xlarge:2` fits now; "
    assert spot or caught.value.hint.startswith(fits)


@rows("standard, gpus, most, spot, command, fits", "ec2_refusals.the_largest_cluster_that_fits")
def test_the_largest_cluster_that_fits(
    standard: int, gpus: int, most: int, spot: bool, command: str, fits: int
) -> None:
    """Launcher and workers may count towards the same quota, or not; `most`: how many are asked
    for."""
    room = {"L-1216C47A": standard, "L-DB2E81BA": gpus}
    kinds = {"g4dn.xlarge": 4, "c7i.xlarge": 4, "c7i.large": 2}
    workers = [(f"{kind}:{{}}", InstanceType(name=kind, vcpus=n)) for kind, n in kinds.items()]
    launcher = InstanceType(name="t3.micro", vcpus=2)
    found = preflight.choose_fitting(launcher, workers, most, room, spot=spot)
    assert found == (command, fits)


@pytest.mark.parametrize("spot", [True, False])
def test_a_fallback_from_nothing_is_said_before_it_costs(spot: bool) -> None:
    told: list[str] = []
    wanted = wish(spot=spot, spot_fallback=True)
    preflight.survey(Offering("us-east-1"), wanted, None, told.append)
    line = "--spot-fallback does nothing without --spot: the workers are on-demand"
    assert told == ([] if spot else [line])


@pytest.mark.parametrize(("family", "kind"), [("g4dn", "t3.xlarge"), ("g5", "g5g.xlarge")])
def test_a_family_and_a_type_that_contradict_each_other_are_refused(family: str, kind: str) -> None:
    groups = (NodeGroup(count=1, family=family, instance_type=kind),)
    with pytest.raises(UsageError, match=f"--gpu {family} and --instance-type {kind} contradict"):
        spec.check_spec(wish(*groups))
    fits = (replace(groups[0], instance_type=f"{family}.2xlarge"),)
    spec.check_spec(wish(*fits))


# -------------------------------------------------------------------------------------------------
# Subnets of the user's own for workers without public addresses.


CLOUD = CloudSpec(region="us-east-1", vpc="vpc-1", private=True)


class Region(Api):
    """A VPC with these subnets and their free addresses: public ones, and closed ones with a NAT
    gateway. `more`: what else AWS says of some."""

    def __init__(self, more: Mapping[str, Mapping[str, Any]] | None = None, **free: int) -> None:
        super().__init__("us-east-1")
        self.free = free
        self.more = more or {}

    def find_tenancy(self, vpc: str) -> str:
        return "default"

    def check_right(self, action: str, **arguments: Any) -> None:
        """Everything is allowed."""

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        [asked] = arguments["Filters"]
        assert (
            key == {"describe_subnets": "Subnets", "describe_route_tables": "RouteTables"}[action]
        )
        if action == "describe_subnets":
            found = [
                {
                    "SubnetId": id,
                    "VpcId": "vpc-1",
                    "AvailabilityZone": "us-east-1a",
                    "AvailableIpAddressCount": free,
                    **self.more.get(id, {}),
                }
                for id, free in self.free.items()
            ]
            name = {"subnet-id": "SubnetId", "vpc-id": "VpcId"}[asked["Name"]]
            return [one for one in found if one[name] in asked["Values"]]
        assert asked["Name"] == "vpc-id"
        ways: dict[str, dict[str, str]] = {
            "public": {"GatewayId": "igw-1"},
            "closed": {"NatGatewayId": "nat-1"},
            "lost": {"EgressOnlyInternetGatewayId": "eigw-1"},
        }
        elsewhere = {
            "DestinationCidrBlock": "10.0.0.0/8",
            "State": "active",
            "NatGatewayId": "nat-1",
        }
        way_out = {"DestinationCidrBlock": "0.0.0.0/0", "State": "active"}
        gone = {
            "DestinationCidrBlock": "0.0.0.0/0",
            "State": "blackhole",
            "NatGatewayId": "nat-0",
        }
        return [
            {"Routes": []},
            {"Associations": [{"SubnetId": "bare"}]},
            {"Associations": [{"Main": True}], "Routes": [way_out | ways["public"]]},
            *(
                {
                    "Associations": [{"SubnetId": id}],
                    "Routes": [
                        elsewhere,
                        gone,
                        way_out | ways[id.partition("_")[0]],
                    ],
                }
                for id in self.free
                if id not in ("bare", "main")
            ),
        ]


def choose(machines: int, *there: str, **free: int) -> dict[str, ZoneSubnets]:
    return ec2_network.choose_network(Region(**free), CLOUD, machines, there, name="lab")


def test_more_private_workers_go_where_the_others_are() -> None:
    """Terraform would have to replace those that run."""
    there: Collection[str] = ("public_2", "closed_2")
    full = {"public_1": 9, "public_2": 0, "closed_1": 9, "closed_2": 2}
    assert choose(2, *there, **full)["us-east-1a"] == ZoneSubnets("closed_2", "public_2", "nat-1")
    with pytest.raises(UsageError, match="closed_2 has 2 free addresses, and the cluster needs 3"):
        choose(3, *there, **full)


OTHERS: dict[str, dict[str, Any]] = {
    "public_far": {"VpcId": "vpc-2"},
    "public_theirs": {"Tags": [{"Key": api.TAG, "Value": "lab-2"}]},
    "public_shut": {"BlockPublicAccessStates": {"InternetGatewayBlockMode": "block-ingress"}},
    "closed_shut": {"BlockPublicAccessStates": {"InternetGatewayBlockMode": "block-ingress"}},
    "closed_off": {"BlockPublicAccessStates": {"InternetGatewayBlockMode": "block-bidirectional"}},
    "public_a": {"AvailabilityZone": "us-east-1b"},
}


def named(*subnet: str, **cloud: Any) -> list[str]:
    """The zones of these subnets, of all that there are."""
    region = Region(
        OTHERS,
        **dict.fromkeys(("public", "public_b", "closed", "lost", "bare", "main", *OTHERS), 9),
    )
    return list(
        ec2_network.choose_network(region, replace(CLOUD, subnet=subnet, **cloud), 2, name="lab")
    )


OPEN: dict[str, Any] = {"private": False, "vpc": ""}
HIDDEN: dict[str, Any] = {"instance_connect": True}


@rows("subnet, cloud, said, hint", "ec2_refusals.a_subnet_that_cannot_hold_the_cluster_is_refused")
def test_a_subnet_that_cannot_hold_the_cluster_is_refused(
    subnet: list[str], cloud: str, said: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        named(*subnet, **{"open": OPEN, "hidden": HIDDEN, "wrong": {"vpc": "vpc-9"}}.get(cloud, {}))
    assert said in caught.value.message
    assert hint in caught.value.hint


@rows("cloud, said, hint", "ec2_refusals.a_vpc_that_cannot_hold_them_is_told_what_they_need")
def test_a_vpc_that_cannot_hold_them_is_told_what_they_need(
    cloud: dict[str, bool], said: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        ec2_network.choose_network(Region(lost=9, bare=9), replace(CLOUD, **cloud), 2, name="lab")
    assert caught.value.message.startswith(said)
    assert caught.value.hint.startswith(hint)


def test_a_subnet_is_used_where_its_machines_reach_the_internet() -> None:
    assert named("closed_shut", **HIDDEN) == ["us-east-1a"], "nobody has to get in"
    assert named("main", **OPEN) == ["us-east-1a"], "the VPC's main table is for those without one"
    assert named("public_b", "public_a", **OPEN) == ["us-east-1a", "us-east-1b"]
    region = Region(OTHERS, public_a=9, public_b=9, public_theirs=9)
    whole = replace(CLOUD, private=False)
    assert list(ec2_network.choose_network(region, whole, 2, name="lab")) == [
        "us-east-1a",
        "us-east-1b",
    ]
    first = list(ec2_network.choose_network(region, whole, 1, ("public_a",), name="lab"))
    assert first == ["us-east-1b", "us-east-1a"], "those of machines that run come first"


def test_who_may_make_no_security_group_is_told_before_it_costs() -> None:
    """Asked with the tags that it will have, and not where the groups are there already."""
    asked: list[dict[str, Any]] = []

    class Kept(Region):
        def check_right(self, action: str, **arguments: Any) -> None:
            asked.append({"action": action, **arguments})
            raise refusals.make_refusal("create security group", "UnauthorizedOperation", "no", "r")

    cloud = replace(CLOUD, tag=("team=ml",))
    with pytest.raises(ProviderError, match=r"create security group: .*not allowed") as told:
        ec2_network.choose_network(Kept(public=1, closed=3), cloud, 3, name="lab")
    assert told.value.hint.startswith("clusterctl makes two security groups there; ")
    [ask] = asked
    assert ask.pop("Description"), "AWS wants one"
    tags = [{"Key": api.TAG, "Value": "lab"}, {"Key": "team", "Value": "ml"}]
    assert ask == {
        "action": "create_security_group",
        "GroupName": "clusterctl-lab",
        "VpcId": "vpc-1",
        "TagSpecifications": [{"ResourceType": "security-group", "Tags": tags}],
    }
    assert ec2_network.choose_network(
        Kept(public=1, closed=3), cloud, 2, ("public", "closed"), name="lab"
    )
    assert len(asked) == 1


def test_a_network_of_dedicated_machines_is_refused() -> None:
    """They cost more than the plan would say. What runs there is left alone."""

    class Dedicated(Region):
        def find_tenancy(self, vpc: str) -> str:
            return {"vpc-1": "dedicated"}[vpc]

    with pytest.raises(UsageError, match="vpc-1 has the tenancy 'dedicated'") as caught:
        ec2_network.choose_network(Dedicated(public=1, closed=3), CLOUD, 3, name="lab")
    assert "aws ec2 modify-vpc-tenancy --vpc-id vpc-1" in caught.value.hint
    there = ("public", "closed")
    assert ec2_network.choose_network(Dedicated(public=1, closed=3), CLOUD, 0, there, name="lab")


# -------------------------------------------------------------------------------------------------
# --tag: what an organization demands of all that is made, before it costs money.


def test_keys_and_values_are_split_at_the_first_equals_sign() -> None:
    assert api.parse_tags(["team=ml", "project=a=b", "empty="]) == {
        "team": "ml",
        "project": "a=b",
        "empty": "",
    }


@rows("text, said", "ec2_tags.what_is_no_tag_is_refused_before_aws_is_asked")
def test_what_is_no_tag_is_refused_before_aws_is_asked(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec.resolve_rules(wish(tag=(text,)), None)


def test_the_dry_runs_have_them() -> None:
    """An organization's policy that demands them denies what is made otherwise."""
    asked: list[tuple[str, Any]] = []

    class Asking(Offering):
        check_launch_right = Api.check_launch_right
        check_right = Api.check_right

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            assert arguments["DryRun"] is True
            asked.append((action, arguments["TagSpecifications"]))
            return {}

    preflight.survey(Asking("us-east-1"), wish(tag=("team=ml",)), None, print)
    launched = {"instance", "volume", "network-interface"}  # all that a launch makes
    made = {
        "run_instances": launched,
        "create_vpc": {"vpc"},
        "create_internet_gateway": {"internet-gateway"},
    }
    assert {action for action, _ in asked} == set(made)
    for action, specifications in asked:
        assert {one["ResourceType"] for one in specifications} == made[action]
        for one in specifications:
            assert {"Key": "team", "Value": "ml"} in one["Tags"]
            assert {"Key": "clusterctl:cluster", "Value": "lab"} in one["Tags"]
    asked.clear()

    class There(Asking):
        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return [instance("launcher")]

    begun = replace(cluster(), spec=wish(tag=("team=ml",)), nodes=())
    preflight.survey(There("us-east-1"), wish(tag=("team=ml",)), begun, print)
    assert {action for action, _ in asked} == {"run_instances"}, "it has its network"


def test_schedules_have_them() -> None:
    """EventBridge Scheduler takes no empty values, and would refuse them all."""
    made: dict[str, Any] = {}

    class Scheduling(Api):
        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            made.update({action: arguments})
            return {}

    schedules.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml", "empty": ""})
    assert made["create_schedule_group"]["Tags"] == [
        {"Key": "team", "Value": "ml"},
        {"Key": "clusterctl:cluster", "Value": "lab-1"},
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_a_group_of_schedules_that_is_there_gets_them(refused: bool) -> None:
    """A further `up` may give others. No deadline depends on them."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Scheduling(Api):
        def find_account(self) -> str:
            return "123456789012"

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            asked.append((action, arguments))
            if action == "create_schedule_group":
                raise refusals.make_refusal(action, "ConflictException", "exists", "us-east-1")
            if action == "tag_resource" and refused:
                raise refusals.make_refusal(action, "AccessDeniedException", "no", "us-east-1")
            return {}

    schedules.prepare(Scheduling("us-east-1"), "lab-1", {"team": "ml"})
    action, arguments = asked[-1]
    assert action == "tag_resource"
    arn = "arn:aws:scheduler:us-east-1:123456789012:schedule-group/clusterctl-lab-1"
    assert arguments == {"ResourceArn": arn, "Tags": [{"Key": "team", "Value": "ml"}]}


def test_a_tag_policy_that_refuses_a_value_is_named() -> None:
    text = "The tag policy does not allow the specified value for the following tag key: 'team'."
    error = refusals.make_refusal("run instances", "TagPolicyViolation", text, "us-east-1")
    assert "tag policy" in error.message
    assert "'team'" in error.message
    assert "--tag" in error.hint


# -------------------------------------------------------------------------------------------------
# --ami, before it costs money.


class Pictured(Offering):
    """A region with Ubuntu, and an image of somebody's."""

    def __init__(self, **row: Any) -> None:
        super().__init__("us-east-1")
        self._row = row

    def read_image(self, id: str) -> Image | None:
        return Api.read_image(self, id)

    def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
        assert how == {"Filters": [{"Name": "image-id", "Values": ["ami-2"]}]}
        return [{"ImageId": "ami-2", "Architecture": "x86_64", "Name": "", **self._row}]


def look(**row: Any) -> preflight.Survey:
    wanted = wish(ami="ami-2")
    return preflight.survey(Pictured(**row), wanted, None, print)


@rows("row, system", "ec2_refusals.an_image_that_is_not_ubuntu_is_refused")
def test_an_image_that_is_not_ubuntu_is_refused(row: dict[str, str], system: str) -> None:
    """Nobody could log in as `ubuntu`, and the machines would be paid for until that is noticed."""
    with pytest.raises(UsageError, match=f"--ami ami-2: it runs {system}") as caught:
        look(**{"PlatformDetails": "Linux/UNIX", **row})
    assert "Ubuntu" in caught.value.hint


@pytest.mark.parametrize("ami", ["", "ami-2"])
def test_an_image_that_an_account_does_not_allow_is_as_if_it_were_not_there(ami: str) -> None:
    """AWS shows none of those then, neither by name nor by id."""

    class Allowing(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            return Image(id="ami-1") if ami else None

        def read_image(self, id: str) -> Image | None:
            return None

    wanted = wish(ami=ami)
    with pytest.raises((ProviderError, UsageError), match="no machine image") as caught:
        preflight.survey(Allowing("us-east-1"), wanted, None, print)
    assert "aws ec2 get-allowed-images-settings" in caught.value.hint


@rows("row", "ec2_refusals.one_that_may_be_is_taken")
def test_one_that_may_be_is_taken(row: dict[str, str]) -> None:
    found = look(**{"PlatformDetails": "Linux/UNIX", "OwnerId": "210987654321", **row})
    assert "ami-2" in {image.id for image in found.amis.values()}


def test_the_launcher_has_no_other_image_than_ubuntu() -> None:
    """Whatever --ami."""

    class Without(Offering):
        def find_image(self, owner: str, name: str) -> Image | None:
            return None

    launcher = spec.PlannedMachine(name=LAUNCHER, instance_type="t3.micro", image=LAUNCHER, disk=30)
    wanted = wish(ami="ami-2")
    with pytest.raises(ProviderError, match="of 099720109477 is in eu-west-1") as no:
        preflight.choose_image(Without("eu-west-1"), wanted, [launcher])
    assert no.value.hint.startswith("choose another --region; images")
    assert "--ami" not in no.value.hint
