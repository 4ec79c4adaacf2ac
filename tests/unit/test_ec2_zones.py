"""Where a cluster goes when a zone has no capacity, without Terraform: what it would be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from clusterctl.core import progress
from clusterctl.core.model import Charge, Cluster, NodeGroup, Phase
from clusterctl.core.progress import NodePhases
from clusterctl.core.text import LAST_LINES, list_last_lines
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import ledger
from clusterctl.machines.ec2 import create, prices, refusals, schedules, spec
from clusterctl.machines.ec2.api import Api, Instance, InstanceType, name_owner
from clusterctl.machines.ec2.create import Order, make_attempts, schedule_ends
from clusterctl.machines.ec2.host_keys import HostKeys
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.ec2.provider import Ec2Provider
from clusterctl.machines.ec2.refusals import CapacityError
from clusterctl.machines.ec2.spec import ProviderState, make_reporter
from clusterctl.machines.protocol import ProviderPlan
from clusterctl.terraform.folder import Diagnostic, Event, Terraform, TerraformError
from tests.unit import making
from tests.unit.fake_ec2 import Allowing, instance
from tests.unit.making import cluster, node
from tests.unit.tables import rows

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


class Runner:
    """A Terraform that finds room only in these pairs of a zone and "spot or not": one of its
    workers is new."""

    def __init__(self, room: set[tuple[str, bool]], new: str, said: Diagnostic) -> None:
        self.room = room
        self.said = said
        self.new = new
        self.tried: list[tuple[str, bool]] = []
        self.on_demand: list[str] = []
        self.launchers: list[str] = []
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
        if self.tried[-1:] != [(variables["zone"], spot)]:  # workers, then the launcher
            self.tried.append((variables["zone"], spot))
        self.launchers.append(variables["launcher_type"] and variables["zone"][-1])
        if self.tried[-1] not in self.room:
            raise TerraformError("apply failed", diagnostics=(self.said,))
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
    said: Diagnostic = FULL,
    **cloud: Any,
) -> Runner:
    """`running`, `spots`: the nodes there are, and those of them that are spot instances; `survey`:
    what else AWS has."""
    wish = making.wish(*(groups or [NodeGroup(count=workers, family="cpu")]), **cloud)
    cluster = Cluster(
        id="lab-1",
        spec=wish,
        phase=Phase.CREATING,
        created=0.0,
        nodes=tuple(node(name, machine=(machines or {}).get(name, f"i-{name}")) for name in nodes),
        charges=(making.charge(item="c7i.xlarge", hourly=0.05),),
    )
    usual: dict[str, Any] = {"types": {}, "amis": {}, "placement": frozenset()}
    machines_to_be = spec.plan_machines(wish, {}, {})
    usual |= {"options": wish, "api": cast(Api, Account(running, spots)), **(survey or {})}
    found = Survey(account="1", machines=machines_to_be, zones=zones, **usual)
    new = next((m.name for m in found.machines if m.name not in running), "")
    runner = Runner(room, new, said)
    order = Order(
        cluster=cluster,
        found=found,
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
    usual = {"image": "cpu", "count": 1, "numbers": [1], "placement": False, "disk": 0}
    usual |= {"throughput": 125}
    assert cpu == {**usual, "instance_type": "c7i.xlarge"}
    own = {"instance_type": "g5.xlarge", "image": "nvidia", "numbers": [2], "placement": True}
    assert gpu == {**usual, **own}


def test_spot_becomes_on_demand_only_where_that_was_said(tmp_path: Path) -> None:
    room = {("us-east-1b", False)}
    spot = ProviderState(id="lab-1", region="us-east-1", spot=True)
    with pytest.raises(CapacityError, match="no zone has capacity") as caught:
        attempts(tmp_path, room, spot, spot=True)
    where = "another --region, another --instance-type, or later, or --spot-fallback"
    assert caught.value.hint == f"try {where}", "all zones were tried"
    assert caught.value.message.endswith("): InsufficientInstanceCapacity: none left")
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
    assert line.startswith(
        "us-east-1b has no capacity for spot (InsufficientInstanceCapacity: none"
    )
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


def test_zones_that_ec2_names_are_tried_first(tmp_path: Path) -> None:
    """On the same market: what it says of one says nothing of the other."""
    names = "by not specifying an Availability Zone in your request or choosing us-east-1d, x-1a."
    text = f"{FULL.summary}. You can currently get c7i.xlarge capacity {names}"
    a, b, c, d = zones = tuple(f"us-east-1{letter}" for letter in "abcd")

    def try_all(room: tuple[str, bool], **cloud: Any) -> Runner:
        memory = ProviderState(id="lab-1", region="us-east-1")
        said = Diagnostic(summary=text)
        return make_all(tmp_path, {room}, memory, zones=zones, said=said, **cloud)

    assert [zone for zone, _ in try_all((c, False)).tried] == [a, d, b, c]
    runner = try_all((a, False), spot=True, spot_fallback=True)
    tried, launchers = runner.tried, runner.launchers
    assert tried == [*((zone, True) for zone in (a, d, b, c)), (a, False)]
    assert launchers == ["a", "d", "", "", "", "a"], "none where it is unlikely to stay"


def test_the_end_of_a_console_is_plain_text() -> None:
    """It is what a machine has sent: systemd colours it, and boot loaders move the cursor."""
    text = "GRUB\x1b[2J\r\n\n" + "".join(f"[   {n}.0] line\n" for n in range(20))
    text += "[\x1b[0;1;31mFAILED\x1b[0m] Failed to start \x1b[0;1;39mssh.service\x1b[0m.\x07\r\n"
    lines = list_last_lines(text)
    assert lines[-1] == "[FAILED] Failed to start ssh.service."
    assert (len(lines), lines[0]) == (LAST_LINES, "[   9.0] line")
    assert list_last_lines("\n\x1b[0m\n") == ()


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
    wish = making.wish()
    bare = Bare()
    bare.state = state
    order = Order(
        cluster=Cluster(
            id="lab-1", spec=wish, phase=Phase.CREATING, created=0.0, deadline=time.time() + 60
        ),
        found=Survey(
            account="1",
            options=wish,
            api=cast(Api, bare),
            machines=(),
            types={},
            zones=(),
            amis={},
            placement=frozenset(),
            nat=True,
        ),
        folder=tmp_path,
        state=ProviderState(id="lab-1", region="us-east-1"),
        host_keys=HostKeys(tmp_path),
    )
    schedule_ends(order, set(), print)
    assert bare.schedules == ({"nat-1": "deleteNatGateway"} if state == "pending" else {})


# -------------------------------------------------------------------------------------------------
# What a repeated `up` plans to pay, by an AWS that is not there.


HOUR, DAY = 3600.0, 86400.0
NOW = 1.7e9


class Market(Allowing):
    """A type costs a dollar an hour, ten times as much on demand. `living` are its machines."""

    living: tuple[str, ...] = ()
    zone, spot, launched = "us-east-1a", True, NOW - 60
    stopped: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
        if action in self.refused:
            said = f"User x is not authorized to perform: {service}"
            raise refusals.make_refusal(action, "AccessDenied", said, self.region)
        return {}

    def find_account(self) -> str:
        return "123456789012"

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        return list(self.call(action, service, **arguments).get(key, ()))

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        return [
            instance(
                name,
                type="t3.micro" if name == "launcher" else "c7i.xlarge",
                state=self._state(name),
                zone=self.zone,
                launched=self.launched,
                spot=self.spot and name not in ("launcher", *self.on_demand),
                ended=NOW - 20 if name in self.stopped else None,
            )
            for name in (self.living if filters else ())
        ]

    def _state(self, name: str) -> str:
        if name in self.ending:
            return "shutting-down"
        return "stopped" if name in self.stopped else "running"

    found_zones: tuple[str, ...] = ("us-east-1a",)

    def list_zones(self, types: Iterable[str]) -> tuple[str, ...]:
        return self.found_zones

    def find_price(self, item: str) -> float | None:
        """The table has one for disks and addresses."""
        return {prices.DISK: None, prices.ADDRESS: None, prices.TRAFFIC: 0.09}.get(item, 10.0)

    def find_spot_price(self, instance_type: str, *zones: str) -> float:
        return 3.0 if "us-east-1b" in zones else 1.0


@pytest.fixture
def market() -> type[Market]:
    class Fresh(Market):
        pass

    return Fresh


@pytest.fixture
def provider(market: type[Market], terraform: None) -> Ec2Provider:
    """The time is NOW."""
    return Ec2Provider(market, clock=lambda: NOW, my_address=lambda: "203.0.113.9")


wish = partial(making.wish, spot=True)


def attempted(plan: ProviderPlan, *nodes: str, ago: float) -> Cluster:
    """The record of an `up` that had this plan so many seconds ago, and made these nodes."""
    assert plan.spec
    assert plan.deadline
    return Cluster(
        id="lab-1",
        spec=plan.spec,
        phase=Phase.CREATING,
        created=NOW - ago,
        nodes=tuple(map(node, nodes)),
        deadline=plan.deadline - ago,
        charges=tuple(replace(item, since=item.since - ago) for item in plan.charges),
    )


def test_machines_of_an_up_that_broke_off_cost_what_they_are(
    provider: Ec2Provider, market: type[Market]
) -> None:
    cluster = attempted(provider.plan(wish(spot_fallback=True)), "launcher", ago=HOUR)
    market.living = ("launcher", "worker-1")
    assert rates(cluster.charges) == {"launcher": 10.0, "worker-1": 1.0}

    def charged(made: Cluster) -> dict[str, float | None]:
        return rates(settle(provider, made))

    assert charged(cluster) == {"launcher": 10.0, "worker-1": 1.0}
    market.zone = "us-east-1b"
    assert charged(cluster) == {"launcher": 10.0, "worker-1": 3.0}
    market.spot = False
    assert charged(cluster) == {"launcher": 10.0, "worker-1": 10.0}


def settle(provider: Ec2Provider, made: Cluster) -> tuple[Charge, ...]:
    """Its charges, by what EC2 shows."""
    things = provider.list_things(replace(made, account="123456789012"), Path("nowhere"))
    return ledger.settle(made, ledger.add(None, made, things, NOW))


def rates(charges: Iterable[Charge]) -> dict[str, float | None]:
    """Dollars per hour of each machine, without its disk and address."""
    return {item.node: item.hourly for item in charges if item.part == "instance"}


def test_nodes_get_no_later_deadline_than_aws_keeps(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    """Whoever lacks rights or credentials by now is told so, and no node is asked."""
    cluster = attempted(provider.plan(wish()), "launcher", ago=HOUR)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    market.refused = ("list_schedules", "get_role_policy", "create_schedule_group")
    with pytest.raises(ProviderError, match="not allowed to do that"):
        provider.extend(cluster, tmp_path, NOW + DAY)


@rows("living, said", "ec2_again.a_cluster_that_others_have_removed_is_not_extended")
def test_a_cluster_that_others_have_removed_is_not_extended(
    living: tuple[str, ...], said: str, market: type[Market], tmp_path: Path
) -> None:
    """On another machine, by `gc --yes`: its group of schedules went with it."""

    class Gone(market):  # type: ignore[valid-type, misc]
        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            if action == "list_schedules":
                code = "ResourceNotFoundException"
                raise refusals.make_refusal("list schedules", code, "no such group", "us-east-1")
            return {}

    Gone.living = living
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    made = cluster(account="123456789012", deadline=NOW + HOUR)
    with pytest.raises(ProviderError, match=said) as caught:
        Ec2Provider(Gone).extend(made, tmp_path, NOW + DAY)
    assert "clusterctl up lab" in caught.value.hint


def test_schedules_of_aws_are_moved_where_nothing_here_tells_of_them(
    market: type[Market], provider: Ec2Provider, tmp_path: Path
) -> None:
    """The file was cut off: AWS would end machines to which `extend` has promised more time."""
    cluster = replace(
        attempted(provider.plan(wish()), "launcher", ago=HOUR), account="123456789012"
    )
    calls: list[str] = []

    class Guarding(Market):
        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            calls.append(action)
            found = {"list_schedule_groups": [{"Name": "clusterctl-lab-1"}]}
            return found.get(action, [])

        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            raise ProviderError("that is far enough")

    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", guarded=True))
    path = tmp_path / "ec2" / "memory.json"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ProviderError, match="that is far enough"):
        Ec2Provider(Guarding).extend(cluster, tmp_path, NOW + DAY)
    assert calls == ["list_schedule_groups"]


def test_spot_workers_cannot_be_stopped(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    cluster = attempted(provider.plan(wish()), "launcher", ago=HOUR)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1", spot=True))
    with pytest.raises(UsageError, match="EC2 does not stop"):
        provider.check_pausing(cluster, tmp_path)
    spec.save_state(tmp_path, ProviderState(id="lab-1", region="us-east-1"))
    provider.check_pausing(cluster, tmp_path)  # they fell back to on-demand


def test_stopped_machines_past_their_deadline_can_only_go(
    provider: Ec2Provider, market: type[Market]
) -> None:
    """They would end themselves as soon as they boot."""
    current = attempted(provider.plan(wish()), "launcher", "worker-1", ago=3 * DAY)
    market.living = market.stopped = ("launcher", "worker-1")
    with pytest.raises(
        UsageError, match="the stopped machines of cluster lab should have ended at"
    ) as no:
        provider.plan(wish(), current)
    assert no.value.hint == "`clusterctl down lab` removes them"


def test_machines_that_end_are_told_from_those_that_stay(
    provider: Ec2Provider, market: type[Market], tmp_path: Path
) -> None:
    """One whose end is announced runs for two minutes; one that is stopped is kept."""
    workers = [f"worker-{number}" for number in range(1, 6)]
    current = attempted(provider.plan(wish()), "launcher", *workers, ago=60)
    market.living = ("launcher", *workers[:4])
    market.ending, market.stopped = ("worker-2",), ("worker-3",)
    found = provider.list_ending(current, tmp_path, ("worker-1", "worker-3", "worker-5"))
    assert found == {"worker-1", "worker-2"}


@rows("cloud, kind", "ec2_again.the_plan_says_who_replaces_what_ec2_takes_away")
def test_the_plan_says_who_replaces_what_ec2_takes_away(
    cloud: dict[str, bool], kind: str, provider: Ec2Provider
) -> None:
    """It takes credentials, which the launcher has not."""
    said = [line for line in provider.plan(wish(**cloud)).lines if "may reclaim" in line]
    assert len(said) == bool(kind)
    assert all(
        f"{kind} replaces each" in line and "next `logs -f` or `up`" in line for line in said
    )


def test_a_burstable_type_says_what_it_means(provider: Ec2Provider) -> None:
    """It is taken only by its name."""
    burstable = replace(wish(), groups=(NodeGroup(count=1, instance_type="t3.xlarge"),))
    said = "\n".join(provider.plan(burstable).lines)
    assert "t3.xlarge is burstable" in said
    assert "40 % of its speed; c7i.xlarge always runs at full speed" in said
    assert "burstable" not in "\n".join(provider.plan(wish()).lines), "the launcher is idle"


def test_stopped_machines_are_in_the_plan_and_in_the_question(
    provider: Ec2Provider, market: type[Market]
) -> None:
    current = attempted(provider.plan(wish()), "launcher", "worker-1", ago=60)
    market.living = ("launcher", "worker-1")
    assert provider.plan(wish(), current).question == ""
    market.stopped = ("worker-1",)
    plan = provider.plan(wish(), current)
    assert "worker-1 was stopped and is started again" in plan.lines
    assert plan.question.startswith("start 1 machine for up to")
    # A `stop` that was killed has not noted it.
    mine = [item for item in plan.charges if item.node == "worker-1"]
    times = sorted((item.part, item.since - NOW, item.until and item.until - NOW) for item in mine)
    assert times == [
        ("address", -60, -20),
        ("address", 0, None),
        ("disk", -60, None),
        ("instance", -60, -20),
        ("instance", 0, None),
    ]


THROTTLED = Diagnostic(summary="api error RequestLimitExceeded: Request limit exceeded.")
GONE = Diagnostic(
    summary="api error VpcLimitExceeded: The maximum number of VPCs has been reached."
)


class Halting:
    """A Terraform that makes `steps` more things each time, and then fails with `said`."""

    def __init__(self, *steps: int, said: Diagnostic = THROTTLED) -> None:
        self.steps = list(steps)
        self.said = said
        self.made: dict[str, str] = {}
        self.may_go: list[list[str]] = []

    def list_resources(self) -> dict[str, str]:
        return dict(self.made)

    def apply(self, variables: object, on_event: object, **more: Any) -> dict[str, Any]:
        self.may_go.append(list(more["may_go"]))
        if not self.steps:
            return {"nodes": []}
        self.made |= {f"aws_instance.this[{len(self.made) + n}]": "" for n in range(self.steps[0])}
        del self.steps[0]
        raise TerraformError("apply failed", diagnostics=(self.said,))


def apply(runner: Halting) -> list[str]:
    told: list[str] = []
    variables = {"user_data": {}}
    create.apply(
        cast(Terraform, runner),
        variables,
        Market("x"),
        "lab-1",
        told.append,
        may_go=runner.list_resources,
        sleep=lambda seconds: told.append(f"waits {seconds:g} s"),
    )
    return told


def test_terraform_is_asked_again_while_it_gets_on() -> None:
    """Many launches at once are throttled: each attempt gets some of them."""
    told = apply(Halting(5, 4, 2))
    assert len(told) == 3
    assert told[0].startswith("AWS is throttling your account (api error RequestLimitExceeded")
    with pytest.raises(TerraformError):
        apply(Halting(5, 0, 2))
    with pytest.raises(TerraformError):
        apply(Halting(5, said=GONE))


def test_a_refusal_while_tags_are_new_is_not_the_end() -> None:
    """By policy.json much is allowed to what carries a cluster's tag alone, and IAM may learn of a
    new one late. A deny, or what is refused again, is for good."""
    denied = "api error UnauthorizedOperation: You are not authorized to perform this operation"
    said = Diagnostic(summary=f"{denied} because no identity-based policy allows the action")
    assert apply(Halting(5, 1, said=said))[1::2] == ["waits 5 s"] * 2
    with pytest.raises(TerraformError):
        apply(Halting(5, 0, 3, said=said))
    with pytest.raises(TerraformError):
        apply(Halting(5, said=Diagnostic(summary=f"{denied} with an explicit deny")))


def test_what_terraform_does_to_each_machine_is_told_once() -> None:
    told: list[str] = []
    nodes = NodePhases()
    nodes.expect({"worker-1": "worker"})
    show = make_reporter(told.append, nodes)
    seen = []
    change = {"action": "create", "resource": {"addr": 'aws_instance.this["worker-1"]'}}
    for type in ("apply_start", "apply_complete"):
        hook = {**change, "id_value": "i-1"}
        show(msgspec.convert({"type": type, "hook": hook}, Event))
        seen += [one.phase for one in nodes.look().nodes]
    assert told == ["worker-1: starts", "worker-1: i-1 is running after 0 s"]
    assert seen == [progress.REQUESTED, progress.BOOTING]


def test_a_budget_lasts_wherever_the_cluster_ends_up(
    market: type[Market], provider: Ec2Provider
) -> None:
    """The second zone costs three times as much: the machines' deadline is set before they move."""
    cheap = provider.plan(wish(budget=100.0))
    market.found_zones = ("us-east-1a", "us-east-1b")
    safe = provider.plan(wish(budget=100.0))
    assert safe.charges == cheap.charges, "what it costs where it is tried first"
    assert safe.deadline
    assert cheap.deadline
    dear = sum(item.hourly or 0.0 for item in safe.charges) + 2.0
    assert safe.deadline - NOW == pytest.approx(100.0 / dear * HOUR - 120, rel=1e-4)
    assert safe.deadline < cheap.deadline
    with pytest.raises(UsageError, match=r"up to .* more than --max-hourly 12"):
        provider.plan(wish(max_hourly=12.0))
    market.found_zones = ("us-east-1a",)
    assert provider.plan(wish(max_hourly=12.0))
    with pytest.raises(UsageError, match="more than --max-hourly 12"):
        provider.plan(wish(max_hourly=12.0, spot_fallback=True))


