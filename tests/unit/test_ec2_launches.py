"""Large groups of workers are launched by one call for up to a hundred, beside Terraform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2 import attempts, cleanup, launches, numbers, spec
from clusterctl.providers.ec2.answers import Image, Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.failures import CapacityError, make_refusal
from clusterctl.providers.ec2.host_key_rotation import HostKeys
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.providers.ec2.provider import Ec2Provider
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.ec2.spec import PlannedMachine
from clusterctl.providers.ec2.tags import TAG
from clusterctl.terraform import Terraform

NETWORK: dict[str, Any] = {
    "subnet_id": "subnet-1",
    "groups": ["sg-1"],
    "key_name": "lab-1",
    "placement_group": "lab-1",
    "reserved_group": None,
    "private": False,
    "templates": {},
}


def machines(count: int, *, kind: str = "c7i.large", first: int = 1) -> list[PlannedMachine]:
    return [
        PlannedMachine(name=f"worker-{number}", instance_type=kind, image="cpu", disk=30)
        for number in range(first, first + count)
    ]


def terms(**other: Any) -> launches.Terms:
    usual: dict[str, Any] = {
        "cluster_id": "lab-1",
        "tags": {"clusterctl:cluster": "lab-1", "team": "ml"},
        "network": NETWORK,
        "images": {"cpu": Image(id="ami-1")},
        "user_data": {f"worker-{number}": "boot" for number in range(1, 2000)},
        "spot": False,
        "placement": ("c7i.large", "p5.48xlarge"),
        "reservation": "",
        "block": False,
        "nonce": "first",
    }
    return launches.Terms(**{**usual, **other})


class Region(Api):
    """Starts what it is asked for, in as many calls as there is room for."""

    def __init__(self, calls: int = 100) -> None:
        super().__init__("us-east-1")
        self.left = calls
        self.asked: list[dict[str, Any]] = []
        self.running: list[Instance] = []

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        assert action == "run_instances"
        self.asked.append(arguments)
        if not self.left:
            raise make_refusal(action, "InsufficientInstanceCapacity", "none left", self.region)
        self.left -= 1
        tags = arguments["TagSpecifications"][0]["Tags"]
        text = next(tag["Value"] for tag in tags if tag["Key"] == numbers.TAG)
        new = [
            Instance(
                id=f"i-{len(self.asked)}-{index}",
                node=numbers.read_node(text, index),
                type=arguments["InstanceType"],
                state="running",
                zone="us-east-1a",
                address="",
                private_address=f"10.0.0.{index}",
                launched=0.0,
                apart=True,
            )
            for index in range(arguments["MinCount"])
        ]
        self.running += new
        return {"Instances": [{"InstanceId": item.id} for item in new]}

    def list_instances(
        self, *filters: dict[str, Any], states: Sequence[str] = ()
    ) -> list[Instance]:
        return [item for item in self.running if not states or item.state in states]


@pytest.mark.parametrize(
    ("found", "text"), [([9, 10, 11, 30], "9-11 30"), ([4], "4"), ([1, 3, 4], "1 3-4")]
)
def test_a_tag_and_an_index_tell_a_workers_name(found: list[int], text: str) -> None:
    assert numbers.write(found) == text
    names = [numbers.read_node(text, index) for index in range(len(found))]
    assert names == [f"worker-{number}" for number in found]


@pytest.mark.parametrize("text", ["", "x", "1-", "3 -", "-4"])
def test_a_tag_that_is_not_ours_names_nobody(text: str) -> None:
    assert numbers.read_node(text, 7) == ""


def test_256_workers_are_three_calls_and_each_has_its_name() -> None:
    """EC2 lets five calls through at once: one for each worker would take two minutes."""
    region = Region()
    launches.launch(region, machines(256), terms(), print)
    counts = [(asked["MinCount"], asked["MaxCount"]) for asked in region.asked]
    assert counts == [(100, 100), (100, 100), (56, 56)], "each starts all of its machines or none"
    names = [row["name"] for row in launches.build_rows(region.running)]
    assert names == [f"worker-{number}" for number in range(1, 257)]
    assert len({asked["ClientToken"] for asked in region.asked}) == 3


def test_kinds_of_workers_are_launched_apart() -> None:
    region = Region()
    both = [*machines(30), *machines(30, kind="c6i.large", first=31)]
    launches.launch(region, both, terms(), print)
    assert {(asked["InstanceType"], asked["MinCount"]) for asked in region.asked} == {
        ("c7i.large", 30),
        ("c6i.large", 30),
    }


def test_numbers_full_of_gaps_fit_into_their_tag() -> None:
    region = Region()
    every_second = machines(400)[::2]
    launches.launch(region, every_second, terms(), print)
    for asked in region.asked:
        [text] = [
            tag["Value"]
            for tag in asked["TagSpecifications"][0]["Tags"]
            if tag["Key"] == numbers.TAG
        ]
        assert len(text) <= 256
    assert {item.node for item in region.running} == {machine.name for machine in every_second}


def test_a_zone_without_room_is_told_from_other_faults() -> None:
    region = Region(calls=1)
    with pytest.raises(CapacityError):
        launches.launch(region, machines(150), terms(), print)
    assert len(region.running) == 100


def test_a_launch_that_is_asked_for_again_starts_nothing_twice() -> None:
    """Its token is the same, unless it is another launch."""
    some = machines(30)
    once, again = (launches.build_request(some, terms()) for _ in range(2))
    assert once == again
    for other in (
        launches.build_request(some, terms(nonce="second")),
        launches.build_request(machines(30, first=31), terms()),
    ):
        assert other["ClientToken"] != once["ClientToken"]


def test_workers_are_launched_as_terraform_would_launch_them() -> None:
    asked = launches.build_request(machines(30), terms())
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["MetadataOptions"]["HttpTokens"] == "required"
    [disk] = asked["BlockDeviceMappings"]
    assert disk["Ebs"]["Encrypted"]
    assert disk["Ebs"]["VolumeSize"] == 30
    [interface] = asked["NetworkInterfaces"]
    assert interface["SubnetId"] == "subnet-1"
    assert interface["Groups"] == ["sg-1"]
    assert interface["AssociatePublicIpAddress"]
    assert asked["Placement"] == {"GroupName": "lab-1"}
    assert asked["KeyName"] == "lab-1"
    assert "InstanceMarketOptions" not in asked
    for specification in asked["TagSpecifications"]:
        assert {"Key": "team", "Value": "ml"} in specification["Tags"]
        assert {"Key": "clusterctl:cluster", "Value": "lab-1"} in specification["Tags"]


class Behind(Region):
    """Shows machines that ended before under the same names, and the new ones a moment later."""

    def __init__(self) -> None:
        super().__init__()
        super().call("run_instances", **launches.build_request(machines(30), terms()))
        self.before = [
            replace(
                item, state="terminated", why="Client.UserInitiatedShutdown", id=f"{item.id}-old"
            )
            for item in self.running
        ]
        self.running = []
        self.looks = 0

    def list_instances(
        self, *filters: dict[str, Any], states: Sequence[str] = ()
    ) -> list[Instance]:
        self.looks += 1
        shown = [*self.before, *(self.running if self.looks > 2 else [])]
        return [item for item in shown if item.state in states]


def test_machines_of_the_same_names_that_ended_before_are_not_the_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EC2 shows them for an hour, and new ones after a moment."""
    monkeypatch.setattr(cleanup, "PAUSE", 0.0)
    region = Behind()
    launches.launch(region, machines(30), terms(), print)
    assert region.looks > 2


