"""The ledger of what was seen, and the receipt that follows from it: never below the bill of an
account that shares no code with ours, whatever is killed, and equal to it where all was seen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from clusterctl.core.model import GATEWAY, GATEWAY_ADDRESS, Charge, Cluster, Phase, Thing
from clusterctl.insight.cost import make_receipt, sum_dollars
from clusterctl.machines import ledger
from clusterctl.machines.ec2.api import UNUSED_TAG, Api, Instance
from clusterctl.machines.ec2.ledger import list_things
from clusterctl.machines.ec2.prices import merge
from tests.unit.making import cluster as make_cluster

JUNE = 1_782_000_000.0
"""In a month of thirty days, with weeks to go."""
HOUR = 3600.0
SHOWN = 3300.0
"""Seconds for which this account shows what has ended."""
RATES = {"instance": 1.0, "disk": 0.5, "address": 0.25, GATEWAY: 0.045, GATEWAY_ADDRESS: 0.005}


@dataclass
class Machine:
    """`runs`: from each start to the stop or end after it, in whole seconds, as AWS tells them."""

    id: str
    node: str
    runs: list[list[float]]
    gone: float = math.inf
    untold: bool = False
    """It shut itself down: EC2 shows that, but not when."""

    @property
    def runs_now(self) -> bool:
        return self.runs[-1][1] == math.inf

    def switch(self, on: bool, now: float) -> None:
        if on:
            self.runs.append([now, math.inf])
        elif self.runs_now:
            self.runs[-1][1] = now

    def cost(self, now: float) -> float:
        ran = sum(max(60.0, min(end, now) - since) for since, end in self.runs) / HOUR
        kept = max(60.0, min(self.gone, now) - self.runs[0][0])
        disk = RATES["disk"] * 730 / (30 * 86400) * kept
        return (RATES["instance"] + RATES["address"]) * ran + disk

    def show(self) -> Thing:
        since, end = self.runs[-1]
        gone = self.gone < math.inf
        return Thing(
            id=self.id,
            node=self.node,
            state="ended" if gone else "on" if self.runs_now else "off",
            since=since,
            until=None if self.runs_now or self.untold else self.gone if gone else end,
            born=self.runs[0][0],
            lasts=not (self.runs_now or gone),
        )


@dataclass
class Gateway:
    id: str
    since: float
    gone: float = math.inf
    address: float = math.inf

    def cost(self, now: float) -> float:
        hours = (min(self.gone, now) - self.since) / HOUR
        address = (min(self.address, now) - self.since + 5) / HOUR
        whole = max(1, math.ceil(hours)) * RATES[GATEWAY]
        return whole + RATES[GATEWAY_ADDRESS] * max(1 / 60, address)

    def show(self, now: float) -> list[Thing]:
        found = []
        if now < self.gone + SHOWN:
            gone = self.gone < math.inf
            found.append(
                Thing(
                    id=self.id,
                    node="launcher",
                    part=GATEWAY,
                    state="ended" if gone else "on",
                    since=self.since,
                    until=self.gone if gone else None,
                    lasts=True,
                )
            )
        if now < self.address:
            id = f"address of {self.id}"
            found.append(Thing(id=id, node="launcher", part=GATEWAY_ADDRESS, lasts=True))
        return found


@dataclass
class Person:
    """Who runs commands, with a clock that is wrong by some seconds. Every command may be killed at
    any moment, and with it the line of the ledger that it writes at any byte."""

    chance: random.Random
    folder: Path
    now: float = JUNE
    machines: list[Machine] = field(default_factory=list)
    gateways: list[Gateway] = field(default_factory=list)
    record: Cluster | None = None

    def __post_init__(self) -> None:
        self.skew = self.chance.uniform(-20, 20)
        self.private = self.chance.random() < 0.3
        self.deadline = self.now + self.chance.choice((6, 30)) * HOUR

    @property
    def clock(self) -> float:
        return self.now + self.skew

    @property
    def alive(self) -> list[Machine]:
        return [one for one in self.machines if one.gone == math.inf]

    def bill(self) -> float:
        return sum(one.cost(self.now) for one in (*self.machines, *self.gateways))

    def wait(self, seconds: float) -> None:
        """What runs at the deadline ends itself within two minutes of it."""
        end = self.now + int(seconds)
        for one in self.alive:
            over = self.deadline + self.chance.randrange(120)
            if one.runs_now and over <= end:
                self.terminate(one, max(over, one.runs[-1][0]))
                one.untold = self.chance.random() < 0.5
        self.now = end

    def terminate(self, one: Machine, when: float) -> None:
        one.switch(False, when)
        one.gone = when

    def look(self, torn: bool = False) -> tuple[ledger.Sighting, ...]:
        shown = [m.show() for m in self.machines if self.now < m.gone + SHOWN]
        network = [thing for one in self.gateways for thing in one.show(self.now)]
        cluster = self.record or make_cluster()
        path = self.folder / ledger.FILE
        before = path.stat().st_size if path.exists() else 0
        looks = ledger.add(self.folder, cluster, (*shown, *network), self.clock)
        if torn:
            whole = path.read_bytes()
            path.write_bytes(whole[: self.chance.randint(before, len(whole))])
        return looks

    def settle(self, torn: bool = False) -> Cluster:
        assert self.record
        return replace(self.record, charges=ledger.settle(self.record, self.look(torn)))

    def up(self, workers: int, killed: bool) -> None:
        names = ["launcher", *(f"worker-{n}" for n in range(1, workers + 1))]
        old = self.settle().charges if self.record else ()
        parts = [(name, part) for name in names for part in ("instance", "disk", "address")]
        if self.private:
            parts += [("launcher", GATEWAY), ("launcher", GATEWAY_ADDRESS)]
        running = {one.node for one in self.alive if one.runs_now}
        stopped = {one.node for one in self.alive if not one.runs_now}
        new = tuple(row(name, part, self.clock) for name, part in parts)
        kept = [i for i in new if i.node in running or i.part in ("disk", GATEWAY, GATEWAY_ADDRESS)]
        fresh = [i for i in new if i.node not in running and i not in kept]
        base = self.record or make_cluster(charges=(), nodes=())
        charges = merge(old, (*kept, *fresh), self.clock)
        self.record = replace(
            base, phase=Phase.CREATING, stopping=False, charges=charges, deadline=self.deadline
        )
        deeds = [
            *(
                lambda one=one: one.switch(True, self.now)
                for one in self.alive
                if one.node in stopped
            ),
            *(lambda n=n: self.launch(n) for n in names if n not in running | stopped),
            *(
                lambda one=one: self.terminate(one, self.now)
                for one in self.alive
                if one.node not in names
            ),
        ]
        if self.private and not [one for one in self.gateways if one.gone == math.inf]:
            made = len(self.gateways)
            deeds.insert(0, lambda: self.gateways.append(Gateway(f"nat-{made}", self.now)))
        if not self.work(deeds, killed):
            return
        self.record = replace(self.settle(), phase=Phase.READY)

    def launch(self, name: str) -> None:
        """Perhaps where there is no room for the others: then it is made again elsewhere."""
        for lost in (True, False) if self.chance.random() < 0.2 else (False,):
            self.machines.append(Machine(f"i-{len(self.machines)}", name, [[self.now, math.inf]]))
            self.wait(self.chance.randrange(5, 90))
            if lost and self.machines[-1].runs_now:
                self.look()  # as `up` does before it ends what has no room
                self.terminate(self.machines[-1], self.now)
                self.wait(5)

    def work(self, deeds: list, killed: bool) -> bool:
        """Whether all is done: some of it, where the command is killed."""
        for deed in deeds:
            if killed and self.chance.random() < 0.3:
                return False
            self.wait(self.chance.randrange(1, 60))
            if self.chance.random() < 0.1:
                self.look(torn=True)
            deed()
        return not killed

    def stop(self, killed: bool) -> None:
        assert self.record
        self.record = replace(self.settle(), stopping=True)
        deeds = [lambda one=one: one.switch(False, self.now) for one in self.alive]
        if self.work(deeds, killed):
            self.record = replace(self.settle(), stopping=False, phase=Phase.STOPPED)

    def lose(self) -> None:
        """EC2 takes one, or somebody ends it."""
        if going := self.alive:
            self.terminate(self.chance.choice(going), self.now)

    def down(self, killed: bool) -> bool:
        assert self.record
        self.record = replace(self.settle(), phase=Phase.DELETING)
        deeds = [lambda one=one: self.terminate(one, self.now) for one in self.alive]
        deeds += [
            lambda one=one: self.remove(one) for one in self.gateways if one.address == math.inf
        ]
        if not self.work(deeds, killed):
            return False
        self.record = self.settle()
        return True

    def remove(self, one: Gateway) -> None:
        one.gone = min(one.gone, self.now)
        self.wait(20)
        one.address = self.now

    def step(self) -> None:
        killed = self.chance.random() < 0.3
        deed = self.chance.choice(("up", "up", "stop", "lose", "status", "down"))
        if deed == "up":
            self.up(self.chance.randrange(1, 4), killed)
        elif deed == "stop":
            self.stop(killed)
        elif deed == "lose":
            self.lose()
        elif deed == "down":
            self.down(killed=True)
        else:
            self.settle(torn=killed)


def row(node: str, part: str, since: float) -> Charge:
    return Charge(node=node, part=part, item=part, hourly=RATES[part], source="", since=since)


@pytest.mark.parametrize("block", range(8))
def test_a_receipt_is_never_below_the_bill_and_equal_to_it_where_all_was_seen(
    block: int, tmp_path: Path
) -> None:
    exact = 0
    for seed in range(block * 40, block * 40 + 40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        person = Person(random.Random(seed), folder)
        person.up(2, killed=False)
        for _ in range(person.chance.randrange(8)):
            person.wait(person.chance.choice((3, 400, 3000, 9 * HOUR)))
            if person.clock > person.deadline:
                break
            person.step()
        person.wait(person.chance.choice((3, 3000, 50 * HOUR)))
        person.down(killed=False)
        assert person.record
        charges = person.record.charges
        assert all(item.until is not None for item in charges), seed
        receipt, bill = sum_dollars(charges, person.now), person.bill()
        assert receipt >= bill - 1e-6, (seed, receipt, bill)
        if not any(item.unseen for item in charges):
            exact += 1
            assert receipt == pytest.approx(bill, abs=0.01), seed
    assert exact > 5


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


def test_what_was_seen_is_counted_as_it_was_and_the_rest_as_long_as_it_can_have_been() -> None:
    at = thing()
    assert settle([], PLAN) == [("instance", 0, None, False)], "nobody has looked"
    assert settle([see(2)], PLAN) == [], "it was never made"
    assert settle([see(300)], PLAN) == [("instance", 0, 301, True)], "it may have been"
    assert settle([see(900)], PLAN) == [("instance", 0, 482, True)], "it ended itself by then"
    assert settle([see(2, at)], PLAN) == [("instance", 1, None, False)]
    ended = see(9, thing("ended", until=8))
    assert settle([see(2, at), ended], PLAN) == [("instance", 1, 8, False)]
    lost = see(99, gone=("i-1",))
    assert settle([see(2, at), lost], PLAN) == [("instance", 1, 100, True)]
    assert settle([see(2, at), see(900, gone=("i-1",))], PLAN) == [("instance", 1, 482, True)]
    untold = [see(2, at), see(520, thing("ended"))]
    assert settle(untold, PLAN) == [("instance", 1, 482, True)], "EC2 tells no time of that"
    later = [see(2, at), see(500), see(900, gone=("i-1",))]
    assert settle(later, PLAN) == [("instance", 1, 901, True)], "it has outlived its deadline"
    assert settle([see(2, at), lost, see(100, at)], PLAN) == [("instance", 1, None, False)]


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
