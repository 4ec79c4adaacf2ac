"""The ledger of what was seen, and the charges that follow from it. That these are never below a
bill that shares no code with ours is in test_whole_lives.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.model import GATEWAY, GATEWAY_ADDRESS, Charge, Phase, Thing
from clusterctl.insight.cost import make_receipt, sum_dollars
from clusterctl.machines import ledger
from clusterctl.machines.ec2.api import UNUSED_TAG, Api, Instance
from clusterctl.machines.ec2.ledger import describe_instances, list_things
from tests.unit.fake_ec2 import instance
from tests.unit.making import cluster as make_cluster

JUNE = 1_782_000_000.0
"""In a month of thirty days, with weeks to go."""
HOUR = 3600.0
RATES = {"instance": 1.0, "disk": 0.5, "address": 0.25, GATEWAY: 0.045, GATEWAY_ADDRESS: 0.005}


def row(node: str, part: str, since: float) -> Charge:
    return Charge(node=node, part=part, item=part, hourly=RATES[part], source="", since=since)


def settle(looks: list[ledger.Sighting], *rows: Charge, **changes: Any) -> list[tuple[Any, ...]]:
    """What is charged, with times in minutes after JUNE."""
    made = make_cluster(charges=rows, deadline=JUNE + 8 * HOUR)
    charges = ledger.settle(replace(made, **changes), looks)
    return [
        (
            item.part,
            round((item.since - JUNE) / 60, 1),
            None if item.until is None else round((item.until - JUNE) / 60, 1),
            item.unseen,
        )
        for item in charges
    ]


def see(at: float, *things: Thing, gone: tuple[str, ...] = ()) -> ledger.Sighting:
    return ledger.Sighting(JUNE + at * 60, things, gone)


def thing(state: str = "on", since: float = 1, until: float | None = None, **more: Any) -> Thing:
    end = None if until is None else JUNE + until * 60
    return Thing(id="i-1", node="worker-1", state=state, since=JUNE + since * 60, until=end, **more)


PLAN = row("worker-1", "instance", JUNE)


@pytest.mark.parametrize(("told", "counted"), [(20, 20), (50, 31)])
def test_an_end_that_others_told_stays_known(tmp_path: Path, told: int, counted: int) -> None:
    """EC2 shows machines that ended themselves for an hour, and not since when. They ended before
    it showed that."""
    disk = row("worker-1", "disk", JUNE)
    made = make_cluster(charges=(PLAN, disk), deadline=JUNE + 8 * HOUR)
    for minute, shown in ((2, thing()), (30, thing("ended"))):
        looks = ledger.add(tmp_path, made, [shown], JUNE + minute * 60)
    ledger.add_ends(tmp_path, looks, made, {"worker-1": JUNE + told * 60}, JUNE + 30 * 60)
    for minute, things in ((40, [thing("ended")]), (41, [thing("ended")]), (99, [])):
        looks = ledger.add(tmp_path, made, things, JUNE + minute * 60)
        ends = [("instance", 1, counted, False), ("disk", 1, counted, False)]
        assert settle(list(looks), PLAN, disk) == ends


def test_what_was_seen_is_counted_as_it_was_and_the_rest_as_long_as_it_can_have_been() -> None:
    at = thing()
    assert settle([], PLAN) == [("instance", 0, None, False)], "nobody has looked"
    assert settle([see(2)], PLAN) == [], "it was never made"
    assert settle([see(300)], PLAN) == [("instance", 0, 301, True)], "it may have been"
    late = replace(PLAN, since=JUNE + 299 * 60)
    assert settle([see(2), see(300)], late) == [], "who looked before it says nothing of it"
    assert settle([see(900)], PLAN) == [("instance", 0, 482, True)], "it ended itself by then"
    assert settle([see(2, at)], PLAN) == [("instance", 1, None, False)]
    ended = see(9, thing("ended", until=8))
    assert settle([see(2, at), ended], PLAN) == [("instance", 1, 8, False)]
    cut_off = replace(ended, stopping=True)
    assert settle([see(2, at), cut_off], PLAN) == [("instance", 1, 8, True)], "it may have stopped"
    for minute, more in ((60, [("instance", 60, 301, True)]), (5, [])):
        another = replace(PLAN, since=JUNE + minute * 60)  # planned after its end, or before that
        made = settle([see(2, at), ended, see(300)], PLAN, another)
        assert made == [("instance", 1, 8, False), *more]
    disk = row("worker-1", "disk", JUNE)
    assert settle([see(2, at), ended], disk) == [("disk", 1, 8, False)]
    assert settle([see(2, at), see(20, thing("ended"))], disk) == [("disk", 1, 21, True)]
    lost = see(99, gone=("i-1",))
    assert settle([see(2, at), lost], PLAN) == [("instance", 1, 100, True)]
    assert settle([see(2, at), see(900, gone=("i-1",))], PLAN) == [("instance", 1, 482, True)]
    untold = [see(2, at), see(520, thing("ended"))]
    assert settle(untold, PLAN) == [("instance", 1, 482, True)], "EC2 tells no time of that"
    later = [see(2, at), see(500), see(900, gone=("i-1",))]
    assert settle(later, PLAN) == [("instance", 1, 901, True)], "it has outlived its deadline"
    assert settle([see(2, at), lost, see(100, at)], PLAN) == [("instance", 1, None, False)]


def test_what_nobody_ends_costs_until_it_is_seen_gone() -> None:
    kept = thing(lasts=True)
    gone = see(900, gone=("i-1",))
    assert settle([see(2, kept), gone], PLAN) == [("instance", 1, 901, True)], "no deadline ends it"
    gateway, address = row("nat", GATEWAY, JUNE), row("nat", GATEWAY_ADDRESS, JUNE)
    assert settle([see(900)], gateway) == [(GATEWAY, 0, 901, True)], "its up was cut off"
    held = Thing(id="eip-1", node="nat", part=GATEWAY_ADDRESS, since=JUNE + 60)
    lost = [see(2, held), see(9, gone=("eip-1",))]
    assert settle(lost, address) == [(GATEWAY_ADDRESS, 1, 10, False)], "it is looked for at once"


def test_clocks_may_differ_by_a_minute() -> None:
    started = thing(since=60, born=JUNE + 59.5 * 60)
    assert settle([see(61, started)], PLAN) == [("instance", 60, None, False)], "its first start"
    ended = replace(PLAN, since=JUNE + 30, until=JUNE + 600)
    assert settle([see(2, thing(since=0)), see(20, gone=("i-1",))], ended) == [
        ("instance", 0, 21, True)
    ], "the run that the record has is this one"
    dearer = replace(PLAN, since=JUNE + 90, hourly=2.0)
    made = make_cluster(charges=(PLAN, dearer))
    [charge] = ledger.settle(made, [see(2, thing(since=1))])
    assert charge.hourly == 2.0, "what was planned last before it began"


def test_a_row_of_a_network_is_not_that_of_an_earlier_run() -> None:
    """It never stops: what the record has of it is the same, with an end that was a guess."""
    gateway = replace(row("nat", GATEWAY, JUNE), thing="nat-1", until=JUNE + 60)
    shown = Thing(id="nat-1", node="nat", part=GATEWAY, since=JUNE + 120)
    assert settle([see(3, shown)], gateway) == [(GATEWAY, 2, None, False)]


def test_a_machine_that_was_started_again_ran_until_then_where_nobody_saw_it_stop() -> None:
    again = thing(since=60)
    unseen = [("instance", 1, 60, True), ("instance", 60, None, False)]
    assert settle([see(2, thing()), see(61, again)], PLAN) == unseen
    born = replace(again, born=JUNE + 60)
    assert settle([see(61, born)], PLAN) == unseen, "by its disk"
    off = thing("off", until=30)
    seen = [("instance", 1, 30, False), ("instance", 60, None, False)]
    assert settle([see(2, thing()), see(31, off), see(61, again)], PLAN) == seen
    started = replace(PLAN, since=JUNE + 40 * 60)
    assert settle([see(2, thing()), see(31, off), see(99)], PLAN, started)[1:] == [], "not started"


def test_charges_are_the_same_however_often_they_are_settled() -> None:
    """Also where the ledger was lost meanwhile, and by a record of an earlier version."""
    looks = [see(2, thing()), see(31, thing("off", until=30)), see(61, thing(since=60))]
    made = make_cluster(charges=(PLAN, row("worker-1", "disk", JUNE)), deadline=JUNE + 8 * HOUR)
    once = replace(made, charges=ledger.settle(made, looks))
    assert ledger.settle(once, looks) == once.charges
    born = replace(thing(since=60), born=JUNE + 60)
    assert ledger.settle(once, [see(70, born)]) == once.charges
    [ran, _, disk] = ledger.settle(once, [see(70, gone=("i-1",))])
    assert (ran.until, disk.until, disk.unseen) == (JUNE + 1800, JUNE + 71 * 60, True)
    old = tuple(replace(item, thing="") for item in once.charges)
    assert ledger.settle(replace(once, charges=old), looks) == once.charges


def test_a_machine_that_only_a_killed_up_knew_of_costs_what_others_of_its_type_do() -> None:
    stray = replace(thing(), node="worker-9", item="instance")
    planned = make_cluster(charges=(replace(PLAN, until=JUNE + 9),))
    [charge] = ledger.settle(planned, [see(2, stray)])[1:]
    assert (charge.node, charge.hourly, charge.thing) == ("worker-9", 1.0, "i-1")
    unknown = replace(stray, item="p5.48xlarge")
    [charge] = ledger.settle(make_cluster(charges=()), [see(2, unknown)])
    assert (charge.item, charge.hourly) == ("p5.48xlarge", None)


def test_the_ledger_outlives_a_kill_at_any_byte(tmp_path: Path) -> None:
    lab, path = make_cluster(), tmp_path / ledger.FILE
    ledger.add(tmp_path, lab, [thing()], JUNE)
    first = path.read_bytes()
    ledger.add(tmp_path, lab, [thing("off", until=9)], JUNE + 600)
    whole = path.read_bytes()
    for size in range(len(first), len(whole)):
        path.write_bytes(whole[:size])
        looks = ledger.add(tmp_path, lab, [thing("off", until=9)], JUNE + 660)
        assert [look.things[0].state for look in looks if look.things] == ["on", "off"]
        assert ledger.read_looks(tmp_path) == looks, size
    size = path.stat().st_size
    ledger.add(tmp_path, lab, [thing("off", until=9)], JUNE + 670)
    assert path.stat().st_size == size, "nothing new, and soon after"


def gateways(*rows: tuple[str, float, float | None, dict[str, Any]]) -> Callable[[str], Api]:
    """An account with these NAT gateways: their states, and minutes of their life after JUNE."""

    class Account(Api):
        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return []

        def list_all(self, action: str, key: str, service: str = "ec2", /, **how: Any) -> list[Any]:
            found = [
                {
                    "NatGatewayId": f"nat-{number}",
                    "State": state,
                    "CreateTime": date(made),
                    **({} if gone is None else {"DeleteTime": date(gone)}),
                    **more,
                }
                for number, (state, made, gone, more) in enumerate(rows)
            ]
            return found if action == "describe_nat_gateways" else []

    return Account


def date(minutes: float) -> datetime:
    return datetime.fromtimestamp(JUNE + minutes * 60, timezone.utc)


UNUSED = {"Tags": [{"Key": UNUSED_TAG, "Value": "true"}]}


@pytest.mark.parametrize(
    ("rows", "hours"),
    [
        ([("pending", 10, None, {})], 1),
        ([("available", 1, None, {})], 2),
        ([("deleted", 1, 5, {}), ("available", 10, None, {})], 1 + 2),
        ([("deleted", 1, 5, UNUSED), ("deleted", 9, 50, {})], 1),
        ([("deleted", 1, 2, UNUSED), ("deleted", 3, 4, UNUSED)], 0),
        ([("failed", 1, 9, {"FailureCode": "Gateway.NotAttached"}), ("deleted", 9, 90, {})], 2),
        ([], 0),
    ],
)
def test_each_nat_gateway_costs_its_hours_and_none_that_was_removed_before_it_was_there(
    rows: list[tuple[str, float, float | None, dict[str, Any]]], hours: int
) -> None:
    """Of a cluster that has moved to another zone, or whose `up` was killed."""
    lab = make_cluster(charges=(row("launcher", GATEWAY, JUNE),))
    things = list_things(gateways(*rows)("us-east-1"), lab, None)
    now = JUNE + (100 if len(rows) == 2 else 65) * 60
    settled = replace(lab, charges=ledger.settle(lab, ledger.add(None, lab, things, JUNE + 60)))
    for made in (settled, replace(lab, charges=ledger.settle(settled, [see(60, *things)]))):
        assert sum_dollars(made.charges, now) == pytest.approx(hours * RATES[GATEWAY])
        assert sum(line.count for line in make_receipt(made.charges, now)) == sum(
            item.since != item.until for item in made.charges
        )


@pytest.mark.parametrize(
    ("phase", "why"),
    [(Phase.STOPPED, "by `clusterctl stop`"), (Phase.READY, "by a call of the EC2 API")],
)
def test_who_stopped_a_machine_is_named(phase: Phase, why: str) -> None:
    class Account(Api):
        def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
            return [instance("launcher", state="stopped", why="Client.UserInitiatedShutdown")]

    told = describe_instances(Account("us-east-1"), make_cluster(phase=phase))
    assert told["launcher"] == f"stopped: {why}"
