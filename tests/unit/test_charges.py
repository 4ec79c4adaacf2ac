"""What machines have cost that ended, or were never made, without anybody having been told."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from clusterctl.actions import cluster_status, open_store
from clusterctl.actions.cost import sum_spending
from clusterctl.actions.down import finish_down
from clusterctl.actions.unfetched import describe_loss
from clusterctl.charge_model import GATEWAY, NETWORK_PARTS, Charge
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.insight import cost
from clusterctl.model import Cluster, Phase
from clusterctl.providers.ec2 import lives
from clusterctl.providers.ec2.answers import Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.tags import UNUSED_TAG
from clusterctl.providers.protocol import Ended, Life
from clusterctl.providers.shared import charges as measured
from tests.unit.calling import Call
from tests.unit.making import cluster
from tests.unit.provided import provide

NOW = 1.7e9
HOUR = 3600.0


def clock() -> float:
    """It stands still: minutes may pass before a test has its turn."""
    return NOW


def charge(name: str, **changes: object) -> Charge:
    """A dollar an hour, for three days."""
    made = Charge(
        node=name, part="instance", item="x", hourly=1.0, source="", since=NOW - 72 * HOUR
    )
    return replace(made, **changes)


def forgotten(**changes: object) -> Cluster:
    """A cluster that was made three days ago, for eight hours."""
    made = cluster(
        charges=tuple(map(charge, ("launcher", "worker-1", "worker-2"))), deadline=NOW - 64 * HOUR
    )
    return replace(made, **changes)


class Ends:
    """A provider that bills these nodes, and takes everything down."""

    lives: tuple[Life, ...] = ()

    def __init__(
        self,
        *living: str,
        noted: frozenset[str] = frozenset(),
        away: bool = False,
        ended: Mapping[str, Ended] = {},
    ) -> None:
        self.ended = ended
        self.living = living
        self.noted = noted
        self.away = away

    def list_billed(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        if self.away:
            raise ProviderError("asking for instances: AWS did not answer")
        return dict.fromkeys(self.living, "i-1")

    def list_ended(self, cluster: Cluster, folder: Path) -> Mapping[str, Ended]:
        return self.ended

    def describe(self, cluster: Cluster, folder: Path) -> dict[str, str]:
        return {node.name: "terminated" for node in cluster.nodes}

    def list_lives(self, cluster: Cluster, folder: Path) -> tuple[Life, ...]:
        return self.lives

    def find_deadline_trouble(self, cluster: Cluster, folder: Path) -> str:
        return ""

    def list_made(self, folder: Path) -> frozenset[str]:
        return self.noted

    def destroy(self, cluster: Cluster, *more: object) -> None:
        pass


def receipt(
    monkeypatch: pytest.MonkeyPatch, old: Cluster, *living: str, noted: frozenset[str] = frozenset()
) -> tuple[tuple[int, float], ...]:
    """How many machines were paid for how many hours, as `down` has it."""
    provide(monkeypatch, "ec2", Ends(*living, noted=noted))
    store = open_store()
    store.save(old)
    ended = finish_down(store, old, print, clock=clock)
    lines = cost.make_receipt(ended.charges, NOW + 999 * HOUR)
    return tuple((line.count, round(line.hours, 1)) for line in lines)


def shown(
    monkeypatch: pytest.MonkeyPatch, provider: Ends, **changes: object
) -> tuple[float, float, str]:
    """What `status` says: money so far and per hour, and its warnings."""
    provide(monkeypatch, "ec2", provider)
    found = cluster_status.read_status(open_store(), forgotten(**changes), clock=clock)
    return round(found.dollars), found.dollars_per_hour, "".join(found.warnings)


def test_status_asks_nobody_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Ends(away=True), deadline=NOW + HOUR) == (3 * 72, 3.0, "")


@pytest.mark.parametrize(
    "changes", [{"phase": Phase.CREATING}, {"phase": Phase.DELETING}, {"stopping": True}], ids=str
)
def test_what_an_interrupted_command_has_left_is_asked_for(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has what was planned: the cloud knows what there is, or that is said."""
    dollars, rate, said = shown(
        monkeypatch, Ends("launcher", "worker-1"), deadline=NOW + HOUR, **changes
    )
    assert rate == 2.0
    assert ("`clusterctl stop lab` completes it" in said) == ("stopping" in changes)
    dollars, rate, said = shown(monkeypatch, Ends(away=True), deadline=NOW + HOUR, **changes)
    assert (dollars, rate) == (3 * 72, 3.0)
    assert "it is unknown which machines of cluster lab are running (" in said
    assert "AWS did not answer" in said
    assert "the costs shown are those that were planned, and assume that all are" in said


