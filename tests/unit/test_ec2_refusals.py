"""What cannot be on EC2 is said in words that help. No AWS, no machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core import keys
from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, Node, NodeGroup, Phase, Role
from clusterctl.errors import NodeUnreachable, ProviderError, UsageError
from clusterctl.machines.ec2 import host_keys as ec2_host_keys
from clusterctl.machines.ec2 import preflight, spec
from clusterctl.machines.ec2.api import Api, Instance, InstanceType
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit.deaf import deaf_port
from tests.unit.fake_ec2 import Offering, instance
from tests.unit.making import node
from tests.unit.tables import rows


def wanted(group: NodeGroup, **cloud: Any) -> ClusterSpec:
    return ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(group,),
        cloud=CloudSpec(region="us-east-1", **cloud),
    )


def survey(wish: ClusterSpec) -> preflight.Survey:
    return preflight.survey(Offering("us-east-1"), wish, {}, "", print)


@rows("ami, image, images, refused", "ec2_refusals.gpus_before_turing_need_a_driver_and_an_image")
def test_gpus_before_turing_need_a_driver_and_an_image(
    ami: str, image: str, images: dict[str, str], refused: bool
) -> None:
    """Neither those of ours has code for them: the first kernel would say so, for money."""
    kind = InstanceType(name="p3dn.24xlarge", vcpus=96, gpus=8, gpu_maker="NVIDIA", gpu="V100")
    wish = replace(
        wanted(NodeGroup(count=1, instance_type=kind.name), ami=ami), image=image, images=images
    )
    if not refused:
        preflight.check_types("us-east-1", wish, {kind.name: kind})
        return
    with pytest.raises(UsageError, match=r"p3dn\.24xlarge has V100 GPUs") as caught:
        preflight.check_types("us-east-1", wish, {kind.name: kind})
    assert "--ami" in caught.value.hint


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
        wish = wanted(NodeGroup(count=1, family="cpu"), **cloud)
        return preflight.survey(Closing("us-east-1"), wish, {}, "", print)

    if hidden:
        assert look().zones
        Closing.mode = "block-bidirectional"
    with pytest.raises(ProviderError, match="VPC Block Public Access is on in us-east-1") as caught:
        look()
    assert "--vpc that is excluded" in caught.value.hint


def test_a_subnet_that_the_account_closes_is_refused() -> None:
    """It has its route to the internet gateway, and nothing passes there."""

    class Closed(Offering):
        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            out = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}
            subnet = {"SubnetId": "subnet-1", "VpcId": "vpc-1", "AvailabilityZone": "us-east-1a"}
            closed = {"InternetGatewayBlockMode": "block-bidirectional"}
            subnet |= {"AvailableIpAddressCount": "200", "BlockPublicAccessStates": closed}
            links = [{"Main": True}]
            rows = {
                "Vpcs": [{"VpcId": "vpc-1", "InstanceTenancy": "default"}],
                "Subnets": [subnet],
                "RouteTables": [{"Associations": links, "Routes": [out]}],
            }
            return rows[key]

    wish = wanted(NodeGroup(count=1, family="cpu"), subnet=("subnet-1",))
    said = r"subnet-1 is closed to the internet by VPC Block .*\(block-bidirectional\)"
    with pytest.raises(UsageError, match=said):
        preflight.survey(Closed("us-east-1"), wish, {}, "", print)


@pytest.mark.parametrize("spot", [True, False])
def test_a_type_that_is_not_sold_that_way_is_refused(spot: bool) -> None:
    class Particular(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            markets = ("on-demand",) if spot else ("capacity-block", "spot")
            found = super().list_instance_types(names)
            return found | {"t3.xlarge": replace(found["t3.xlarge"], markets=markets)}

    wish = wanted(NodeGroup(count=1, instance_type="t3.xlarge"), spot=spot)
    said = "as spot instances" if spot else "on demand"
    with pytest.raises(UsageError, match=f"does not sell t3.xlarge {said} in us-east-1") as no:
        preflight.survey(Particular("us-east-1"), wish, {}, "", print)
    assert no.value.hint


CARD = {"InterfaceTypes": ["interface", "efa", "efa-only"]}


@pytest.mark.parametrize(
    ("network", "cards"),
    [
        ({"EfaSupported": False, "NetworkCards": [{"NetworkCardIndex": 0}]}, ()),
        ({"EfaSupported": True, "NetworkCards": [{"NetworkCardIndex": 0}]}, ("efa",)),
        # A card whose kinds are not said; and the order of an answer means nothing.
        (
            {
                "EfaSupported": True,
                "EfaInfo": {"MaximumEfaInterfaces": 2},
                "NetworkCards": [{"NetworkCardIndex": 1}, {"NetworkCardIndex": 0}],
            },
            ("efa", "efa-only"),
        ),
        # p6-b300: the first card of 17 has no EFA.
        (
            {
                "EfaSupported": True,
                "EfaInfo": {"MaximumEfaInterfaces": 2},
                "NetworkCards": [
                    {"NetworkCardIndex": 0, "InterfaceTypes": ["interface"]},
                    {"NetworkCardIndex": 1, **CARD},
                    {"NetworkCardIndex": 2, **CARD},
                ],
            },
            ("interface", "efa-only", "efa-only"),
        ),
        # i7ie: two cards, one EFA.
        (
            {
                "EfaSupported": True,
                "EfaInfo": {"MaximumEfaInterfaces": 1},
                "NetworkCards": [{"NetworkCardIndex": 0, **CARD}, {"NetworkCardIndex": 1, **CARD}],
            },
            ("efa",),
        ),
    ],
)
def test_efa_has_an_interface_on_each_network_card(
    network: dict[str, Any], cards: tuple[str, ...]
) -> None:
    class Described(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            return Api.list_instance_types(self, names)

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            row = {"InstanceType": "p4d.24xlarge", "VCpuInfo": {"DefaultVCpus": 96}}
            return [{**row, "NetworkInfo": network}]

    assert Described("us-east-1").list_instance_types(["p4d.24xlarge"])["p4d.24xlarge"].efa == cards


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
        preflight.survey(Large("us-east-1"), wanted(group, efa=True), {}, "", print)
    assert "--private" in caught.value.hint
    found = preflight.survey(
        Large("us-east-1"), wanted(group, efa=True, private=True), {}, "", print
    )
    assert found.nat


def unreachable() -> Node:
    return Node(
        name="worker-1",
        role=Role.WORKER,
        address="127.0.0.1",
        private_address="",
        ssh_port=1,
        job_port=1,
        user="me",
        root="/nowhere",
    )


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
    script = tmp_path / "bin" / "sudo"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho no sudo >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    host_keys = HostKeys(tmp_path / "red")
    host_keys.make_boot_keys(["worker-1"], living=())
    here = node("worker-1", address="", root=str(tmp_path))
    with pytest.raises(NodeUnreachable, match="worker-1: exit 1: no sudo") as caught:
        host_keys.settle([here], limit=0, report=lambda text: None)
    assert "`clusterctl up red` continues" in caught.value.hint


def test_a_zone_that_offers_nothing_is_named() -> None:
    with pytest.raises(ProviderError, match="us-east-1z: no such zone offers all of") as caught:
        survey(wanted(NodeGroup(count=1, family="cpu"), zones=("us-east-1z",)))
    assert caught.value.hint == "zones that do: us-east-1a, us-east-1b"


@pytest.mark.parametrize("zone", ["us-west-2a", "us-east-1-bos-1a"])
def test_a_zone_of_another_region_is_a_mistake_of_the_command_line(zone: str) -> None:
    wish = wanted(NodeGroup(count=1, family="cpu"), zones=("us-east-1a", zone))
    said = f"^--zones {zone}: not an availability zone of us-east-1$"
    with pytest.raises(UsageError, match=said) as caught:
        survey(wish)
    assert "t3.micro: us-east-1a, us-east-1b;" in caught.value.hint


@rows("family, kind, hint", "ec2_refusals.whoever_wants_no_gpu_is_not_offered_one")
def test_whoever_wants_no_gpu_is_not_offered_one(family: str, kind: str, hint: str) -> None:
    wish = wanted(NodeGroup(count=1, family=family, instance_type=kind))
    with pytest.raises(UsageError, match=f"no instance type '{kind}'") as caught:
        survey(wish)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "ask",
    [
        lambda current, folder: preflight.survey_cluster(
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
        spec=wanted(NodeGroup(count=1, family="cpu")),
        phase=Phase.READY,
        created=0.0,
        account="210987654321",
    )
    with pytest.raises(ProviderError, match="in the AWS account 210987654321, and") as caught:
        ask(current, tmp_path)
    assert "AWS_PROFILE" in caught.value.hint


@rows("type, hint", "ec2_refusals.a_type_that_the_region_has_not_is_not_offered_again")
def test_a_type_that_the_region_has_not_is_not_offered_again(type: str, hint: str) -> None:
    """New regions have few of the usual types."""

    class Few(Offering):
        def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
            return {"t3.micro": InstanceType(name="t3.micro", vcpus=2)}

    wish = wanted(NodeGroup(count=1, family="cpu", instance_type=type))
    with pytest.raises(UsageError, match=f"EC2 has no instance type '{type}' in") as caught:
        preflight.survey(Few("us-east-1"), wish, {}, "", print)
    assert hint in caught.value.hint


def test_a_mistyped_family_is_told_before_aws_is_asked() -> None:
    with pytest.raises(UsageError, match="unknown GPU family 'g4d'") as caught:
        Ec2Provider(lambda region: pytest.fail("asked AWS")).plan(
            wanted(NodeGroup(count=2, family="g4d"))
        )
    assert caught.value.hint == "did you mean 'g4dn'?"


def test_a_launcher_is_a_small_machine() -> None:
    wish = wanted(NodeGroup(count=1, family="cpu"), launcher_type="t3.micr")
    with pytest.raises(UsageError) as caught:
        survey(wish)
    assert caught.value.hint == "did you mean 't3.micro'?"


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
    wish = wanted(NodeGroup(count=workers, family="cpu"), spot=spot)

    def look() -> object:
        return preflight.survey(Busy("us-east-1"), wish, {}, "", print)

    if not refused:
        look()
        return
    with pytest.raises(ProviderError, match=r"is 10 vCPUs, of which 4 are in use") as caught:
        look()
    assert "request-service-quota-increase" in caught.value.hint
    assert "--desired-value 12" in caught.value.hint


@pytest.mark.parametrize("spot", [True, False])
def test_a_fallback_from_nothing_is_said_before_it_costs(spot: bool) -> None:
    told: list[str] = []
    wish = wanted(NodeGroup(count=1, family="cpu"), spot=spot, spot_fallback=True)
    preflight.survey(Offering("us-east-1"), wish, {}, "", told.append)
    line = "--spot-fallback does nothing without --spot: the workers are on-demand"
    assert told == ([] if spot else [line])


@pytest.mark.parametrize(("family", "kind"), [("g4dn", "t3.xlarge"), ("g5", "g5g.xlarge")])
def test_a_family_and_a_type_that_contradict_each_other_are_refused(family: str, kind: str) -> None:
    groups = (NodeGroup(count=1, family=family, instance_type=kind),)
    with pytest.raises(UsageError, match=f"--gpu {family} and --instance-type {kind} contradict"):
        spec.check_spec(ClusterSpec(name="lab", provider="ec2", groups=groups))
    fits = (replace(groups[0], instance_type=f"{family}.2xlarge"),)
    spec.check_spec(ClusterSpec(name="lab", provider="ec2", groups=fits))
