"""An EC2 with behaviour, without moto: what carries a tag is found, and goes when it is told to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from clusterctl.errors import ProviderError
from clusterctl.machines.ec2 import prices
from clusterctl.machines.ec2 import refusals as ec2_refusals
from clusterctl.machines.ec2.api import Api, Image, Instance, InstanceType

ACCOUNT = "123456789012"
LAUNCHED = 1.7e9


@dataclass
class Cloud:
    """What one account has in one region: machines, disks and networks by id, each with the id of
    its cluster. `refusals`: what a call is answered with, by its name."""

    region: str = "us-east-1"
    things: dict[str, tuple[str, str]] = field(default_factory=dict)
    refusals: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    name: str = "lab"
    gib: int = 8
    """The size of each disk."""
    shared: str = ""
    """The folder that the machines share, as their tags say."""

    def make(self, cluster: str, *nodes: str) -> None:
        """Machines, a disk of each, and their network."""
        for node in nodes:
            self.things[f"i-{node}"] = ("instance", cluster)
            self.things[f"vol-{node}"] = ("volume", cluster)
        self.things["vpc-1"] = ("VPC", cluster)

    def left(self) -> list[str]:
        return sorted(self.things)


KEYS = {"Reservations": "instance", "Volumes": "volume", "Vpcs": "VPC"}
IDS = {"instance": "InstanceId", "volume": "VolumeId", "VPC": "VpcId"}


PRICES = {prices.DISK: 0.073, prices.ADDRESS: 0.005, prices.NAT: 0.045}
"""Instance types cost a dollar."""


class FakeApi(Api):
    """The questions and orders that `cleanup` has for AWS."""

    owner = "user/ana"

    def __init__(self, cloud: Cloud, region: str = "us-east-1") -> None:
        super().__init__(region)
        self._cloud = cloud

    @property
    def _things(self) -> dict[str, tuple[str, str]]:
        return self._cloud.things if self.region == self._cloud.region else {}

    def _checked(self, action: str) -> None:
        self._cloud.calls.append(action)
        if refusal := self._cloud.refusals.get(action):
            raise ec2_refusals.make_refusal(action.replace("_", " "), *refusal, self.region)

    def find_account(self) -> str:
        self._checked("get_caller_identity")
        return ACCOUNT

    def list_all(self, action: str, key: str, service: str = "ec2", **arguments: Any) -> list[Any]:
        if service != "ec2":
            raise ProviderError("no rights for that")
        self._checked(action)
        if key == "Tags":
            return [{"ResourceId": id} for id in self._things]
        rules = arguments.get("Filters") or arguments.get("Filter", ())  # of NAT gateways
        wanted = {value for rule in rules for value in rule["Values"]}
        by_vpc = any("vpc-id" in rule["Name"] for rule in rules)
        found = [
            self._item(id, kind, cluster)
            for id, (kind, cluster) in self._things.items()
            if kind == KEYS.get(key) and not by_vpc and not wanted.isdisjoint((cluster, TAG))
        ]
        return [{"Instances": found}] if key == "Reservations" and found else found

    def _item(self, id: str, kind: str, cluster: str) -> dict[str, Any]:
        node = id.partition("-")[2]
        tags = {TAG: cluster, "clusterctl:name": self._cloud.name, "clusterctl:node": node}
        item: dict[str, Any] = {
            IDS[kind]: id,
            "Tags": [{"Key": name, "Value": value} for name, value in tags.items()],
        }
        if kind == "instance":
            launched = datetime.fromtimestamp(LAUNCHED, timezone.utc)
            item |= {
                "State": {"Name": "running"},
                "LaunchTime": launched,
                "InstanceType": "t3.micro",
            }
        if kind == "volume":
            machine = f"i-{node}"
            item["Attachments"] = [{"InstanceId": machine}] if machine in self._things else []
            item["Size"] = self._cloud.gib
        return item

    def list_instances(self, *filters: dict[str, Any], **more: Any) -> list[Instance]:
        self._checked("describe_instances")
        wanted = {value for rule in filters for value in rule["Values"]}
        return [
            instance(id.partition("-")[2], shared=self._cloud.shared)
            for id, (kind, cluster) in self._things.items()
            if kind == "instance" and cluster in wanted
        ]

    def find_price(self, item: str) -> float | None:
        return PRICES.get(item, None if "GB " in item else 1.0)

    def call(self, action: str, service: str = "ec2", **arguments: Any) -> Any:
        self._checked(action)
        gone = [value if isinstance(value, list) else [value] for value in arguments.values()]
        for id in itertools.chain(*gone):
            self._things.pop(str(id), None)
            if str(id).startswith("i-"):
                self._things.pop(f"vol-{str(id).partition('-')[2]}", None)
        return {}


TAG = "clusterctl:cluster"


def instance(node: str, **changes: Any) -> Instance:
    """A machine that runs in us-east-1a."""
    usual = {"id": f"i-{node}", "type": "t3.micro", "state": "running", "zone": "us-east-1a"}
    more = {"address": "", "private_address": "", "launched": LAUNCHED}
    return Instance(node=node, **{**usual, **more, **changes})


class Allowing(Api):
    """An account that may do everything, with all types there are."""

    def find_image(self, owner: str, name: str) -> Image | None:
        return None if owner == "self" else Image(id="ami-1", disk=8)

    def read_image(self, id: str) -> Image | None:
        return Image(id=id, disk=8)

    def check_launch_right(self, instance_type: str, image: str, **how: Any) -> None:
        """Everything is allowed."""

    def find_block_mode(self) -> str:
        return "off"

    def check_right(self, action: str, **arguments: Any) -> None:
        """As above."""

    def has_free_plan(self) -> bool:
        return False

    def find_quota(self, code: str) -> float:
        return 100.0

    def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        return {name: InstanceType(name=name, vcpus=2) for name in names}


class Offering(Allowing):
    """An empty account in a region with two zones and two types."""

    def find_account(self) -> str:
        return "123456789012"

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return []

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        return []

    def list_instance_types(self, names: Iterable[str]) -> dict[str, InstanceType]:
        known = ("t3.micro", "t3.xlarge", "c7i.xlarge")
        return {name: InstanceType(name=name, vcpus=2) for name in known if name in set(names)}

    def list_zones(self, types: Iterable[str]) -> tuple[str, ...]:
        return ("us-east-1a", "us-east-1b")
