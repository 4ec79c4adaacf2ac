"""Capacity Reservations, which moto lacks.

Source: EC2 User Guide, "Launch instances into an existing Capacity Reservation" and "Capacity
Blocks for ML"; EC2 API Reference, CapacityReservation.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.ec2 import wire
from tests.sim.ec2.wire import ApiError, Request


@dataclass
class Reservation:
    region: str
    kind: str
    zone: str
    total: int
    platform: str = "Linux/UNIX"
    tenancy: str = "default"
    state: str = "active"
    group: str = ""
    """The ARN of the placement group that it was made in."""
    id: str = field(default_factory=lambda: f"cr-{uuid.uuid4().hex[:17]}")
    start: float = field(default_factory=time.time)

    def free(self, instances: Iterable[Any]) -> int:
        """What ends keeps its place until it has ended."""
        return self.total - sum(
            getattr(one, "capacity_reservation_id", "") == self.id and one.state != "terminated"
            for one in instances
        )

    def xml(self, instances: Iterable[Any]) -> str:
        fields: dict[str, object] = {
            "capacityReservationId": self.id,
            "instanceType": self.kind,
            "instancePlatform": self.platform,
            "availabilityZone": self.zone,
            "tenancy": self.tenancy,
            "totalInstanceCount": self.total,
            "availableInstanceCount": self.free(instances),
            "state": self.state,
            "instanceMatchCriteria": "targeted",
            "startDate": _date(self.start),
            "reservationType": "default",
        }
        if self.group:
            fields["placementGroupArn"] = self.group
        return "".join(wire.tag(*one) for one in fields.items())


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def create(request: Request) -> Reservation:
    """CreateCapacityReservation."""
    form = request.parameters
    return Reservation(
        region=request.region,
        kind=form["InstanceType"],
        zone=form["AvailabilityZone"],
        total=int(form["InstanceCount"]),
        platform=form["InstancePlatform"],
        tenancy=form.get("Tenancy", "default"),
        group=form.get("PlacementGroupArn", ""),
    )


def unknown(id: str) -> ApiError:
    message = f"The capacity reservation ID '{id}' does not exist"
    return ApiError("InvalidCapacityReservationId.NotFound", message)


def refuse(found: Reservation, request: Request, zone: str, instances: Iterable[Any]) -> None:
    """A launch that the reservation is not for, or has no room for."""
    form = request.parameters
    fits = (
        found.state == "active"
        and form.get("InstanceType") == found.kind
        and zone == found.zone
        and form.get("Placement.GroupName", "") == found.group.rpartition("/")[2]
        and not form.get("InstanceMarketOptions.MarketType")
        and int(form.get("MaxCount", 1)) <= found.free(instances)
    )
    if not fits:
        raise ApiError(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity"
            " for this request.",
        )
