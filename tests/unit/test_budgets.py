"""No budget is exceeded, whatever is added and removed: by a bill that shares no code with ours."""

from __future__ import annotations

import calendar
import math
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.charge_model import Charge
from clusterctl.errors import UsageError
from clusterctl.model import CloudSpec, Cluster, ClusterSpec, NodeGroup, Phase
from clusterctl.providers.ec2.answers import Instance
from clusterctl.providers.ec2.provider import Ec2Provider
from clusterctl.providers.shared import budget
from tests.unit.making import node
from tests.unit.test_ec2_again import Market

HOUR = 3600.0
MACHINE = {"t3.micro": 0.0104, "c7i.xlarge": 0.1785}
GIB, ADDRESS, GATEWAY = 0.08, 0.005, 0.045
STARTS = tuple(
    float(calendar.timegm(time.strptime(text, "%Y-%m-%d %H")))
    for text in ("2026-02-10 10", "2026-05-31 20", "2026-12-31 22")
)
"""In the shortest month, and where a disk's price changes on the way."""


class Shop(Market):
    """`born`: when each machine that runs was started."""

    born: Mapping[str, float] = {}

    def find_price(self, instance_type: str) -> float:
        return MACHINE[instance_type]

    def find_disk_price(self) -> float:  # type: ignore[override]
        return GIB

    def find_address_price(self) -> float:  # type: ignore[override]
        return ADDRESS

    def find_nat_price(self) -> float:
        return GATEWAY

    def find_nat_traffic_price(self) -> float:
        return 0.045

    def list_instances(self, *filters: Any, **more: Any) -> list[Instance]:
        found = [replace(one, spot=False) for one in super().list_instances(*filters)]
        return [replace(one, launched=self.born[one.node], id=self.id(one.node)) for one in found]

    def id(self, name: str) -> str:
        return f"i-{name}-{self.born[name]:.0f}"


class Bill:
    """What AWS charges for a cluster with such disks."""

    def __init__(self, start: float, disk: int, private: bool) -> None:
        self.start, self.disk, self.private = start, disk or 30, private
        self.past = 0.0

    def machine(self, name: str, since: float, until: float) -> float:
        launcher = name == "launcher"
        seconds = max(60.0, until - since)
        rate = MACHINE["t3.micro" if launcher else "c7i.xlarge"]
        rate += ADDRESS if launcher or not self.private else 0.0
        gib = 30 if launcher else self.disk
        stored = sum(
            gib * GIB * min(60.0, seconds - passed) / HOUR / _month_hours(since + passed)
            for passed in range(0, math.ceil(seconds), 60)
        )
        return rate * seconds / HOUR + stored

    def total(self, born: Mapping[str, float], deadline: float) -> float:
        """If nobody runs `down`: machines end at the deadline, the gateway a minute later, and its
        address after a quarter of an hour."""
        ours = sum(self.machine(name, since, deadline) for name, since in born.items())
        if self.private:
            ours += GATEWAY * math.ceil((deadline + 60 - self.start) / HOUR)
            ours += ADDRESS * (deadline + 900 - self.start) / HOUR
        return self.past + ours


def _month_hours(when: float) -> float:
    moment = time.gmtime(when)
    return calendar.monthrange(moment.tm_year, moment.tm_mon)[1] * 24.0


def wish(workers: int, **cloud: Any) -> ClusterSpec:
    groups = (NodeGroup(count=workers, family="cpu"),)
    cloud = {"region": "us-east-1", **cloud}
    return ClusterSpec(name="lab", provider="ec2", groups=groups, cloud=CloudSpec(**cloud))


def record(shop: type[Shop], cluster: Cluster, names: Iterable[str], now: float) -> Cluster:
    """The cluster with these machines, of which those that were not there start now."""
    shop.born = {name: shop.born.get(name, now) for name in names}
    shop.living = tuple(shop.born)
    api = shop("us-east-1")
    return replace(
        cluster, nodes=tuple(replace(node(name), machine=api.id(name)) for name in names)
    )


