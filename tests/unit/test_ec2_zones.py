"""Where a cluster goes when a zone has no capacity, without Terraform: what it would be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from clusterctl.core.model import (
    Charge,
    CloudSpec,
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    Phase,
    Role,
)
from clusterctl.machines.ec2 import spec
from clusterctl.machines.ec2.api import Api, Instance, InstanceType
from clusterctl.machines.ec2.create import Order, make_attempts, schedule_ends
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.ec2.refusals import CapacityError
from clusterctl.machines.ec2.spec import ProviderState
from clusterctl.terraform.binary import Diagnostic, TerraformError
from clusterctl.terraform.folder import Terraform
from tests.unit.fake_ec2 import instance

ZONES = ("us-east-1a", "us-east-1b")
FULL = Diagnostic(summary="api error InsufficientInstanceCapacity: none left")


class Account:
    """An account with these nodes of the cluster."""

    region = "us-east-1"

    def __init__(self, nodes: Sequence[str], spot: Collection[str]) -> None:
        self.nodes = nodes
        self.spot = spot

    def find_price(self, *about: Any) -> None:
        """The package's table has one."""

    find_spot_price = find_price

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return [instance(name, zone=ZONES[1], spot=name in self.spot) for name in self.nodes]


def node(name: str, machine: str = "") -> Node:
    return Node(
        name=name,
        role=Role.WORKER,
        address="",
        private_address="",
        ssh_port=22,
        job_port=22,
        user="ubuntu",
        root="",
        machine=machine or f"i-{name}",
    )


class Runner:
    """A Terraform that finds room only in these pairs of a zone and "spot or not": one of its
    workers is new."""

    def __init__(self, room: set[tuple[str, bool]], new: str) -> None:
        self.room = room
        self.new = new
        self.tried: list[tuple[str, bool]] = []
        self.on_demand: list[str] = []
        self.may_go: list[str] = []
        self.variables: Mapping[str, Any] = {}

    def list_resources(self) -> dict[str, str]:
        names = ("launcher", "worker-1", "worker-2")
        machines = {f'aws_instance.this["{name}"]': f"i-{name}" for name in names}
        return {"aws_vpc.this": "vpc-1", **machines}

    def apply(
        self,
        variables: Mapping[str, Any],
        on_event: Callable[[Any], None],
        *,
        parallelism: int,
        may_go: Collection[str],
    ) -> dict[str, Any]:
        self.may_go, self.variables = sorted(may_go), variables
        self.on_demand = variables.get("on_demand", [])
        spot = variables["spot"] and self.new not in self.on_demand
        self.tried.append((variables["zone"], spot))
        if self.tried[-1] not in self.room:
            raise TerraformError("apply failed", diagnostics=(FULL,))
        return {"nodes": []}


def make_all(
    folder: Path,
    room: set[tuple[str, bool]],
    memory: ProviderState,
    running: Sequence[str] = (),
    nodes: Sequence[str] = (),
    machines: Mapping[str, str] | None = None,
    zones: tuple[str, ...] = ZONES,
    workers: int = 1,
    groups: tuple[NodeGroup, ...] = (),
    spots: Collection[str] = (),
    told: list[str] | None = None,
    survey: Mapping[str, Any] | None = None,
    **cloud: Any,
) -> Runner:
    """`running`, `spots`: the nodes there are, and those of them that are spot instances; `survey`:
    what else AWS has."""
    wish = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=groups or (NodeGroup(count=workers, family="cpu"),),
        cloud=CloudSpec(region="us-east-1", **cloud),
    )
    cluster = Cluster(
        id="lab-1",
        spec=wish,
        phase=Phase.CREATING,
        created=0.0,
        nodes=tuple(node(name, (machines or {}).get(name, "")) for name in nodes),
        charges=(
            Charge(
                node="worker-1",
                part="instance",
                item="c7i.xlarge",
                hourly=0.05,
                source="",
                since=0.0,
            ),
        ),
    )
    usual: dict[str, Any] = {"types": {}, "amis": {}, "placement": frozenset()}
    machines_to_be = spec.plan_machines(wish, {}, {})
    found = Survey(account="1", machines=machines_to_be, zones=zones, **usual | {**(survey or {})})
    new = next((m.name for m in found.machines if m.name not in running), "")
    runner = Runner(room, new)
    order = Order(
        cluster=cluster,
        options=wish,
        found=found,
        api=cast(Api, Account(running, spots)),
        folder=folder,
        state=memory,
        host_keys=HostKeys(folder),
    )
    make_attempts(order, cast(Terraform, runner), [].append if told is None else told.append)
    return runner


def attempts(*arguments: Any, **more: Any) -> list[tuple[str, bool]]:
    return make_all(*arguments, **more).tried


