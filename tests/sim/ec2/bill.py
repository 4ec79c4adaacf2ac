"""What AWS would charge: seconds that the simulator has counted, times its own prices.

It shares nothing with clusterctl's receipts but the price list. Source of the rules: "Amazon EC2
On-Demand Pricing", "Amazon EBS pricing" and "Amazon VPC pricing": by the second, a minute at least;
an instance and its address while it is `pending` or `running`, a disk while it exists.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timezone
from typing import Any

from tests.sim.ec2 import market

MINUTE, HOUR, MONTH = 60.0, 3600.0, 730 * 3600.0
_RUNS = ("pending", "running")
_EXISTS = (*_RUNS, "stopping", "stopped")


@dataclass
class Meter:
    """Seconds of something that is switched on and off."""

    began: float | None
    counted: list[float] = field(default_factory=list)

    def turn(self, on: bool, now: float) -> None:
        if on and self.began is None:
            self.began = now
        elif not on and self.began is not None:
            self.counted.append(now - self.began)
            self.began = None

    def seconds(self, now: float) -> float:
        running = [now - self.began] if self.began is not None else []
        return sum(max(MINUTE, some) for some in (*self.counted, *running))


@dataclass
class Account:
    """One instance with its disks and its address. `rates`: USD per second."""

    cluster: str
    rates: dict[str, float]
    meters: dict[str, Meter]

    def dollars(self, now: float) -> float:
        return sum(
            rate * (_hours if part == "gateway" else float)(self.meters[part].seconds(now))
            for part, rate in self.rates.items()
        )


def _hours(seconds: float) -> float:
    """A NAT gateway is billed by the hour that has begun ("Amazon VPC pricing")."""
    return math.ceil(seconds / HOUR) * HOUR


class Bill:
    """`watch` belongs to one thread; the others may be called by any."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._lock = threading.Lock()

    def watch(
        self,
        instances: Iterable[Any],
        prices: Mapping[str, float | None],
        gateways: Iterable[Any] = (),
    ) -> None:
        """Looks at all instances and NAT gateways there are. `prices`: those that differ from the
        usual ones."""
        now = time.time()
        with self._lock:
            for one in instances:
                launched = one.launch_time.replace(tzinfo=timezone.utc).timestamp()
                if one.id not in self._accounts:
                    self._accounts[one.id] = _open(one, launched, prices)
                for part, meter in self._accounts[one.id].meters.items():
                    meter.turn(one.state in (_EXISTS if part == "disk" else _RUNS), now)

            for one in gateways:
                on = one.state == "available"
                if one.id not in self._accounts and on:
                    rates = {"gateway": market.NAT["NatGateway-Hours"][1] / HOUR}
                    rates["address"] = market.ADDRESS / HOUR
                    tags = {tag["key"]: tag["value"] for tag in one.get_tags()}
                    meters = {part: Meter(now) for part in rates}
                    self._accounts[one.id] = Account(
                        tags.get("clusterctl:cluster", ""), rates, meters
                    )
                if one.id in self._accounts:
                    for meter in self._accounts[one.id].meters.values():
                        meter.turn(on, now)

    def clear(self) -> None:
        with self._lock:
            self._accounts.clear()

    def total(self) -> dict[str, float]:
        """USD by cluster, until now."""
        now = time.time()
        found: dict[str, float] = {}
        with self._lock:
            for account in self._accounts.values():
                found[account.cluster] = found.get(account.cluster, 0.0) + account.dollars(now)
        return found


def _open(one: Any, launched: float, prices: Mapping[str, float | None]) -> Account:
    more = 1.0 if one.ec2_backend.region_name == "us-east-1" else 1.1
    tags = {tag["key"]: tag["value"] for tag in one.get_tags()}
    hourly = {**market.PRICES, **prices}.get(one.instance_type) or 0.0
    zones = [zone.name for zone in one.ec2_backend.describe_availability_zones()]
    spot = one.lifecycle == "spot"
    hourly *= market.spot_part(zones.index(one.placement.zone)) if spot else more
    disks = [disk.volume_id for disk in one.block_device_mapping.values()]
    gib = sum(one.ec2_backend.volumes[id].size for id in disks if id in one.ec2_backend.volumes)
    rates = {"instance": hourly / HOUR, "disk": market.GP3 * more * gib / MONTH}
    if one.public_ip_address:
        rates["address"] = market.ADDRESS / HOUR
    meters = {part: Meter(launched) for part in rates}
    return Account(tags.get("clusterctl:cluster", ""), rates, meters)