@rows("arn, owner", "ec2_again.an_owner_is_who_sts_says")
def test_an_owner_is_who_sts_says(arn: str, owner: str) -> None:
    assert name_owner(arn) == owner


def test_the_deadline_tag_is_moved_on_all_there_is(market: type[Market], tmp_path: Path) -> None:
    calls: list[Any] = []

    class Tagged(Market):
        def list_all(self, action: str, key: str, **arguments: Any) -> list[Any]:
            assert action == "describe_tags"
            return [{"ResourceId": f"i-{number}"} for number in range(1201)]

        def call(self, action: str, **arguments: Any) -> Any:
            calls.append((action, arguments))

    schedules.label(Tagged("us-east-1"), cluster(provider="ec2"), tmp_path, NOW)
    assert [len(arguments["Resources"]) for _, arguments in calls] == [500, 500, 201]
    assert calls[0][1]["Tags"] == [{"Key": "clusterctl:deadline", "Value": "2023-11-14T22:13:20Z"}]


def test_what_has_just_gone_keeps_no_other_from_its_tag(
    market: type[Market], tmp_path: Path
) -> None:
    """AWS still shows the tags of a worker that has ended unused, and knows its disk no more."""
    labelled: list[str] = []

    class Tagged(Market):
        def list_all(self, action: str, key: str, **arguments: Any) -> list[Any]:
            return [{"ResourceId": name} for name in ("i-1", "vol-gone", "vpc-1")]

        def call(self, action: str, **arguments: Any) -> Any:
            if "vol-gone" in arguments["Resources"]:
                said = "The volume 'vol-gone' does not exist"
                raise refusals.make_refusal(action, "InvalidVolume.NotFound", said, self.region)
            labelled.extend(arguments["Resources"])

    schedules.label(Tagged("us-east-1"), cluster(provider="ec2"), tmp_path, NOW)
    assert labelled == ["i-1", "vpc-1"]