class Dearer(Ends):
    """Its worker was to be a spot instance, and has come to be on-demand, at this price."""

    price: float | None = 4.0

    def reprice(self, cluster: Cluster, folder: Path, tell: object) -> tuple[Charge, ...]:
        return tuple(
            replace(item, hourly=self.price) if item.node == "worker-1" else item
            for item in cluster.charges
        )


def test_status_says_whether_its_figures_are_those_of_the_record(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spot instance may be gone since."""
    end = time.time() + HOUR
    made = forgotten(deadline=end)
    for provider, words, by_record in (
        (Ends("launcher", "worker-1"), (), True),
        (Ends("launcher", "worker-1"), ("--live",), False),
        (Ends(away=True), (), True),
    ):
        provide(monkeypatch, "ec2", provider)
        open_store().save(made)
        assert ("/h, from the record)" in call("status", *words).out) is by_record
        source = call("status", "--json", *words).document["money_from"]
        assert source == ("record" if by_record else "provider")


def test_a_killed_up_costs_what_its_machines_have_come_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `status` and in `cost`, with and without an unknown price; a whole record is not asked."""
    cut_off = {"phase": Phase.CREATING, "deadline": NOW + HOUR}
    there = Dearer("launcher", "worker-1")
    assert shown(monkeypatch, there, **cut_off) == (72 * 6, 5.0, "")
    assert shown(monkeypatch, there, deadline=NOW + HOUR)[1] == 3.0
    open_store().save(forgotten(**cut_off))
    assert round(sum_spending(open_store(), 99 * HOUR, None, clock=clock).dollars) == 72 * 6
    there.price = None
    state = cluster_status.read_status(open_store(), forgotten(**cut_off), clock=clock)
    assert state.unknown_prices == ("x",)


def test_machines_that_ended_at_the_deadline_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Ends()) == (3 * 8, 0.0, "")


def test_machines_that_outlive_the_deadline_are_named_and_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who bills them is asked: the record would say that they cost nothing."""
    dollars, rate, said = shown(monkeypatch, Ends("worker-1", "worker-2"))
    assert (dollars, rate) == (2 * 72 + 8, 2.0)
    assert (
        "2 machines are still running (worker-[1-2]), $2.00/h: `clusterctl down lab` removes it"
        in said
    )


def test_a_bill_that_cannot_be_asked_for_is_not_shown_as_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dollars, rate, said = shown(monkeypatch, Ends(away=True))
    assert (dollars, rate) == (3 * 72, 3.0)
    assert "are still running (asking for instances: AWS did not answer)" in said


def test_list_warns_of_machines_that_outlive_the_deadline(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    provide(monkeypatch, "ec2", Ends("worker-1"))
    for name in ("lab", "hall"):
        open_store().save(forgotten(spec=cluster(name=name).spec))
    said = call("list")
    assert "1.00" in said.out
    assert re.findall(r"cluster (\w+) has passed, but 1 machine is still running", said.err) == [
        "hall",
        "lab",
    ]


def test_machines_that_ended_themselves_are_paid_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert receipt(monkeypatch, forgotten()) == ((3, 24.0),)
    # One has outlived its deadline: it is paid until it goes.
    assert receipt(monkeypatch, forgotten(), "worker-1") == ((3, 8.0 + 72.0 + 8.0),)
    # Those that went before their deadline: nobody knows when.
    early = forgotten(deadline=NOW + 8 * HOUR)
    assert receipt(monkeypatch, early, "launcher") == ((3, 3 * 72.0),)


def test_the_ends_that_the_cloud_tells_are_those_on_the_bill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A spot worker that EC2 took after a day costs a day, whatever the deadline."""
    early = forgotten(deadline=NOW + 8 * HOUR)
    ends = {"worker-1": Ended(NOW - 48 * HOUR)}
    provide(monkeypatch, "ec2", Ends("launcher", "worker-2", ended=ends))
    store = open_store()
    store.save(early)
    live = cluster_status.read_status(store, early, live=True, clock=clock)
    assert (round(live.dollars), live.dollars_per_hour) == (72 + 72 + 24, 2.0)
    ended = finish_down(store, early, print, clock=clock)
    assert sum(line.hours for line in cost.make_receipt(ended.charges, NOW)) == 72 + 72 + 24


