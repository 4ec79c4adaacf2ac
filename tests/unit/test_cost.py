"""A receipt from charges: sums, folds, order, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.core.model import HOURS_PER_MONTH, Charge
from clusterctl.insight import cost

HOUR = 3600.0


def charge(**changes: Any) -> Charge:
    values = {"node": "worker-1", "part": "instance", "item": "big", "hourly": 2.0, "source": ""}
    return Charge(**{**values, "since": 0.0, **changes})


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
    assert cost.describe_stored([charge(), charge(part="disk")]) == "disks"
    assert cost.describe_stored([charge(), replace(gateway, until=HOUR)]) == "disks"
    assert cost.describe_stored([charge(part="disk"), gateway]) == "disks and NAT gateway"