def test_what_was_asked_of_workers_holds_for_large_groups() -> None:
    some = machines(30)
    spot = launches.build_request(some, terms(spot=True))
    assert spot["InstanceMarketOptions"]["SpotOptions"]["SpotInstanceType"] == "one-time"
    kinds = {one["ResourceType"] for one in spot["TagSpecifications"]}
    assert "spot-instances-request" in kinds
    block = launches.build_request(some, terms(reservation="cr-1", block=True))
    assert block["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = block["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-1"}
    private = launches.build_request(some, terms(network={**NETWORK, "private": True}))
    assert not private["NetworkInterfaces"][0]["AssociatePublicIpAddress"]
    burstable = launches.build_request(machines(30, kind="t3.large"), terms())
    assert burstable["CreditSpecification"] == {"CpuCredits": "standard"}
    assert "Placement" not in burstable, "no type of a placement group"


def test_network_cards_of_efa_are_those_of_the_types_template() -> None:
    templates = {
        "workers": {"id": "lt-1", "version": 2},
        "p5.48xlarge": {"id": "lt-2", "version": 1},
    }
    network = {**NETWORK, "templates": templates}
    for kind, template in (("c7i.large", "lt-1"), ("p5.48xlarge", "lt-2")):
        asked = launches.build_request(machines(30, kind=kind), terms(network=network))
        assert asked["LaunchTemplate"]["LaunchTemplateId"] == template
        assert "NetworkInterfaces" not in asked


def test_on_demand_workers_beside_spot_ones_have_a_template_of_their_own() -> None:
    """That of the spot instances has tags for their requests, which EC2 refuses without any."""
    names = ("workers", "p5.48xlarge", "workers-on-demand", "p5.48xlarge-on-demand")
    network = {**NETWORK, "templates": {name: {"id": name, "version": 1} for name in names}}
    for spot, suffix in ((True, ""), (False, "-on-demand")):
        for kind, key in (("c7i.large", "workers"), ("p5.48xlarge", "p5.48xlarge")):
            asked = launches.build_request(
                machines(30, kind=kind), terms(network=network, spot=spot)
            )
            assert asked["LaunchTemplate"]["LaunchTemplateId"] == f"{key}{suffix}"


class Full(Region):
    """There is room for one call in the first zone, and for all in the second."""

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        if action == "create_tags":
            return
        if action == "terminate_instances":
            gone = arguments["InstanceIds"]
            self.running = [item for item in self.running if item.id not in gone]
            return
        if arguments["NetworkInterfaces"][0]["SubnetId"] == "us-east-1b":
            self.left = 100
        return super().call(action, service, **arguments)

    def list_images(self, ids: Iterable[str]) -> dict[str, Image]:
        return {id: Image(id=id) for id in ids}


class Runner:
    """A Terraform that makes the network in the zone that it is told, and the launcher."""

    def __init__(self, region: Full, knows: bool = True) -> None:
        self.region = region
        self.knows = knows
        self.told: list[Mapping[str, Any]] = []

    def takes(self, variable: str) -> bool:
        return self.knows

    def list_resources(self) -> dict[str, str]:
        return {}

    def apply(self, variables: Mapping[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
        assert not self.region.running, "they hold the network that Terraform moves"
        self.told.append(variables)
        return {"nodes": [], "launch": {**NETWORK, "subnet_id": variables["zone"]}}


class Grown(Runner):
    """One that finds what was made before."""

    def apply(self, variables: Mapping[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
        return {"nodes": [], "launch": {**NETWORK, "subnet_id": variables["zone"]}}


def make(
    folder: Path,
    workers: int,
    region: Full,
    runner: Runner,
    *,
    zones: tuple[str, ...] = ("us-east-1a", "us-east-1b"),
    spot: bool = False,
    tag: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    wish = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=workers, family="cpu"),),
        cloud=CloudSpec(region="us-east-1", spot=spot, spot_fallback=spot, tag=tag),
    )
    found = Survey(
        account="1",
        machines=spec.plan_machines(wish, {}, {}),
        types={},
        zones=zones,
        amis={"cpu": "ami-1", "launcher": "ami-1"},
        placement=frozenset(),
    )
    order = attempts.Order(
        cluster=Cluster(id="lab-1", spec=wish, phase=Phase.CREATING, created=0.0),
        options=wish,
        found=found,
        api=region,
        folder=folder,
        state=ProviderState(id="lab-1", region="us-east-1"),
        host_keys=HostKeys(folder),
        rate=lambda names: "?",
    )
    return attempts.make(order, cast(Terraform, runner), lambda line: None)


def test_a_zone_with_room_for_a_part_is_left_with_none(tmp_path: Path) -> None:
    region = Full(calls=1)
    runner = Runner(region)
    rows = make(tmp_path, 150, region, runner)
    assert [told["zone"] for told in runner.told] == ["us-east-1a", "us-east-1b"]
    assert [row["name"] for row in rows] == [f"worker-{number}" for number in range(1, 151)]
    for told in runner.told:
        assert len(told["apart"]) == 150
        assert set(told["user_data"]) == {"launcher"}
    booting = HostKeys(tmp_path).known
    assert len({key for name, key in booting.items() if name != "launcher"}) == 1, "one user data"


@pytest.mark.parametrize(("workers", "knows"), [(8, True), (150, False)])
def test_terraform_makes_few_workers_and_those_of_older_modules(
    tmp_path: Path, workers: int, knows: bool
) -> None:
    region = Full()
    runner = Runner(region, knows)
    make(tmp_path, workers, region, runner)
    assert not region.asked
    [told] = runner.told
    assert "apart" not in told
    assert len(told["user_data"]) == workers + 1


class Labelled(Full):
    """Notes what gets tags, other than names."""

    def __init__(self) -> None:
        super().__init__()
        self.labelled: list[str] = []

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        said = {one["Name"]: one["Values"] for one in arguments["Filters"]}
        ours = said["key"] == [TAG]
        return [{"ResourceId": item.id} for item in self.running] if ours else []

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        if action == "create_tags" and arguments["Tags"][0]["Key"] == "team":
            self.labelled += arguments["Resources"]
        return super().call(action, service, **arguments)


def test_a_later_up_with_a_tag_reaches_workers_that_were_launched_by_one_call(
    tmp_path: Path,
) -> None:
    region = Labelled()
    make(tmp_path, 150, region, Runner(region), tag=("team=ml",))
    assert not region.labelled, "they were launched with it"
    make(tmp_path, 150, region, Grown(region), tag=("team=ml",))
    assert sorted(region.labelled) == sorted(item.id for item in region.running)


class OneZone(Full):
    """Its spot market has room for one call. Like EC2, it knows the tokens of calls that it has
    accepted, also when their machines have ended."""

    def __init__(self) -> None:
        super().__init__(calls=1)
        self.tokens: dict[str, dict[str, Any]] = {}

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        if action != "run_instances":
            return super().call(action, service, **arguments)
        before = self.tokens.get(arguments["ClientToken"], arguments)
        if before != arguments:
            raise make_refusal(
                action, "IdempotentParameterMismatch", "other arguments", self.region
            )
        if "InstanceMarketOptions" not in arguments:
            self.left = 100
        answer = super().call(action, service, **arguments)
        self.tokens[arguments["ClientToken"]] = arguments
        return answer


def test_a_launch_on_demand_is_another_one_than_that_on_the_spot_market(tmp_path: Path) -> None:
    region = OneZone()
    rows = make(tmp_path, 150, region, Runner(region), zones=("us-east-1a",), spot=True)
    assert len(rows) == 150


def test_workers_that_were_launched_before_up_was_cut_off_are_paid_for(tmp_path: Path) -> None:
    """Terraform knows nothing of them, and the record has no nodes yet."""
    region = Full(calls=1)
    with pytest.raises(CapacityError):
        make(tmp_path, 150, region, Runner(region), zones=("us-east-1a",))
    made = Ec2Provider().list_made(tmp_path)
    assert made == {f"worker-{number}" for number in range(1, 101)}
