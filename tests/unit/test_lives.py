"""What AWS shows of machines and NAT gateways after a command that did not finish, and what is
counted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import cluster_status, open_store
from clusterctl.actions.down import finish_down
from clusterctl.charge_model import GATEWAY, GATEWAY_ADDRESS, Charge
from clusterctl.errors import LeftoverError
from clusterctl.insight.cost import sum_dollars
from clusterctl.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2 import kept_lives, lives, provider_state
from clusterctl.providers.ec2.answers import LIVING, Instance
from clusterctl.providers.ec2.provider import Ec2Provider
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.protocol import Life
from clusterctl.providers.shared import charges as measured
from tests.unit.making import cluster, node, note_machines
from tests.unit.provided import provide
from tests.unit.test_ec2_again import Market

NOW, HOUR = 1.7e9, 3600.0


def charge(name: str, since: float, until: float | None = None, **changes: Any) -> Charge:
    """A dollar an hour; times in minutes from now."""
    made = Charge(node=name, part="instance", item="x", hourly=1.0, source="", since=at(since))
    return replace(made, until=None if until is None else at(until), **changes)


def gateway(since: float) -> Charge:
    return charge("launcher", since, part=GATEWAY, item="NAT gateway")


def address(since: float) -> Charge:
    return charge("launcher", since, part=GATEWAY_ADDRESS, item="public IPv4")


def at(minutes: float) -> float:
    return NOW + minutes * 60


def times(charges: Sequence[Charge]) -> list[tuple[str, float, float | None]]:
    rows = [(i.node, i.since - NOW, None if i.until is None else i.until - NOW) for i in charges]
    return [(name, a / 60, None if b is None else b / 60) for name, a, b in rows]


class Seen(Market):
    """`machines`: name, state, and minutes from now of their start and end. `gateways`: the same
    without a name. `addresses`: whether that of a NAT gateway is there."""

    machines: tuple[tuple[str, str, float, float | None], ...] = ()
    gateways: tuple[tuple[str, float, float | None], ...] = ()
    addresses = False

    def list_instances(
        self, *filters: Any, states: Sequence[str] = LIVING, **more: Any
    ) -> list[Instance]:
        return [
            Instance(
                id=f"i-{number}",
                node=name,
                type="t3.micro" if name == "launcher" else "c7i.xlarge",
                state=state,
                zone="us-east-1a",
                address="",
                private_address="",
                launched=at(since),
                ended=None if until is None else at(until),
            )
            for number, (name, state, since, until) in enumerate(self.machines)
            if filters and state in states
        ]

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        if action == "describe_addresses":
            return [{"AllocationId": "eipalloc-1"}] * self.addresses
        if action != "describe_nat_gateways":
            return []
        rows = [
            {
                "State": state,
                "NatGatewayId": "nat-1",
                "SubnetId": "subnet-1",
                "CreateTime": date(since),
                "DeleteTime": until and date(until),
            }
            for state, since, until in self.gateways
        ]
        return [{key: value for key, value in row.items() if value} for row in rows]


def date(minutes: float) -> datetime:
    return datetime.fromtimestamp(at(minutes), timezone.utc)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> type[Seen]:
    """An empty account, in which EC2's provider looks."""

    class Fresh(Seen):
        pass

    class Removing(Ec2Provider):
        """It ends machines, and the network stays."""

        def destroy(self, cluster: Cluster, folder: Path, report: object) -> None:
            Fresh.machines = tuple((name, "terminated", a, 0) for name, _, a, _ in Fresh.machines)
            raise LeftoverError("cluster lab-1 was not fully removed: VPC vpc-1")

    provide(monkeypatch, "ec2", Removing(Fresh, lambda: NOW, lambda: "203.0.113.9"))
    return Fresh


def lab(*charges: Charge, **changes: Any) -> Cluster:
    spec = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=1, family="cpu"),),
        cloud=CloudSpec(region="us-east-1", ssh_cidr="192.0.2.1/32"),
    )
    made = cluster(node("launcher"), node("worker-1"), charges=charges, deadline=at(60))
    return replace(made, **{"spec": spec, "phase": Phase.CREATING, "nodes": (), **changes})