def test_terraform_is_told_what_its_module_declares(tmp_path: Path) -> None:
    survey = {
        "types": {"p4d.24xlarge": InstanceType(name="p", vcpus=96, efa=("efa", "efa-only"))},
        "placement": frozenset({"g5.xlarge"}),
        "subnets": {"us-east-1a": ZoneSubnets("subnet-1", "subnet-2")},
    }
    groups = (NodeGroup(count=1, family="cpu"), NodeGroup(count=1, family="g5"))
    memory = ProviderState(id="lab-1", region="us-east-1", ssh_cidr="203.0.113.7/32")
    room = {("us-east-1a", False)}
    more = {"groups": groups, "survey": survey, "efa": True, "private": True}
    more["tag"] = ("team=ml",)
    made = make_all(tmp_path, room, memory, **more).variables
    text = (Path(__file__).parents[2] / "infra/ec2/variables.tf").read_text()
    for name in made:
        assert f'variable "{name}"' in text
    assert made["tags"] == {"team": "ml"}
    assert made["ssh_cidr"] == "203.0.113.7/32"
    assert (made["subnet_id"], made["launcher_subnet_id"]) == ("subnet-1", "subnet-2")
    assert made["efa_cards"] == {"p4d.24xlarge": ["efa", "efa-only"]}
    assert (made["efa"], made["private"], made["spot"]) == (True, True, False)
    cpu, gpu = made["groups"]
    usual = {"image": "cpu", "count": 1, "numbers": [1], "placement": False}
    assert cpu == {**usual, "instance_type": "c7i.xlarge"}
    own = {"instance_type": "g5.xlarge", "image": "nvidia", "numbers": [2], "placement": True}
    assert gpu == {**usual, **own}


def test_spot_becomes_on_demand_only_where_that_was_said(tmp_path: Path) -> None:
    room = {("us-east-1b", False)}
    spot = ProviderState(id="lab-1", region="us-east-1", spot=True)
    with pytest.raises(CapacityError, match="no zone has capacity") as caught:
        attempts(tmp_path, room, spot, spot=True)
    assert "--spot-fallback" in caught.value.hint
    spot = ProviderState(id="lab-1", region="us-east-1", spot=True)
    tried = attempts(tmp_path, room, spot, spot=True, spot_fallback=True)
    assert tried == [(ZONES[0], True), (ZONES[1], True), (ZONES[0], False), (ZONES[1], False)]
    kept = spec.load_state(tmp_path)
    assert kept
    assert (kept.zone, kept.spot) == ("us-east-1b", False), "a later `up` adds of the same kind"


LOST: dict[str, Any] = {
    "nodes": ("launcher", "worker-1", "worker-2"),
    "running": ("launcher", "worker-2"),
    "zones": ("us-east-1b",),
    "workers": 2,
    "spot": True,
}
"""Of a cluster of spot workers that EC2 has taken the first of away."""
ON_DEMAND = {("us-east-1b", False)}


def remembered(**more: Any) -> ProviderState:
    return ProviderState(id="lab-1", region="us-east-1", zone="us-east-1b", spot=True, **more)


def test_a_lost_spot_worker_is_made_again_on_demand_where_that_was_said(tmp_path: Path) -> None:
    """In the zone of the others, which stay spot instances; and with what that costs."""
    told: list[str] = []
    lost = {**LOST, "spots": ("worker-2",), "told": told}
    runner = make_all(tmp_path, ON_DEMAND, remembered(), **lost, spot_fallback=True)
    assert runner.tried == [("us-east-1b", True), ("us-east-1b", False)]
    assert runner.on_demand == ["worker-1"]
    [line] = told
    assert line.startswith("us-east-1b has no capacity for spot (no capacity")
    assert line.endswith("): worker-1 on-demand instead, the cluster then costs $0.1785/h")
    kept = spec.load_state(tmp_path)
    assert kept
    assert (kept.spot, kept.on_demand) == (True, ("worker-1",))
    # When there is room again, what EC2 takes then is a spot instance again.
    told.clear()
    lost = {**lost, "running": ("launcher", "worker-1"), "spots": ()}
    runner = make_all(tmp_path, {("us-east-1b", True)}, kept, **lost, spot_fallback=True)
    assert runner.tried == [("us-east-1b", True)]
    assert runner.on_demand == ["worker-1"]
    assert not told


def test_a_lost_spot_worker_stays_lost_where_it_may_not_become_another(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="us-east-1b has no capacity for more") as caught:
        make_all(tmp_path, ON_DEMAND, remembered(), **LOST, spots=("worker-2",))
    hint = "running nodes are unchanged: try later, or `clusterctl up lab --spot-fallback` starts"
    assert hint in caught.value.hint


