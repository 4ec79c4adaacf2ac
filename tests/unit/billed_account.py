"""An account of AWS whose machines cost money: what EC2 tells of it, and its bill, which shares no
code with ours."""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.core.model import Cluster, Reporter
from clusterctl.machines.ec2 import prices
from clusterctl.machines.ec2.api import LIVING, Instance
from clusterctl.machines.ec2.provider import Ec2Provider
from tests.unit.fake_ec2 import instance
from tests.unit.test_ec2_zones import Market

HOUR = 3600.0
MACHINE = {"t3.micro": 0.0104, "c7i.xlarge": 0.1785}
SPOT = {"us-east-1a": 0.07, "us-east-1b": 0.095}
GIB, ADDRESS, GATEWAY = 0.08, 0.005, 0.045
FASTER = 125 * 0.04
"""A month, for the 250 MB/s of a worker that builds its container ("Amazon EBS pricing")."""
PARTS = {prices.DISK: GIB, prices.ADDRESS: ADDRESS, prices.NAT: GATEWAY, prices.TRAFFIC: 0.09}
PARTS |= {prices.THROUGHPUT: 40.96}


@dataclass
class Machine:
    """As EC2 bills it: `runs` from each start to the stop or end after it."""

    name: str
    id: str
    rate: float
    born: float
    gib: int
    public: bool
    spot: bool
    zone: str
    faster: bool
    runs: list[list[float]] = field(default_factory=list)
    state: str = "running"
    ended: float | None = None

    def switch(self, state: str, now: float) -> None:
        if state == "running":
            self.runs.append([now, math.inf])
        elif self.state == "running":
            self.runs[-1][1] = now
        self.state, self.ended = state, None if state == "running" else now

    def cost(self, now: float) -> float:
        run = sum(max(60.0, min(end, now) - since) for since, end in self.runs) / HOUR
        gone = self.ended if self.state == "terminated" and self.ended else now
        kept, price = max(60.0, gone - self.born), self.gib * GIB + FASTER * self.faster
        parts = (min(60.0, kept - at) / month(self.born + at) for at in range(0, int(kept), 60))
        return run * (self.rate + ADDRESS * self.public) + price * sum(parts)


def month(when: float) -> float:
    """Seconds of the calendar month."""
    moment = time.gmtime(when)
    return calendar.monthrange(moment.tm_year, moment.tm_mon)[1] * 86400.0


@dataclass
class Account:
    """What EC2 has and bills. `now`: its clock, and everyone's."""

    now: float
    machines: list[Machine] = field(default_factory=list)
    gateway: float | None = None
    gateway_end: float = math.inf

    @property
    def alive(self) -> list[Machine]:
        return [one for one in self.machines if one.state != "terminated"]

    def launch(
        self, name: str, gib: int, *, public: bool, spot: bool, zone: str, faster: bool
    ) -> None:
        rate = SPOT[zone] if spot else MACHINE[kind(name)]
        id = f"i-{len(self.machines)}"
        made = Machine(name, id, rate, self.now, gib, public, spot, zone, faster)
        made.runs.append([self.now, math.inf])
        self.machines.append(made)

    def end(self) -> None:
        """All of it, by calls."""
        for one in self.alive:
            one.switch("terminated", self.now)
        self.gateway_end = min(self.gateway_end, self.now)

    def bill(self) -> float:
        total = sum(one.cost(self.now) for one in self.machines)
        if self.gateway is not None:
            seconds = min(self.now, self.gateway_end) - self.gateway
            total += GATEWAY * max(1, math.ceil(seconds / HOUR)) + ADDRESS * seconds / HOUR
        return total

    def hourly(self) -> float:
        running = [one for one in self.alive if one.state == "running"]
        rate = sum(one.rate + ADDRESS * one.public for one in running)
        rate += sum((one.gib * GIB + FASTER * one.faster) / 730 for one in self.alive)
        return rate + (GATEWAY + ADDRESS) * (self.gateway is not None and self.gateway_end > 1e10)


def kind(name: str) -> str:
    return "t3.micro" if name == "launcher" else "c7i.xlarge"


class Answers(Market):
    account_: Account
    found_zones = tuple(SPOT)

    def find_price(self, item: str) -> float | None:
        return {**MACHINE, **PARTS}.get(item)

    def find_spot_price(self, instance_type: str, *zones: str) -> float:
        return max(SPOT[zone] for zone in zones or SPOT)

    def list_instances(self, *filters: Any, states: Sequence[str] = LIVING) -> list[Instance]:
        """EC2 tells whole seconds, and forgets a machine an hour after its end."""
        now = self.account_.now
        return [
            instance(
                one.name,
                id=one.id,
                type=kind(one.name),
                state=one.state,
                zone=one.zone,
                launched=float(int(one.runs[-1][0])),
                born=float(int(one.born)),
                spot=one.spot,
                ended=None if one.ended is None else float(int(one.ended)),
            )
            for one in self.account_.machines
            if one.state in states and (one in self.account_.alive or now - (one.ended or 0) < HOUR)
        ]

    def list_all(
        self, action: str, key: str, service: str = "ec2", /, **arguments: Any
    ) -> list[Any]:
        if action == "describe_nat_gateways" and self.account_.gateway is not None:
            end = self.account_.gateway_end
            row = {
                "State": "deleted" if end < math.inf else "available",
                "NatGatewayId": "nat-1",
                "CreateTime": datetime.fromtimestamp(int(self.account_.gateway), timezone.utc),
            }
            if end < math.inf:
                row["DeleteTime"] = datetime.fromtimestamp(int(end), timezone.utc)
            return [row] if self.account_.now - HOUR < end else []
        if action == "describe_addresses" and self.account_.gateway is not None:
            return [{"AllocationId": "eipalloc-1"}] * (self.account_.gateway_end == math.inf)
        return super().list_all(action, key, service, **arguments)


class Provider(Ec2Provider):
    """Its machines obey at once."""

    account: Account

    def extend(self, cluster: Cluster, folder: Path, deadline: float) -> None:
        """Its nodes have nothing to be told."""

    def stop(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        for one in self.account.alive:
            if one.state == "running":
                one.switch("stopped", self.account.now)
        self.account.now += 20

    def destroy(self, cluster: Cluster, folder: Path, report: Reporter) -> None:
        self.account.now += 5
        self.account.end()