def status(made: Cluster, now: float = NOW) -> cluster_status.ClusterStatus:
    return cluster_status.read_status(open_store(), made, clock=lambda: now)


def test_what_an_interrupted_up_has_started_costs_from_its_launch_on(seen: type[Seen]) -> None:
    """Not from the plan; and one that has ended by now and is on no record costs until then."""
    made = lab(charge("launcher", -30), charge("worker-1", -30))
    seen.machines = (("launcher", "running", -20, None), ("worker-1", "terminated", -20, -5))
    assert status(made).dollars == pytest.approx((20 + 15) / 60)


def test_a_nat_gateway_of_an_up_that_has_made_no_launcher_goes_on_with_the_next(
    seen: type[Seen], terraform: None
) -> None:
    private = CloudSpec(region="us-east-1", private=True, ssh_cidr="192.0.2.1/32")
    spec = replace(lab().spec, cloud=private)
    made = lab(gateway(-90), spec=spec)
    seen.gateways = (("available", -90, None),)
    provider = Ec2Provider(seen, lambda: NOW, lambda: "203.0.113.9")
    gateways = [i for i in provider.plan(spec, made).charges if i.part == GATEWAY]
    assert times(gateways) == [("launcher", -90, None)]
    # AWS has removed it at the deadline, two hours ago: the next one is another.
    seen.gateways = ()
    old = replace(made, deadline=at(-120), charges=(gateway(-200),))
    gateways = [i for i in provider.plan(spec, old).charges if i.part == GATEWAY]
    assert times(gateways) == [("launcher", -200, -119), ("launcher", 0, None)]


def test_a_nat_gateway_that_a_killed_down_has_removed_costs_nothing_more(seen: type[Seen]) -> None:
    made = lab(gateway(-50), phase=Phase.DELETING, nodes=(node("launcher"),))
    seen.gateways = (("deleted", -50, -40),)
    assert status(made).dollars_per_hour == 0
    seen.gateways = ()  # EC2 shows it no more
    assert status(made).dollars_per_hour == 0


def test_a_nat_gateway_without_machines_is_paid_after_the_deadline(seen: type[Seen]) -> None:
    made = lab(gateway(-130), deadline=at(-10))
    seen.gateways = (("deleted", -130, -9),)
    assert status(made).dollars == pytest.approx(3), "three hours have begun"
    seen.gateways = ()
    assert status(made).dollars == 0, "there was none: EC2 would show it"


def test_a_nat_gateway_that_is_being_made_after_another_goes_on(seen: type[Seen]) -> None:
    """Two `up`s were cut off, and nobody runs the next one for hours."""
    made = lab(gateway(-10))
    seen.gateways = (("deleted", -9, -5), ("pending", -1, None))
    found = status(made)
    assert found.dollars_per_hour == 1
    assert found.dollars == pytest.approx(2), "an hour of each"
    kept = measured.correct(made.charges, lives.list_lives(seen("us-east-1"), made))
    seen.gateways = (("deleted", -9, -5), ("available", -1, None))
    found = status(replace(made, charges=kept), at(100))
    assert (found.dollars_per_hour, found.dollars) == (1, pytest.approx(1 + 2))


