"""What AWS would charge, from what the simulator was asked and what became of it.

It shares nothing with clusterctl's receipts but the price list. Sources of the rules:

- "Amazon EC2 On-Demand Pricing": Linux by the second, 60 at least for each start.
- EC2 User Guide, "Amazon EC2 instance state changes": billed while `running`; not while `pending`,
  `stopping`, `stopped`, `shutting-down`. Instances run here as soon as they are asked for.
- "Amazon EBS pricing": by the second, 60 at least, until the volume is deleted; a month is as long
  as the calendar says: "43,200 seconds / (86,400 seconds/day * 30-day month)".
- "Amazon VPC pricing": a NAT gateway by the hour that has begun; a public IPv4 address by the
  second, 60 at least, while it is in use.
"""

from __future__ import annotations

import calendar
import math
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

MINUTE, HOUR = 60.0, 3600.0


@dataclass
class Use:
    """Something that is charged from `since` to `until`; None: it still is. `price`: USD an hour;
    of a disk, a month."""

    id: str
    cluster: str
    node: str
    part: str
    item: str
    price: float
    since: float
    until: float | None = None
    unlimited: bool = False
    """Whether surplus CPU credits would be charged, too."""

    def count_seconds(self, now: float) -> float:
        return (now if self.until is None else self.until) - self.since

    def compute_dollars(self, now: float) -> float:
        seconds = max(MINUTE, self.count_seconds(now))
        if self.part == "gateway":
            seconds = max(1, math.ceil(seconds / HOUR)) * HOUR
        if self.part != "disk":
            return self.price * seconds / HOUR
        return self.price * _months(self.since, self.since + seconds)


def _months(since: float, until: float) -> float:
    """Calendar months (UTC) from one time to another."""
    months = 0.0
    while since < until:
        year, month = time.gmtime(since)[:2]
        begins = calendar.timegm((year, month, 1, 0, 0, 0))
        length = calendar.monthrange(year, month)[1] * 86400
        end = min(until, begins + length)
        months += (end - since) / length
        since = end
    return months


class Bill:
    """Called by all threads that answer, and by that of the machines."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._lock = threading.Lock()

    def knows(self, id: str) -> bool:
        with self._lock:
            return any(use.id == id for use in self._uses)

    def begin(self, use: Use) -> None:
        with self._lock:
            self._uses.append(use)

    def end(self, id: str, *parts: str, when: float) -> None:
        with self._lock:
            for use in self._uses:
                if use.id == id and use.part in parts and use.until is None:
                    use.until = when

    def resume(self, id: str, when: float, address: bool) -> None:
        """An instance that was stopped is started: at the price that it had."""
        with self._lock:
            before = {use.part: use for use in self._uses if use.id == id}
            for part, use in before.items():
                if use.until is not None and (part == "instance" or address):
                    self._uses.append(Use(**{**asdict(use), "since": when, "until": None}))

    def clear(self) -> None:
        with self._lock:
            self._uses.clear()

    def rows(self) -> list[dict[str, Any]]:
        """Every use, with the seconds and USD that it has come to."""
        now = time.time()
        with self._lock:
            return [
                {
                    **asdict(use),
                    "seconds": use.count_seconds(now),
                    "dollars": use.compute_dollars(now),
                }
                for use in self._uses
            ]