@pytest.mark.usefixtures("terraform")
@pytest.mark.parametrize("seed", range(12))
def test_a_cluster_that_grows_and_shrinks_keeps_its_budget(seed: int) -> None:
    chance = random.Random(seed)
    start, private = chance.choice(STARTS), seed % 2 == 0
    disk, budget = chance.choice((0, 500, 2000)), chance.choice((1.5, 2.0, 4.0, 9.0))

    class Fresh(Shop):
        pass

    shown = [start]
    provider = Ec2Provider(Fresh, clock=lambda: shown[0], my_address=lambda: "203.0.113.9")
    first = wish(chance.choice((1, 2, 4)), private=private, disk=disk, budget=budget)
    plan = provider.plan(replace(first, ttl=chance.choice((0, 2, 30)) * HOUR))
    assert plan.spec
    assert plan.deadline
    cluster = Cluster(
        id="lab-1", spec=plan.spec, phase=Phase.READY, created=start, deadline=plan.deadline
    )
    cluster = record(Fresh, replace(cluster, charges=plan.charges), plan.nodes, start)
    bill = Bill(start, disk, private)
    assert plan.deadline > start + 600
    assert bill.total(Fresh.born, plan.deadline) <= budget + 0.005
    for _ in range(3):
        shown[0] += chance.uniform(300, 2000)
        if shown[0] > plan.deadline - 700:
            break
        asked = chance.choice((budget, budget * 1.5))
        wanted = replace(
            cluster.spec,
            groups=(NodeGroup(count=chance.choice((1, 2, 3, 5, 8)), family="cpu"),),
            cloud=replace(cluster.spec.cloud, budget=asked),
        )
        try:
            plan = provider.plan(wanted, cluster)
        except UsageError:
            continue  # more than the budget
        assert plan.spec
        assert plan.deadline == cluster.deadline
        gone = Fresh.born.keys() - set(plan.nodes)
        bill.past += sum(bill.machine(name, Fresh.born[name], shown[0]) for name in gone)
        budget, cluster = asked, replace(cluster, spec=plan.spec, charges=plan.charges)
        cluster = record(Fresh, cluster, plan.nodes, shown[0])
    assert cluster.deadline
    total = bill.total(Fresh.born, cluster.deadline)
    assert total <= budget + 0.005
    ours = sum(item.compute_dollars(cluster.deadline) for item in cluster.charges)
    after = GATEWAY + ADDRESS / 4 if private else 0.0
    assert total - after - 0.005 <= ours <= total + 0.005


def spent_elsewhere(dollars: float) -> ClusterSpec:
    return budget.take_off(wish(2, budget=10.0), dollars)


def machines(hours: float) -> tuple[Charge, ...]:
    """Two for a dollar an hour, that have run for so long."""
    since = STARTS[0] - hours * HOUR
    return tuple(
        Charge(node=name, part="instance", item="x", hourly=1.0, source="", since=since)
        for name in ("launcher", "worker-1")
    )


def test_what_was_spent_in_other_regions_is_part_of_every_sum() -> None:
    """A plan, more machines, a later deadline, and one region more that was left."""
    now, later = STARTS[0], machines(0)
    whole = budget.limit_life(wish(2, budget=10.0), later, now)
    assert budget.limit_life(spent_elsewhere(4.0), later, now) == pytest.approx(whole - 2 * HOUR)
    twice = budget.take_off(spent_elsewhere(4.0), 2.0)
    assert budget.limit_life(twice, later, now) == pytest.approx(whole - 3 * HOUR)
    assert twice.cloud.budget == 10.0
    with pytest.raises(UsageError, match=r"--budget \$10.00 is spent: \$11.00 in other regions"):
        budget.take_off(twice, 5.0)
    assert budget.take_off(wish(2), 5.0).cloud.spent == 5.0, "a later `up` may have a budget"

    end = now + 3.5 * HOUR
    budget.check_until(spent_elsewhere(0.0), machines(1), end, now)
    with pytest.raises(UsageError, match=r"that costs \$11.07, more than --budget 10.00") as no:
        budget.check_until(spent_elsewhere(2.0), machines(1), end, now)
    assert "--budget 11.08" in no.value.hint
    budget.check_until(replaced(spent_elsewhere(2.0), 11.08), machines(1), end, now)
    with pytest.raises(UsageError, match=r"is spent: \$11.00 so far"):
        budget.check_until(spent_elsewhere(9.0), machines(1), end, now)

    for spent, enough in ((0.0, True), (2.0, False)):
        there = Cluster(id="lab-1", spec=spent_elsewhere(spent), phase=Phase.READY, created=now)
        there = replace(there, charges=machines(1), deadline=now)
        if enough:
            budget.check_extension(there, end, 9.0)
        else:
            with pytest.raises(UsageError, match=r"that would cost \$11.07"):
                budget.check_extension(there, end, 9.0)
    assert budget.shorten(spent_elsewhere(0.0), machines(1), end, now) == end
    sooner = budget.shorten(spent_elsewhere(2.0), machines(1), end, now)
    assert sooner == pytest.approx(now + 3 * HOUR, abs=150)
    assert budget.shorten(spent_elsewhere(9.9), machines(1), end, now) == now + budget.LEAST


def replaced(spec: ClusterSpec, dollars: float) -> ClusterSpec:
    return replace(spec, cloud=replace(spec.cloud, budget=dollars))
