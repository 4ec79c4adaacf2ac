"""The bill of the simulated EC2 by itself: by the second, at least a minute, calendar months."""

from __future__ import annotations

import calendar
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ec2 import receipts
from tests.sim.ec2.bill import Bill, Use

MARCH = float(calendar.timegm((2026, 3, 1, 0, 0, 0)))
HOUR, DAY = 3600.0, 86400.0
MACHINE = Use("i-1", "lab-1", "worker-1", "instance", "t3.xlarge", price=1.0, since=MARCH)


def test_a_start_is_a_minute_at_least() -> None:
    bill = Bill()
    bill.begin(MACHINE)
    bill.begin(replace(MACHINE, part="address", price=0.5))
    bill.end("i-1", "instance", "address", when=MARCH + HOUR)
    bill.resume("i-1", MARCH + 2 * HOUR, address=True)
    bill.end("i-1", "instance", "address", when=MARCH + 2 * HOUR + 6)
    parts = [(row["part"], row["seconds"], row["dollars"]) for row in bill.rows()]
    assert parts == [
        ("instance", 3600, 1.0),
        ("address", 3600, 0.5),
        ("instance", 6, pytest.approx(1 / 60)),
        ("address", 6, pytest.approx(0.5 / 60)),
    ]


def test_a_disk_has_a_price_for_each_calendar_month() -> None:
    """AWS's example: 0.08 * 2,000 GB * 43,200 seconds / (86,400 seconds * 30 days) is $2.67."""
    disk = replace(MACHINE, part="disk", price=0.08 * 2000, since=MARCH + 31 * DAY)
    assert replace(disk, until=disk.since + 43200).compute_dollars(0) == pytest.approx(
        2.667, abs=0.001
    )
    over = replace(disk, price=1.0, since=MARCH - 14 * DAY, until=MARCH + 31 * DAY)
    assert over.compute_dollars(0) == pytest.approx(1.5)


@pytest.mark.parametrize(("machines", "noticed"), [(2, False), (8, True)])
def test_a_receipt_that_differs_by_a_cent_is_noticed(
    machines: int, noticed: bool, tmp_path: Path
) -> None:
    """Seconds for each machine, which are allowed, add up."""
    bill, charges = Bill(), []
    for number in range(machines):
        bill.begin(replace(MACHINE, id=f"i-{number}", node=f"worker-{number}"))
        bill.end(f"i-{number}", "instance", when=MARCH + HOUR)
        one = {"node": f"worker-{number}", "part": "instance", "item": "t3.xlarge", "source": ""}
        charges.append({**one, "hourly": 1.0, "since": MARCH, "until": MARCH + HOUR + 10})
    past = tmp_path / "past" / "lab-1" / "cluster.json"
    past.parent.mkdir(parents=True)
    past.write_text(json.dumps({"id": "lab-1", "charges": charges}))
    assert bool(receipts.differences(tmp_path, bill.rows())) is noticed
    assert receipts.differences(tmp_path, bill.rows(), receipts.SHUTDOWN) == []


def test_a_cluster_without_a_receipt_is_noticed(tmp_path: Path) -> None:
    bill = Bill()
    bill.begin(MACHINE)
    assert receipts.differences(tmp_path, bill.rows()) == ["lab-1: no receipt"]