def test_a_zone_that_had_no_room_is_not_tried_again(tmp_path: Path) -> None:
    """Once machines have been made in another."""
    memory = ProviderState(id="lab-1", region="us-east-1", zone="us-east-1b")
    tried = attempts(tmp_path, {("us-east-1b", False)}, memory, running=["launcher"])
    assert tried == [("us-east-1b", False)]


@pytest.mark.parametrize("nodes", [(), ("launcher", "worker-1")], ids=["never made", "all ended"])
def test_where_nothing_runs_what_was_tried_before_does_not_count(
    tmp_path: Path, nodes: Sequence[str]
) -> None:
    """An earlier `up` without --spot, or one that fell back, must not make dear machines now."""
    memory = ProviderState(id="lab-1", region="us-east-1", zone="us-east-1b", spot=False)
    tried = attempts(tmp_path, {("us-east-1b", True)}, memory, nodes=nodes, spot=True)
    assert tried == [("us-east-1a", True), ("us-east-1b", True)]


def test_another_day_all_zones_are_tried_again(tmp_path: Path) -> None:
    memory = ProviderState(id="lab-1", region="us-east-1", spot=True)
    with pytest.raises(CapacityError):
        attempts(tmp_path, set(), memory, spot=True, spot_fallback=True)
    kept = spec.load_state(tmp_path)
    assert kept
    tried = attempts(tmp_path, {("us-east-1a", True)}, kept, spot=True, spot_fallback=True)
    assert tried == [("us-east-1a", True)]


def test_terraform_may_remove_what_is_surplus_and_what_never_was_a_node(tmp_path: Path) -> None:
    """One worker is wanted: the second's removal was agreed to before."""
    memory = ProviderState(id="lab-1", region="us-east-1")
    room = {("us-east-1a", False)}
    both = ("launcher", "worker-1", "worker-2")
    runner = make_all(tmp_path, room, memory, nodes=both)
    assert runner.may_go == ['aws_instance.this["worker-2"]']
    runner = make_all(tmp_path, room, memory, nodes=("launcher",))
    assert runner.may_go == ['aws_instance.this["worker-1"]', 'aws_instance.this["worker-2"]']
    memory = ProviderState(id="lab-1", region="us-east-1")
    runner = make_all(tmp_path, room, memory, nodes=both, machines={"worker-1": "i-before"})
    assert 'aws_instance.this["worker-1"]' in runner.may_go, "the one on record is gone"


def test_an_attempt_that_was_cut_off_is_remembered(tmp_path: Path) -> None:
    """What it made last may not be found yet: `down` looks longer then."""
    memory = ProviderState(id="lab-1", region="us-east-1")
    with pytest.raises(CapacityError):
        attempts(tmp_path, set(), memory)
    kept = spec.load_state(tmp_path)
    assert kept
    assert kept.unfinished
    attempts(tmp_path, {("us-east-1a", False)}, kept)
    done = spec.load_state(tmp_path)
    assert done
    assert not done.unfinished


class Bare(Account):
    """An account where an `up` has made a NAT gateway, and nothing behind it; `schedules`: by what
    they end."""

    state = "available"

    def __init__(self) -> None:
        super().__init__([], ())
        self.schedules: dict[str, str] = {}

    def find_account(self) -> str:
        return "123456789012"

    def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
        gateway = {"NatGatewayId": "nat-1", "State": self.state}
        return [gateway] if action == "describe_nat_gateways" else []

    def call(self, action: str, service: str = "ec2", /, **how: Any) -> Any:
        if action == "create_schedule":
            self.schedules[how["Name"]] = how["Target"]["Arn"].rpartition(":")[2]
        return {}


@pytest.mark.parametrize("state", ["pending", "deleted"])
def test_a_nat_gateway_without_machines_has_an_end_too(tmp_path: Path, state: str) -> None:
    """No machine could be made after it: it would cost money until somebody looks."""
    wish = ClusterSpec(name="lab", provider="ec2", groups=(NodeGroup(count=1, family="cpu"),))
    bare = Bare()
    bare.state = state
    order = Order(
        cluster=Cluster(
            id="lab-1", spec=wish, phase=Phase.CREATING, created=0.0, deadline=time.time() + 60
        ),
        options=wish,
        found=Survey(
            account="1", machines=(), types={}, zones=(), amis={}, placement=frozenset(), nat=True
        ),
        api=cast(Api, bare),
        folder=tmp_path,
        state=ProviderState(id="lab-1", region="us-east-1"),
        host_keys=HostKeys(tmp_path),
    )
    schedule_ends(order, set(), print)
    assert bare.schedules == ({"nat-1": "deleteNatGateway"} if state == "pending" else {})
