"""What the parts of a cluster cost: plain values, and how providers bill them.

Standard library only. Times are seconds since the epoch (UTC), prices are US dollars.
"""

from __future__ import annotations

import calendar
import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache

GATEWAY, GATEWAY_ADDRESS = "gateway", "gateway address"
NETWORK_PARTS = (GATEWAY, GATEWAY_ADDRESS)
"""Parts of a cluster's network that cost money by the hour: a NAT gateway, and its address."""


HOURS_PER_MONTH = 730.0
"""Of an average month. Source: AWS Pricing Calculator FAQs."""


@lru_cache(maxsize=64)
def _count_month_hours(start: float, end: float) -> float:
    """The hours between two times, as parts of their calendar months (UTC) of HOURS_PER_MONTH:
    a price per month is due in each one, however long. Source: "Amazon EBS pricing", examples."""
    hours = 0.0
    while start < end:
        year, month = time.gmtime(start)[:2]
        length = calendar.monthrange(year, month)[1] * 86400
        over = min(end, calendar.timegm((year, month, 1, 0, 0, 0)) + length)
        hours += HOURS_PER_MONTH * (over - start) / length
        start = over
    return hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A machine, a NAT gateway or its address, as whoever bills it shows it.

    `born`: since when it is there; `since`: when it started last; `until`: since when it has not
    run. None: that is not told. `item` and `hourly`, its type and price, only where they may differ
    from what was planned.
    """

    id: str
    node: str
    part: str = "instance"
    state: str = "on"
    """`on`, `off` (its disk is there, and costs money) or `ended`."""
    since: float | None = None
    until: float | None = None
    born: float | None = None
    lasts: bool = False
    """Whether nothing ends it at the deadline."""
    item: str = ""
    hourly: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one part of one node costs. `hourly` in US dollars, None: unknown; of a disk, in a month
    of HOURS_PER_MONTH.

    `part` is `instance`, `disk` or `address`, or one of NETWORK_PARTS, which are counted as the
    launcher's and end with the cluster; `until` None: it still runs. `source` says where the
    price is from. `thing`: which one it is of, "" while it is only planned; `unseen`: nobody saw
    when it ended, and `until` is the latest that it can be.
    """

    node: str
    part: str
    item: str
    hourly: float | None
    source: str
    since: float
    until: float | None = None
    thing: str = ""
    unseen: bool = False

    def count_seconds(self, now: float) -> float:
        """How long it is billed until `now`: EC2 bills a minute of an instance at least, and every
        hour of a NAT gateway that has begun (https://aws.amazon.com/vpc/pricing/). One that ended
        as it began was removed before it was there."""
        lived = (now if self.until is None else self.until) - self.since
        if self.part == GATEWAY:
            if self.until == self.since:
                return 0.0
            return max(1, math.ceil(lived / 3600)) * 3600.0
        return max(60.0, lived)

    def compute_dollars(self, now: float) -> float:
        """What it has cost until `now`; 0 where the price is unknown."""
        return self.sum_between(self.since, self.since + self.count_seconds(now))

    def sum_between(self, start: float, end: float) -> float:
        """What it costs from one time to a later one, as long as it is billed."""
        if end <= start:
            return 0.0
        hours = _count_month_hours(start, end) if self.part == "disk" else (end - start) / 3600
        return (self.hourly or 0.0) * hours

    def end_at(self, when: float) -> Charge:
        """The same, as one that has ended then if it had not before."""
        return self if self.until is not None else replace(self, until=max(self.since, when))