def test_machines_of_a_stopped_cluster_that_were_started_elsewhere_are_paid_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the console, or by a schedule of somebody's: the record says that it costs a disk."""
    provider = Ends("worker-1")
    provider.lives = (Life("worker-1", NOW - HOUR),)
    rows = (charge("worker-1", until=NOW - 71 * HOUR), charge("worker-1", part="disk", hourly=0.1))
    stopped = forgotten(charges=rows, deadline=NOW + HOUR, phase=Phase.STOPPED)
    provide(monkeypatch, "ec2", provider)
    assert cluster_status.read_status(open_store(), stopped, clock=clock).dollars_per_hour == 0.1
    live = cluster_status.read_status(open_store(), stopped, live=True, clock=clock)
    assert live.dollars_per_hour == 1.1
    assert "is stopped, but worker-1 is running, not started by clusterctl" in live.warnings[0]
    open_store().save(stopped)
    ended = finish_down(open_store(), stopped, print, clock=clock)
    hours = {line.part: line.hours for line in cost.make_receipt(ended.charges, NOW)}
    assert hours == {"instance": 1 + 1, "disk": 72}


def test_of_a_machine_that_was_stopped_elsewhere_the_disk_alone_is_paid() -> None:
    """In the console, or by a `stop` that was killed before it wrote that down."""
    rows = (charge("worker-1"), charge("worker-1", part="disk"))
    found = measured.settle(
        cluster(charges=rows),
        living={"worker-1"},
        made=(),
        now=NOW,
        ends={"worker-1": Ended(NOW - HOUR, stopped=True)},
    )
    assert found == (replace(rows[0], until=NOW - HOUR), rows[1])


def test_a_start_that_was_cut_off_before_it_began_costs_nothing() -> None:
    """Not even the minute that AWS bills at least."""
    rows = (
        charge("worker-1", until=NOW - 2 * HOUR),
        charge("worker-1", part="disk"),
        charge("worker-1", since=NOW - HOUR),
    )
    still = {"worker-1": Ended(NOW - 2 * HOUR, stopped=True)}
    found = measured.settle(cluster(charges=rows), living=still, made=still, now=NOW, ends=still)
    assert found == rows[:2]


@pytest.mark.parametrize(
    ("end", "kept", "until"),
    [
        (None, True, NOW - HOUR),
        (Ended(NOW - 2 * HOUR), True, NOW - 2 * HOUR),
        (Ended(NOW - 2 * HOUR), False, NOW - 2 * HOUR),
        (None, False, NOW - 9 * HOUR),
    ],
    ids=["nobody knows", "told", "told of one removed", "removed"],
)
def test_a_worker_whose_removal_was_cut_off_is_paid_until_it_ended(
    end: Ended | None, kept: bool, until: float
) -> None:
    """An `up` planned its end nine hours ago, and was killed; it went with the deadline. `kept`:
    Terraform's state still has it."""
    rows = (charge("worker-1", until=NOW - 9 * HOUR),)
    where = cluster(charges=rows, deadline=NOW - HOUR, phase=Phase.CREATING)
    leaving = measured.find_leaving(where, {"worker-1"} if kept else ())
    ends = {"worker-1": end} if end else {}
    [found] = measured.settle(where, living=(), made=(), now=NOW, ends=ends, leaving=leaving)
    assert found.until == until
    assert not measured.find_leaving(replace(where, phase=Phase.READY), {"worker-1"})
    later = replace(where, charges=(*rows, charge("worker-2", since=NOW - 8 * HOUR)))
    assert not measured.find_leaving(later, {"worker-1"}), "it had ended before"


