"""Machines that EC2 no longer shows: CloudTrail tells when they ended, or that is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from clusterctl import providers
from clusterctl.actions import cluster_status, open_store
from clusterctl.actions.cost import sum_spending
from clusterctl.actions.down import finish_down
from clusterctl.charge_model import Charge
from clusterctl.errors import LeftoverError
from clusterctl.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2 import failures
from clusterctl.providers.ec2.answers import LIVING, Instance
from clusterctl.providers.ec2.provider import Ec2Provider
from tests.unit.making import cluster, node
from tests.unit.provided import provide
from tests.unit.test_ec2_again import Market

NOW, HOUR = 1.7e9, 3600.0
FOREVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass
class Trail:
    """What CloudTrail tells, newest first: pairs of a name and a record."""

    events: list[dict[str, Any]] = field(default_factory=list)
    refused: bool = False
    asked: list[str] = field(default_factory=list)
    page: int = 50

    def note(
        self, name: str, hours: float, *ids: str, before: str = "running", **more: Any
    ) -> None:
        items = [{"instanceId": id, "previousState": {"name": before}} for id in ids]
        record = {"responseElements": {"instancesSet": {"items": items}}, **more}
        self.events.insert(
            0,
            {
                "EventName": name,
                "EventTime": datetime.fromtimestamp(NOW + hours * HOUR, timezone.utc),
                "Resources": [{"ResourceName": id} for id in ids],
                "CloudTrailEvent": json.dumps(record),
            },
        )

    def lookup(
        self,
        LookupAttributes: list[dict[str, str]],
        StartTime: datetime,
        EndTime: datetime = FOREVER,
        NextToken: str = "0",
    ) -> dict[str, Any]:
        if self.refused:
            said = "User: x is not authorized to perform: cloudtrail:LookupEvents"
            raise failures.make_refusal("lookup events", "AccessDeniedException", said, "us-east-1")
        assert StartTime <= EndTime, "InvalidTimeRangeException"
        [asked] = LookupAttributes
        key, value = asked["AttributeKey"], asked["AttributeValue"]
        self.asked.append(value)
        found = [
            event
            for event in self.events
            if StartTime <= event["EventTime"] <= EndTime
            and (
                event["EventName"] == value
                if key == "EventName"
                else {"ResourceName": value} in event["Resources"]
            )
        ]
        first, end = int(NextToken), int(NextToken) + self.page
        return {
            "Events": found[first:end],
            **({"NextToken": str(end)} if end < len(found) else {}),
        }


@pytest.fixture
def trail(monkeypatch: pytest.MonkeyPatch) -> Trail:
    """An account in which EC2 shows nothing any more."""
    told = Trail()

    class Forgetful(Market):
        def list_instances(self, *filters: Any, states: Sequence[str] = LIVING) -> list[Instance]:
            return []

        def call(self, action: str, service: str = "ec2", /, **arguments: Any) -> Any:
            return told.lookup(**arguments) if action == "lookup_events" else {}

    class Removing(Ec2Provider):
        def destroy(self, cluster: Cluster, folder: Path, report: object) -> None:
            if told.refused:
                raise LeftoverError("cluster lab-1 was not fully removed: VPC vpc-1")

    provide(monkeypatch, "ec2", Removing(Forgetful, lambda: NOW, lambda: "203.0.113.9"))
    return told


def charge(name: str, since: float, until: float | None = None, part: str = "instance") -> Charge:
    """A dollar an hour; times in hours from now."""
    end = None if until is None else NOW + until * HOUR
    return Charge(
        node=name, part=part, item="x", hourly=1.0, source="", since=NOW + since * HOUR, until=end
    )


def forgotten(
    *charges: Charge, deadline: float = -12.0, workers: int = 2, **changes: Any
) -> Cluster:
    """A cluster that was made twenty hours ago for eight, and whose `down` was killed."""
    names = ("launcher", *(f"worker-{n}" for n in range(1, workers + 1)))
    nodes = tuple(replace(node(name), machine=f"i-{name}") for name in names)
    spec = ClusterSpec(
        name="lab",
        provider="ec2",
        groups=(NodeGroup(count=workers, family="cpu"),),
        cloud=CloudSpec(region="us-east-1"),
    )
    made = cluster(
        *nodes,
        charges=charges or tuple(charge(one.name, -20) for one in nodes),
        deadline=NOW + deadline * HOUR,
        phase=Phase.DELETING,
    )
    found = replace(made, **{"spec": spec, "created": NOW - 20 * HOUR, **changes})
    open_store().save(found)
    return found


def status(made: Cluster) -> tuple[float, tuple[str, ...]]:
    found = cluster_status.read_status(open_store(), made, clock=lambda: NOW)
    return round(found.dollars, 2), found.warnings


def take_down(made: Cluster) -> tuple[float, list[str]]:
    """The receipt, and what is said."""
    told: list[str] = []
    done = finish_down(open_store(), made, told.append, clock=lambda: NOW)
    return round(sum(item.compute_dollars(NOW) for item in done.charges), 2), told


def test_a_killed_down_that_nobody_repeated_is_paid_until_it_ended_machines(trail: Trail) -> None:
    """Not until the deadline: `status`, `cost` and the receipt. It ended them with one call."""
    made = forgotten()
    trail.note("TerminateInstances", -19, "i-launcher", "i-worker-1", "i-worker-2")
    assert status(made) == (3.0, ())
    assert len(trail.asked) == 1
    assert round(sum_spending(open_store(), 99 * HOUR, None, lambda: NOW).dollars, 2) == 3.0
    assert take_down(made) == (3.0, [])


def test_what_ended_itself_is_paid_until_its_deadline(trail: Trail) -> None:
    """Nobody is told of that, and nothing is uncertain about it."""
    assert status(forgotten()) == (3 * 8.0, ())


def test_before_the_deadline_an_end_that_nobody_tells_is_at_most_now(trail: Trail) -> None:
    trail.note("TerminateInstances", -19, "i-launcher")
    dollars, [line] = status(forgotten(deadline=5))
    assert dollars == 1 + 20 + 20
    assert line == (
        "the end of worker-[1-2] is unknown: EC2 no longer shows it, and CloudTrail has not told it"
        " (its events may be late, and a machine that shut itself down has none); the costs are up"
        " to $41.00"
    )


def test_without_the_right_costs_are_said_to_be_the_most_and_are_asked_for_again(
    trail: Trail,
) -> None:
    made = forgotten()
    trail.note("TerminateInstances", -19, "i-launcher", "i-worker-1", "i-worker-2")
    trail.refused = True
    dollars, [line] = status(made)
    assert dollars == 3 * 8.0
    assert line.startswith("the end of launcher,worker-[1-2] is unknown: ")
    assert "cloudtrail:LookupEvents" in line
    assert line.endswith("the costs are up to $24.00")
    with pytest.raises(LeftoverError):
        take_down(made)
    trail.refused = False
    assert take_down(open_store().read_cluster("lab")) == (3.0, [])


def test_a_machine_that_was_stopped_ran_until_then_and_its_disk_costs_until_the_end(
    trail: Trail,
) -> None:
    """A killed `stop`: no longer is every machine said to have run."""
    rows = [
        charge(name, -20, part=part)
        for name in ("launcher", "worker-1", "worker-2")
        for part in ("instance", "disk")
    ]
    made = forgotten(*rows, phase=Phase.READY, stopping=True)
    trail.note("StopInstances", -19.5, "i-worker-1")
    trail.note("StartInstances", -19, "i-worker-1", before="stopped")
    trail.note("StopInstances", -18, "i-launcher", "i-worker-1", "i-worker-2")
    trail.note("TerminateInstances", -12, "i-launcher", before="stopped")
    trail.note("TerminateInstances", -12, "i-worker-1", "i-worker-2", before="stopped")
    dollars, lines = status(made)
    assert not [line for line in lines if "assume that all machines ran" in line]
    assert dollars == pytest.approx(3 * (2 + 8), abs=0.5), "a disk is for a calendar month"


def test_a_call_that_failed_or_came_later_ended_nothing(trail: Trail) -> None:
    made = forgotten()
    everything = ("i-launcher", "i-worker-1", "i-worker-2")
    trail.note("TerminateInstances", -19.5, *everything, errorCode="Client.UnauthorizedOperation")
    trail.note("RebootInstances", -19.4, *everything)
    trail.note("TerminateInstances", -19, *everything[:2])
    trail.note("TerminateInstances", -18, *everything, before="terminated")
    trail.page = 1
    assert status(made) == (1 + 1 + 8.0, ()), "worker-2 had ended itself"


def test_an_interrupted_spot_instance_is_found_though_not_by_its_id(trail: Trail) -> None:
    made = forgotten()
    cloud = replace(made.spec.cloud, spot=True)
    made = replace(made, spec=replace(made.spec, cloud=cloud))
    trail.note("BidEvictedEvent", -19, serviceEventDetails={"instanceIdSet": ["i-worker-1"]})
    assert status(made) == (1 + 8 + 8.0, ())


def test_the_end_of_an_earlier_machine_is_not_that_of_its_successor(trail: Trail) -> None:
    """An `up` has planned worker-1 again, and was killed before the record had its machine."""
    rows = (charge("launcher", -20), charge("worker-1", -20, -15), charge("worker-1", -14))
    made = forgotten(*rows, phase=Phase.READY)
    trail.note("TerminateInstances", -15, "i-worker-1")
    assert status(made) == (8 + 5 + 2.0, ())


@pytest.mark.usefixtures("terraform")
def test_up_keeps_the_ends_of_what_was_before(trail: Trail) -> None:
    made = forgotten(phase=Phase.READY)
    trail.note("TerminateInstances", -19, "i-launcher", "i-worker-1", "i-worker-2")
    cloud = replace(made.spec.cloud, ssh_cidr="192.0.2.1/32")
    plan = providers.load_creator("ec2").plan(replace(made.spec, cloud=cloud), made)
    before = [item for item in plan.charges if item.since < NOW]
    assert sum(item.compute_dollars(NOW) for item in before) == pytest.approx(3.0)


def test_events_are_kept_for_ninety_days(trail: Trail) -> None:
    rows = [charge(f"worker-{n}", -2400) for n in range(1, 7)]
    made = forgotten(*rows, workers=6, deadline=-2390, created=NOW - 9e6)
    _, [line] = status(made)
    assert "(it keeps events for 90 days)" in line


def as_spot(made: Cluster) -> Cluster:
    cloud = replace(made.spec.cloud, spot=True)
    return replace(made, spec=replace(made.spec, cloud=cloud))


@pytest.mark.parametrize("when", [-0.5, -19.5])
def test_evictions_of_others_hide_no_end(trail: Trail, when: float) -> None:
    """Neither those since the deadline nor those before."""
    made = as_spot(forgotten())
    for one in made.nodes:
        trail.note("TerminateInstances", -19, one.machine)
    for n in range(1100):
        details = {"instanceIdSet": [f"i-foreign-{n}"]}
        trail.note("BidEvictedEvent", when, serviceEventDetails=details)
    assert status(made) == (3.0, ())


def test_what_was_not_evicted_ended_itself_though_others_were_since(trail: Trail) -> None:
    for n in range(1100):
        details = {"instanceIdSet": [f"i-foreign-{n}"]}
        trail.note("BidEvictedEvent", -0.5, serviceEventDetails=details)
    assert status(as_spot(forgotten())) == (3 * 8.0, ())


@pytest.mark.parametrize("hours", [1, 8])
def test_many_machines_are_few_lookups_and_those_only_once(trail: Trail, hours: int) -> None:
    """Each with a call of its own, or ended by itself."""
    made = forgotten(workers=40)
    for one in made.nodes if hours == 1 else ():
        trail.note("TerminateInstances", -19, one.machine)
    assert status(made) == (41.0 * hours, ())
    assert len(trail.asked) <= 5
    trail.asked.clear()
    assert status(made) == (41.0 * hours, ())
    assert not trail.asked


@pytest.mark.slow
def test_among_very_many_calls_of_others_each_command_goes_on(trail: Trail) -> None:
    made = forgotten(workers=20)
    for one in made.nodes:
        trail.note("TerminateInstances", -19, one.machine)
    for n in range(1100):
        trail.note("TerminateInstances", -18, f"i-foreign-{n}")
    dollars, [line] = status(made)
    assert "lookups did not suffice; the next command goes on" in line
    assert dollars > 21
    status(made)
    assert status(made) == (21.0, ())
    assert len(trail.asked) <= 3 * 20


def test_an_end_that_may_not_be_known_yet_is_asked_for_again(trail: Trail) -> None:
    made = forgotten(deadline=-0.1)
    assert status(made)[1]
    trail.note("TerminateInstances", -19, "i-launcher", "i-worker-1", "i-worker-2")
    assert status(made) == (3.0, ())


OMITTED = "Field value omitted: it is larger than 100 KB"


@pytest.mark.parametrize("asked", [OMITTED, None, "whole"])
def test_parts_of_an_event_that_are_too_long_are_not_missed(trail: Trail, asked: object) -> None:
    made = forgotten()
    ids = [one.machine for one in made.nodes]
    if asked == "whole":
        asked = {"instancesSet": {"items": [{"instanceId": id} for id in ids]}}
    trail.note("TerminateInstances", -19, *ids, responseElements=OMITTED, requestParameters=asked)
    assert status(made) == (3.0, ())