@pytest.mark.parametrize("phase", [Phase.CREATING, Phase.DELETING])
def test_the_address_of_a_nat_gateway_is_paid_until_it_is_released(
    seen: type[Seen], monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """An `up` was killed before it made the gateway, or a `down` after it had removed that."""

    class Removing(Ec2Provider):
        def destroy(self, cluster: Cluster, folder: Path, report: object) -> None:
            seen.addresses = False

    provide(monkeypatch, "ec2", Removing(seen, lambda: NOW, lambda: "203.0.113.9"))
    launcher = charge("launcher", -150)  # was never made, as the first `down` has noted
    if phase is Phase.DELETING:
        launcher = launcher.end_at(launcher.since)
    made = lab(launcher, gateway(-150), address(-150), phase=phase, deadline=at(60))
    seen.addresses = True
    before = 0.0
    if phase is Phase.DELETING:
        seen.gateways, before = (("deleted", -150, -140),), 1.0
    found = status(made)
    assert found.dollars_per_hour == 1
    assert found.dollars == pytest.approx(before + 2.5)
    late = status(replace(made, deadline=at(-60)))
    assert late.dollars_per_hour == 1, "AWS was to release it at the deadline"
    assert any("the address of its NAT gateway still costs $1.00/h" in one for one in late.warnings)
    gone = finish_down(open_store(), made, lambda line: None, clock=lambda: NOW)
    assert sum_dollars(gone.charges, NOW) == pytest.approx(before + 2.5)


def test_a_removal_that_breaks_off_keeps_the_ends_of_what_it_has_removed(seen: type[Seen]) -> None:
    """EC2 forgets them an hour later, and the rest may stay for days."""
    made = lab(charge("launcher", -30), charge("worker-1", -30), phase=Phase.READY)
    made = replace(made, nodes=(node("launcher"), node("worker-1")))
    seen.machines = (("launcher", "running", -30, None), ("worker-1", "running", -30, None))
    open_store().save(made)
    told: list[str] = []
    with pytest.raises(LeftoverError):
        finish_down(open_store(), made, told.append, clock=lambda: at(0.5))
    assert told == [], "no machine runs"
    kept = open_store().read_cluster("lab").charges
    assert times(kept) == [("launcher", -30, 0), ("worker-1", -30, 0)]


def test_of_two_machines_of_a_name_the_end_of_the_last_one_counts(seen: type[Seen]) -> None:
    """The first is on record; the other was made by an `up` that was cut off."""
    seen.machines = (("worker-1", "terminated", -90, -60), ("worker-1", "terminated", -20, -10))
    made = lab(nodes=(replace(node("worker-1"), machine="i-0"),))
    ends = lives.list_ended(seen("us-east-1"), made, NOW)
    assert ends["worker-1"].when == at(-10)


def test_machines_that_a_killed_up_has_only_planned_again_cost_nothing(seen: type[Seen]) -> None:
    """Those before them had ended at their deadline."""
    nodes = (node("launcher"), node("worker-1"))
    before, again = charge("worker-1", -300, -180), charge("worker-1", -50)
    made = lab(before, again, nodes=nodes)
    assert status(made).dollars == pytest.approx(2)
    folder = open_store().locate_folder("lab")
    provider_state.save(folder, ProviderState(id=made.id, region="us-east-1"))
    note_machines(folder, "worker-1")
    assert status(made).dollars == pytest.approx(2 + 50 / 60), "made, as its folder has it"


def test_what_was_planned_again_and_not_started_is_no_life() -> None:
    """A killed `start`: AWS has removed the stopped machine at the deadline since, and tells only
    its last start; and a machine that went before its successor was planned is another."""
    disk = charge("worker-1", -300, -60, part="disk")
    ran, planned = charge("worker-1", -300, -200), charge("worker-1", -100, -60)
    shown = [Life("worker-1", at(-300), at(-60))]
    assert times(measured.correct((ran, disk, planned), shown)) == times((ran, disk))
    started = [Life("worker-1", at(-99), at(-60))]
    later = measured.correct((ran, disk, planned), started)
    assert times(later) == times((ran, disk, charge("worker-1", -99, -60)))
    assert measured.correct((charge("worker-1", -10, -10),), ()) == ()


def test_each_machine_of_one_plan_costs_from_its_own_start_on() -> None:
    """Also where the second one came much later, and the end of the first is not told."""
    shown = [Life("launcher", at(-90)), Life("launcher", at(-30), at(-20))]
    charges = measured.correct((charge("launcher", -91),), shown)
    assert times(charges) == [("launcher", -90, -30), ("launcher", -30, -20)]
    assert measured.correct(charges, shown) == charges, "counted once"


def test_after_a_killed_stop_it_is_said_that_machines_may_have_stood_still(
    seen: type[Seen],
) -> None:
    """AWS has ended them at the deadline, and tells only that."""
    made = lab(charge("launcher", -180), stopping=True, phase=Phase.READY, deadline=at(-60))
    made = replace(made, nodes=(node("launcher"),))
    seen.machines = (("launcher", "terminated", -180, -60),)
    found = status(made)
    assert found.dollars == pytest.approx(2)
    assert "the costs assume that all machines ran until they ended" in found.warnings[0]


def test_what_aws_has_forgotten_of_an_interrupted_up_is_named(seen: type[Seen]) -> None:
    """Its costs are unknown: it was never on record, and ended more than an hour ago."""
    made = lab(charge("launcher", -600), charge("worker-1", -600), deadline=at(-120))
    folder = open_store().locate_folder("lab")
    provider_state.save(folder, ProviderState(id=made.id, region="us-east-1"))
    note_machines(folder, "launcher")
    found = status(made)
    assert found.dollars == pytest.approx(8)
    [line] = found.warnings
    assert "the costs do not include worker-1 (up to $8.00), which may have run" in line
    assert status(made, at(-100)).warnings == (), "EC2 would show it"


class Killed(BaseException):
    pass


def test_what_a_killed_down_has_removed_is_paid_although_nobody_shows_it(
    seen: type[Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An `up` was killed before its machines were on record, and the `down` hours later."""

    class Killing(Ec2Provider):
        def destroy(self, cluster: Cluster, folder: Path, report: object) -> None:
            seen.machines = ()
            raise Killed

    made = lab(charge("launcher", -200), charge("worker-1", -200))
    seen.machines = (("launcher", "running", -200, None),)
    provide(monkeypatch, "ec2", Killing(seen, lambda: at(90), lambda: "203.0.113.9"))
    with pytest.raises(Killed):
        finish_down(open_store(), made, lambda line: None, clock=lambda: NOW)
    found = status(open_store().read_cluster("lab"), at(90))  # EC2 does not show it any more
    assert found.dollars == pytest.approx((200 + 60) / 60), "until the deadline; worker-1 never was"
    assert any("the end of launcher is unknown" in line for line in found.warnings)


def test_what_an_up_removes_that_is_on_no_record_is_kept(seen: type[Seen]) -> None:
    """Terraform was killed before it knew of the launcher and of the gateway, and the next `up`
    after it had made others. EC2 does not show the first ones any more."""
    made = lab(charge("launcher", -9), charge("worker-1", -9), gateway(-9))
    seen.machines = (("launcher", "running", -8, None), ("worker-1", "running", -8, None))
    seen.gateways = (("available", -8, None),)
    store = open_store()
    folder = store.locate_folder("lab")
    folder.mkdir(parents=True)

    def keep(minutes: float) -> None:
        there = seen("us-east-1")
        kept_lives.keep(there, made, folder, lambda left: left.id == "i-1", lambda: at(minutes))

    keep(-6)
    seen.machines = (("launcher", "terminated", -8, -5), seen.machines[1])
    keep(-4)
    seen.machines = (("launcher", "running", -4, None), seen.machines[1])
    seen.gateways = (("available", -4, None),)
    found = status(made)
    assert found.dollars == pytest.approx((3 + 4 + 8) / 60 + 2)
    assert found.dollars_per_hour == 3
    provider = Ec2Provider(seen, lambda: NOW, lambda: "203.0.113.9")
    ended = [life for life in provider.list_lives(made, folder) if life.until is not None]
    assert [(i.node, i.since - NOW, i.until and i.until - NOW) for i in ended] == [
        ("launcher", -8 * 60, -5 * 60),
        (GATEWAY, -8 * 60, -4 * 60),
    ]


def test_what_the_next_up_has_replaced_is_paid_although_nobody_shows_it(seen: type[Seen]) -> None:
    """That `up` found it, planned what was missing, and was killed after it had removed it."""
    planned = (charge("launcher", -200), gateway(-200), charge("worker-1", -70))
    found = status(lab(*planned), NOW)
    assert found.dollars == pytest.approx(200 / 60 + 4), "worker-1 never was"
    assert any("the end of launcher is unknown" in line for line in found.warnings)
    assert status(lab(*planned[:2])).dollars == 0, "nobody has found it"