def test_what_was_never_made_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forgotten().nodes[:2]
    assert receipt(monkeypatch, forgotten(nodes=made)) == ((2, 16.0),)
    assert receipt(monkeypatch, forgotten(nodes=()), "launcher") == ((1, 72.0),)
    assert receipt(monkeypatch, forgotten(nodes=())) == ()


def test_a_machine_that_is_shown_late_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` was killed just after it had launched one of three: EC2 shows it seconds later."""

    class Late(Ends):
        def destroy(self, cluster: Cluster, *more: object) -> None:
            self.lives = (Life("launcher", at(6), at(7)),)

    provide(monkeypatch, "ec2", Late())
    store = open_store()
    store.save(forgotten(nodes=()))
    ended = finish_down(store, forgotten(nodes=()), print, clock=clock)
    [line] = cost.make_receipt(ended.charges, NOW)
    assert (line.count, line.hours) == (1, pytest.approx(1 / 60))


def test_machines_that_an_up_has_no_record_of_are_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed while they booted: the provider knows of them, who ended themselves since."""
    noted = frozenset({"launcher", "worker-1"})
    assert receipt(monkeypatch, forgotten(nodes=()), noted=noted) == ((2, 16.0),)


@pytest.mark.parametrize(
    ("deadline", "end"),
    [(NOW - HOUR, NOW - HOUR), (NOW + HOUR, NOW), (None, NOW)],
    ids=["past", "to come", "none"],
)
def test_what_is_gone_has_ended_by_now(deadline: float | None, end: float) -> None:
    rows = (charge("worker-1"), charge("worker-2", until=NOW - 9 * HOUR), charge("ghost"))
    made = {"worker-1", "worker-2"}
    where = cluster(charges=rows, deadline=deadline)
    found = measured.settle(where, living=(), made=made, now=NOW)
    # An end that is written down stays; what was never made is left out.
    assert found == (replace(rows[0], until=end), rows[1])


def test_the_last_end_of_a_machine_that_lives_is_taken_back() -> None:
    first = charge("worker-1", until=NOW - 9 * HOUR)
    last = charge("worker-1", since=NOW - 9 * HOUR, until=NOW - HOUR)
    other = charge("worker-2", until=NOW - HOUR)
    again = charge("worker-2", since=NOW - HOUR)
    rows = (first, last, other, again, charge("worker-3", until=NOW - HOUR))
    found = measured.settle(
        cluster(charges=rows), living={"worker-1", "worker-2"}, made=(), now=NOW
    )
    # worker-2 is paid for already, and worker-3 is gone.
    assert found == (first, replace(last, until=None), other, again, rows[-1])
    found = measured.settle(cluster(charges=(last, first)), living={"worker-1"}, made=(), now=NOW)
    assert found == (replace(last, until=None), first)


def test_a_nat_gateway_that_goes_on_does_not_hide_a_machine_that_lives() -> None:
    ended = charge("launcher", until=NOW - HOUR)
    made = forgotten(charges=(charge("launcher", part=GATEWAY), ended))
    settled = measured.settle(made, living={"launcher"}, made={"launcher"}, now=NOW)
    assert [item.until for item in settled] == [None, None]


def test_a_nat_gateway_that_outlives_the_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (charge("launcher"), charge("launcher", part=GATEWAY, hourly=0.05))
    dollars, rate, said = shown(monkeypatch, Ends(), charges=both)
    assert (dollars, rate) == (8 + 4, 0.05), "72 hours of it"
    assert "NAT gateway still costs $0.05/h: `clusterctl down lab` removes it" in said


def test_a_nat_gateway_costs_money_without_any_machine() -> None:
    """The launcher that it is counted with was never made."""
    rows = (charge("launcher"), charge("launcher", part=GATEWAY))
    settled = measured.settle(cluster(charges=rows), living={GATEWAY}, made=(), now=NOW)
    assert settled == rows[1:]
    assert measured.settle(cluster(charges=rows), living=(), made=(), now=NOW) == ()


@pytest.mark.parametrize(
    ("state", "there_is", "billed"),
    [("available", True, True), ("pending", True, False), ("deleted", False, False)],
)
def test_aws_says_whether_there_is_a_nat_gateway(state: str, there_is: bool, billed: bool) -> None:
    class Gateways(Api):
        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return []

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            assert action == "describe_nat_gateways"
            made = {"CreateTime": datetime.fromtimestamp(NOW, timezone.utc), "SubnetId": "subnet-1"}
            return [{"NatGatewayId": "nat-1", "State": state, **made}]

    made = cluster(charges=(charge("launcher", part=GATEWAY),))
    there = Gateways("us-east-1")
    assert (GATEWAY in lives.find_network(there, made)) is there_is
    in_time = lives.find_network(there, made, pending=False)
    assert (GATEWAY in in_time) is billed, "removed in time: it is free"
    assert lives.list_billed(there, made) == {}, "it is no node"
    known = [life.node for life in lives.list_lives(there, made)]
    assert known == ([] if state == "pending" else [GATEWAY])
    assert not lives.find_network(there, cluster(charges=(charge("launcher"),)))


def test_each_nat_gateway_of_a_cluster_that_moved_costs_an_hour() -> None:
    """The zone that the first one was made for had no room for the machines. The second one was
    there when an `up` removed it of which Terraform had not known."""

    class Gateways(Api):
        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return []

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            rows = {
                "nat-3": ("subnet-b", 400, 4400, ""),
                "nat-2": ("subnet-b", 320, 390, ""),  # cut off; the next `up` removed it
                "nat-1": ("subnet-a", 30, 300, ""),
                "nat-0": ("subnet-z", 20, 25, "Gateway.NotAttached"),
            }
            return [
                {
                    "NatGatewayId": id,
                    "SubnetId": subnet,
                    "CreateTime": datetime.fromtimestamp(NOW + made, timezone.utc),
                    "DeleteTime": datetime.fromtimestamp(NOW + gone, timezone.utc),
                    "FailureCode": failure,
                }
                for id, (subnet, made, gone, failure) in rows.items()
            ]

    planned = charge("launcher", part=GATEWAY, hourly=0.045, since=NOW, until=NOW + 4400)
    address = replace(planned, part=NETWORK_PARTS[1], hourly=0.005)
    seen = lives.list_lives(Gateways("us-east-1"), cluster(charges=(planned, address)))
    charges = measured.correct((planned, address), seen)
    first = replace(planned, since=NOW + 30, until=NOW + 300)
    second = replace(planned, since=NOW + 320, until=NOW + 390)
    third = replace(planned, since=NOW + 400, until=NOW + 4400)
    assert charges == (first, second, third, address), "its address moves with it"
    assert sum(item.compute_dollars(NOW + 9000) for item in charges[:3]) == pytest.approx(4 * 0.045)
    assert measured.correct(charges, seen) == charges, "counted once"


def test_a_nat_gateway_that_was_removed_before_it_was_there_costs_nothing() -> None:
    """Whichever subnet the next one is in; `cleanup` has given it a tag, for AWS does not show
    it."""

    class Gateways(Api):
        subnets: tuple[str, ...] = ()

        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return []

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            unused = [{"Key": UNUSED_TAG, "Value": "true"}]
            rows = [(30, 33, unused), (40, 400, [])]
            return [
                {
                    "SubnetId": subnet,
                    "State": "deleted",
                    "CreateTime": datetime.fromtimestamp(NOW + made, timezone.utc),
                    "DeleteTime": datetime.fromtimestamp(NOW + gone, timezone.utc),
                    "Tags": tags,
                }
                for subnet, (made, gone, tags) in zip(self.subnets, rows, strict=False)
            ]

    planned = charge("launcher", part=GATEWAY, hourly=0.045, since=NOW, until=NOW + 500)
    for Gateways.subnets in (("a",), ("a", "b"), ("a", "a")):
        seen = lives.list_lives(Gateways("us-east-1"), cluster(charges=(planned,)))
        charges = measured.correct((planned,), seen)
        others = len(Gateways.subnets) - 1
        assert sum(item.compute_dollars(NOW + 9000) for item in charges) == pytest.approx(
            others * 0.045
        )
        lines = cost.make_receipt(charges, NOW + 9000)
        assert [line.count for line in lines] == [1] * others
        assert measured.correct(charges, seen) == charges, "counted once"


def test_a_nat_gateway_that_aws_has_removed_costs_nothing_more() -> None:
    made = forgotten(charges=(charge("launcher", part=GATEWAY),))
    end = Ended(NOW - HOUR)
    settled = measured.settle(made, living=(), made={"launcher"}, now=NOW, ends={GATEWAY: end})
    assert [item.until for item in settled] == [end.when]


def test_many_jobs_with_outputs_take_few_lines() -> None:
    assert describe_loss([], {}) == []
    few = describe_loss([(3, 2_000_000), (1, 10)], {})
    assert few == [
        "job 1 has unfetched outputs: 10 B",
        "job 3 has unfetched outputs: 2.0 MB",
    ]
    many = describe_loss([(number, number * 1000) for number in range(1, 21)], {})
    assert [line.split()[1] for line in many[:-1]] == ["16", "17", "18", "19", "20"]
    assert many[-1] == "15 more jobs with smaller ones: 120.0 kB together"


def times(charges: tuple[Charge, ...]) -> list[tuple[str, float, float | None]]:
    """From when to when, in minutes after the plan of the first."""
    first = NOW - 72 * HOUR
    return [
        (item.node, (item.since - first) / 60, item.until and (item.until - first) / 60)
        for item in charges
    ]


def at(minutes: float) -> float:
    return NOW - 72 * HOUR + 60 * minutes


@pytest.mark.parametrize(
    ("charges", "lives", "expected"),
    [
        # Planned, then started; ended before that was noticed.
        (
            [charge("worker-1", until=at(90))],
            [Life("worker-1", at(3), at(80))],
            [("worker-1", 3, 80)],
        ),
        # It runs, and nobody says until when.
        ([charge("worker-1")], [Life("worker-1", at(3))], [("worker-1", 3, None)]),
        # One zone had no room for all: what was started there was paid for, too.
        (
            [charge("launcher", until=at(60))],
            [Life("launcher", at(2), at(4)), Life("launcher", at(5), at(59))],
            [("launcher", 2, 4), ("launcher", 5, 59)],
        ),
        # Its namesake came later, and the first one is known no more.
        (
            [charge("worker-1", until=at(30)), charge("worker-1", since=at(40))],
            [Life("worker-1", at(42), at(50))],
            [("worker-1", 0, 30), ("worker-1", 42, 50)],
        ),
        # AWS began to bill it a moment before the plan was noted: up to a second is clocks.
        (
            [charge("worker-1", until=at(30)), charge("worker-1", since=at(40))],
            [Life("worker-1", at(40) - 1, at(50))],
            [("worker-1", 0, 30), ("worker-1", 40 - 1 / 60, 50)],
        ),
        (
            [charge("worker-1", until=at(30)), charge("worker-1", since=at(40))],
            [Life("worker-1", at(40) - 1.5, at(40))],
            [("worker-1", 0, 40), ("worker-1", 40, None)],
        ),
        # Before any plan there is no other one.
        (
            [charge("worker-1", until=at(30))],
            [Life("worker-1", at(-2), at(20))],
            [("worker-1", -2, 20)],
        ),
        # A stopped machine's disk goes on: that the machine ended is right.
        (
            [charge("worker-1", until=at(30)), charge("worker-1", part="disk")],
            [Life("worker-1", at(2), None)],
            [("worker-1", 2, 30), ("worker-1", 2, None)],
        ),
        # It is so as well when the machine and its disk have ended.
        (
            [charge("worker-1", until=at(30)), charge("worker-1", part="disk", until=at(70))],
            [Life("worker-1", at(2), at(60))],
            [("worker-1", 2, 30), ("worker-1", 2, 60)],
        ),
        # Started again: the disk is that of before, and ends with the machine.
        (
            [
                charge("worker-1", until=at(30)),
                charge("worker-1", part="disk", until=at(99)),
                charge("worker-1", since=at(50), until=at(99)),
            ],
            [Life("worker-1", at(51), at(90))],
            [("worker-1", 0, 30), ("worker-1", 0, 90), ("worker-1", 51, 90)],
        ),
        # Stopped once more, and taken down: the disk is still the first one.
        (
            [
                charge("worker-1", until=at(30)),
                charge("worker-1", part="disk"),
                charge("worker-1", since=at(50), until=at(60)),
            ],
            [Life("worker-1", at(51), at(99))],
            [("worker-1", 0, 30), ("worker-1", 0, 99), ("worker-1", 51, 60)],
        ),
        # Stopped, and started outside clusterctl soon after: that is no part of what ended.
        (
            [charge("worker-1", until=at(5)), charge("worker-1", part="disk")],
            [Life("worker-1", at(7), at(30))],
            [("worker-1", 0, 5), ("worker-1", 7, 30)],
        ),
        # An `up` that was cut off made one that it had no time to note, long before.
        (
            [charge("worker-1", since=at(60))],
            [Life("worker-1", at(20), at(40)), Life("worker-1", at(61))],
            [("worker-1", 20, 40), ("worker-1", 61, None)],
        ),
        # Before that, another zone had no room for all.
        (
            [charge("launcher", until=at(30)), charge("launcher", part="disk")],
            [Life("launcher", at(1), at(2)), Life("launcher", at(5), None)],
            [("launcher", 1, 2), ("launcher", 5, 30), ("launcher", 1, 2), ("launcher", 5, None)],
        ),
        # Stopped and started again: the last start is not the first.
        ([charge("worker-1")], [Life("worker-1", at(120), at(150))], [("worker-1", 0, 150)]),
        ([charge("worker-1")], [Life("worker-1", at(15), at(150))], [("worker-1", 0, 150)]),
        # Nobody knows any more.
        ([charge("worker-1", until=at(9))], [], [("worker-1", 0, 9)]),
    ],
)
def test_a_machine_is_paid_from_its_start_to_its_end(
    charges: list[Charge], lives: list[Life], expected: list[tuple[str, float, float | None]]
) -> None:
    assert times(measured.correct(charges, lives)) == expected


def test_a_receipt_has_the_times_of_whoever_bills(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ends("launcher", "worker-1", "worker-2")
    provider.lives = tuple(Life(name, at(6), at(66)) for name in provider.living)
    provide(monkeypatch, "ec2", provider)
    store = open_store()
    store.save(forgotten())
    ended = finish_down(store, forgotten(), print, clock=clock)
    [line] = cost.make_receipt(ended.charges, NOW)
    assert (line.count, line.hours) == (3, pytest.approx(3.0))


@pytest.mark.parametrize(
    "why",
    [ProviderError("your AWS credentials have expired"), LeftoverError("1 VPC still exists")],
    ids=["refused", "left over"],
)
def test_a_removal_that_breaks_off_says_what_it_goes_on_costing(
    why: ProviderError, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Ends):
        def destroy(self, cluster: Cluster, *more: object) -> None:
            raise why

    provide(monkeypatch, "ec2", Refusing("launcher", "worker-1", "worker-2"))
    told: list[str] = []
    open_store().save(forgotten())
    with pytest.raises(type(why)):
        finish_down(open_store(), forgotten(), told.append, clock=clock)
    [line] = told
    assert "up to 3 machines may keep running at $3.00/h" in line
    assert line.endswith("`clusterctl down lab` continues")
    assert len(open_store().read_cluster("lab").charges) == 3, "the receipt is written before"


def test_an_unknown_price_makes_every_figure_a_lower_bound(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """In what `status` and `list` show, and in the last line of `down`."""
    dark = tuple(charge(name, hourly=None) for name in ("launcher", "worker-1"))
    cloud = Ends("launcher", "worker-1")
    provide(monkeypatch, "ec2", cloud)
    open_store().save(forgotten(charges=(*dark, charge("worker-2")), deadline=None))
    status = call("status")
    said = r"at least \$\d+\.\d\d so far \(at least \$1\.00/h, from the record\)"
    assert re.search(said, status.out), status.out
    assert call("status", "--json").document["unknown_prices"] == ["x"]
    assert ">= 1.00" in call("list").out
    cloud.living = ()
    assert re.search(r"was removed: .*, at least \$\d", call("down", "--yes", "--force").err)
