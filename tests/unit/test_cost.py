"""A receipt from charges: sums, folds, order, and what is unknown."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from clusterctl.core.model import (
    HOURS_PER_MONTH,
    Charge,
    Cluster,
    ClusterSpec,
    NodeGroup,
    Phase,
)
from clusterctl.errors import UsageError
from clusterctl.insight import cost
from clusterctl.machines import charges
from tests.unit import making
from tests.unit.tables import rows

HOUR = 3600.0


charge = partial(making.charge, item="big", hourly=2.0)


def test_dollars_grow_until_the_end() -> None:
    rows = [charge(), charge(until=HOUR), charge(hourly=None)]
    assert cost.sum_dollars(rows, 3 * HOUR) == pytest.approx(6.0 + 2.0)
    assert cost.sum_dollars([], HOUR) == 0


def test_per_hour_counts_what_runs() -> None:
    rows = [charge(), charge(hourly=0.5), charge(until=HOUR, hourly=9.0), charge(hourly=None)]
    assert cost.sum_hourly(rows) == 2.5


def test_unknown_names_each_item_once() -> None:
    rows = [charge(hourly=None, item="b"), charge(), charge(hourly=None, item="a")]
    assert cost.list_unpriced([*rows, *rows]) == ("b", "a")


def test_a_receipt_folds_equal_items_in_the_order_of_parts() -> None:
    rows = [
        charge(part="address", item="IPv4", hourly=0.005),
        charge(part="disk", item="100 GiB", hourly=None),
        charge(part="gateway", until=0.0),  # removed before it was there
        charge(),
        charge(node="worker-2", since=HOUR),
        charge(hourly=3.0),
    ]
    assert cost.make_receipt(rows, 4 * HOUR) == (
        cost.Line("instance", "big", 2, 7.0, 2.0, 14.0),
        cost.Line("instance", "big", 1, 4.0, 3.0, 12.0),
        cost.Line("disk", "100 GiB", 1, 4.0, None, None),
        cost.Line("address", "IPv4", 1, 4.0, 0.005, 0.02),
    )


def test_a_disk_costs_its_price_per_month_in_a_month_of_any_length() -> None:
    """AWS: "43,200 seconds / (86,400 seconds/day * 30-day month)"."""
    january, february, march = 1769904000.0 - 31 * 86400, 1769904000.0, 1769904000.0 + 28 * 86400
    disk = charge(part="disk", hourly=7.3 / HOURS_PER_MONTH, since=january, until=march)
    assert cost.sum_dollars([disk], march) == pytest.approx(14.6)
    half = charge(part="disk", hourly=7.3 / HOURS_PER_MONTH, since=february - 43200, until=march)
    days = cost.sum_between([half], february, february + 86400, march)
    assert days == pytest.approx(7.3 / 28)
    [line] = cost.make_receipt([half], march)
    assert line.dollars == pytest.approx(7.3 * (1 + 0.5 / 31))
    assert cost.sum_between([disk], march, march + 9, march) == 0


def test_a_stopped_cluster_costs_its_disks_and_a_gateway_that_runs() -> None:
    gateway = charge(part="gateway")
    assert cost.render_cost(1.1, True) == "$1.10"
    assert cost.describe_stored([charge(), charge(part="disk")]) == "disks"
    assert cost.describe_stored([charge(), replace(gateway, until=HOUR)]) == "disks"
    assert cost.describe_stored([charge(part="disk"), gateway]) == "disks and NAT gateway"


# -------------------------------------------------------------------------------------------------
# No budget is exceeded, whatever is added and removed: by a bill that shares no code with ours.


NOW = 1770717600.0  # in the shortest month


def wish(workers: int, **cloud: Any) -> ClusterSpec:
    return making.wish(NodeGroup(count=workers, family="cpu"), **cloud)


def spent_elsewhere(dollars: float) -> ClusterSpec:
    return charges.take_off(wish(2, budget=10.0), dollars)


def machines(hours: float) -> tuple[Charge, ...]:
    """Two for a dollar an hour, that have run for so long."""
    since = NOW - hours * HOUR
    return tuple(making.charge(name, since=since) for name in ("launcher", "worker-1"))


def test_what_was_spent_in_other_regions_is_part_of_every_sum() -> None:
    """A plan, more machines, a later deadline, and one region more that was left."""
    now, later = NOW, machines(0)
    whole = charges.limit_life(wish(2, budget=10.0), later, now)
    assert charges.limit_life(spent_elsewhere(4.0), later, now) == pytest.approx(whole - 2 * HOUR)
    twice = charges.take_off(spent_elsewhere(4.0), 2.0)
    assert charges.limit_life(twice, later, now) == pytest.approx(whole - 3 * HOUR)
    assert twice.cloud.budget == 10.0
    with pytest.raises(UsageError, match=r"is spent: \$10.00 in other regions") as no:
        charges.take_off(twice, 4.0)
    assert "name other --regions" in no.value.hint
    assert charges.take_off(wish(2), 5.0).cloud.spent == 5.0, "a later `up` may have a budget"

    end = now + 3.5 * HOUR
    charges.check_until(spent_elsewhere(0.0), machines(1), end, now)
    with pytest.raises(UsageError, match=r"that costs \$11.07, more than --budget 10.00") as no:
        charges.check_until(spent_elsewhere(2.0), machines(1), end, now)
    assert "--budget 11.08" in no.value.hint
    charges.check_until(replaced(spent_elsewhere(2.0), 11.07), machines(1), end, now)
    with pytest.raises(UsageError, match=r"that costs \$11.07"):
        charges.check_until(replaced(spent_elsewhere(2.0), 11.06), machines(1), end, now)
    with pytest.raises(UsageError, match=r"is spent: \$11.00 so far"):
        charges.check_until(spent_elsewhere(9.0), machines(1), end, now)

    dark = (*machines(1), replace(machines(1)[0], hourly=None))
    for spent, enough in ((0.0, True), (2.0, False)):
        there = Cluster(id="lab-1", spec=spent_elsewhere(spent), phase=Phase.READY, created=now)
        there = replace(there, charges=machines(1), deadline=now)
        if enough:
            charges.check_extension(there, end, 9.0)
            charges.check_extension(there, end, 9.93)
            with pytest.raises(UsageError, match="cost") as no:
                charges.check_extension(there, end, 9.95)
            assert "--budget 10.03" in no.value.hint
            there = replace(there, charges=dark, deadline=end)
            charges.check_extension(there, end, 9.0)
            with pytest.raises(UsageError, match="the price of x is unknown") as no:
                charges.check_extension(there, end + 1, 9.0)
            assert "create it again without --budget" in no.value.hint
        else:
            with pytest.raises(UsageError, match=r"that would cost \$11.07"):
                charges.check_extension(there, end, 9.0)
    assert charges.shorten(spent_elsewhere(0.0), machines(1), end, now) == end
    sooner = charges.shorten(spent_elsewhere(2.0), machines(1), end, now)
    assert sooner == pytest.approx(now + 3 * HOUR, abs=150)
    assert charges.shorten(spent_elsewhere(9.9), machines(1), end, now) == now + charges.LEAST
    assert charges.shorten(spent_elsewhere(9.9), dark, end, now) == end, "that is said elsewhere"
    assert charges.shorten(replaced(spent_elsewhere(2.0), 11.063), machines(1), end, now) == end


@rows("spent, hint", "cost.a_budget_that_does_not_last_says_until_when_it_does")
def test_a_budget_that_does_not_last_says_until_when_it_does(spent: float, hint: str) -> None:
    """Of $2 an hour, with two minutes in which machines may outlive their deadline."""
    now = NOW
    with pytest.raises(UsageError, match="more than --budget") as no:
        charges.check_until(spent_elsewhere(spent), machines(1), now + 4 * HOUR, now)
    assert no.value.hint.endswith(hint)


def test_the_least_budget_that_a_refusal_names_is_enough() -> None:
    """A fleet, its disks in February, a NAT gateway, and what was spent before."""
    now = NOW
    hourly = {"instance": 500.0, "disk": 90.0, "gateway": 40.0, "gateway address": 5.0}
    fleet = [charge(part=part, hourly=price, since=now) for part, price in hourly.items()]
    fleet.append(charge(hourly=3.0, since=now - 2 * HOUR, until=now - HOUR))
    with pytest.raises(UsageError, match="would end before they are ready") as no:
        charges.limit_life(wish(2, budget=100.0, spent=2.0), fleet, now)
    found = re.match(r"give at least (\d+\.\d\d), ", no.value.hint)
    assert found, no.value.hint
    least = float(found[1])
    assert charges.limit_life(wish(2, budget=least, spent=2.0), fleet, now) >= charges.SHORTEST
    with pytest.raises(UsageError):
        charges.limit_life(wish(2, budget=least - 0.02, spent=2.0), fleet, now)
    alone = [charge(hourly=5.0, since=now)]
    assert charges.limit_life(wish(2, budget=1.0), alone, now) == charges.SHORTEST


def test_a_nat_gateway_is_paid_until_it_is_gone() -> None:
    """Two minutes after the deadline at the latest, and its address a quarter of an hour."""
    end = HOUR - 60
    parts = [
        charge(part="instance", hourly=3.0),
        charge(part="gateway", hourly=0.5),
        charge(part="gateway address", hourly=0.2),
    ]
    assert charges.sum_until_removed(parts, end) == pytest.approx(
        3.0 * end / HOUR + 2 * 0.5 + 0.2 * (end + 900) / HOUR
    )
    dark = charge(part="gateway", hourly=None)
    assert charges.estimate_after_deadline([*parts, dark]) == pytest.approx(
        0.5 * (1 + 120 / HOUR) + 0.2 * 900 / HOUR
    )
    assert charges.estimate_overrun(parts) == pytest.approx(3.0 * 120 / HOUR)
    fresh = [replace(part, since=end) for part in parts]
    assert charges.limit_life(wish(2, budget=9.0), fresh, end) == pytest.approx(
        charges.compute_affordable_time(9.0, fresh, 0.0)
    ), "no hour of it counts twice"


def replaced(spec: ClusterSpec, dollars: float) -> ClusterSpec:
    return replace(spec, cloud=replace(spec.cloud, budget=dollars))
