"""Machines that are paid for already: On-Demand Capacity Reservations and Capacity Blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from clusterctl.core import catalog
from clusterctl.core.errors import ProviderError, UsageError
from clusterctl.core.model import ClusterSpec
from clusterctl.core.text import count, format_time
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import RefusedByAws

_PLATFORM, _TENANCY = "Linux/UNIX", "default"
_BLOCK_ENDS = 35 * 60.0
"""Seconds before the end of a Capacity Block by which its machines have to be gone: EC2 ends them
half an hour before, and programs get five minutes to save their work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """`zone`: "" where it is gone; `block`: a Capacity Block, paid in advance; `group`: the
    placement group that it was made in, if any; `latest`: when machines have to be gone, None:
    never."""

    id: str
    zone: str
    block: bool
    group: str
    latest: float | None

    @property
    def line(self) -> str:
        """For the plan."""
        if not self.block:
            return (
                f"workers run in the Capacity Reservation {self.id}, which AWS bills with or"
                " without them"
            )
        end = f", until {format_time(self.latest)} at most" if self.latest else ""
        return f"workers run in the Capacity Block {self.id}, which is paid in advance{end}"


def check_reservation(api: Api, options: ClusterSpec, workers: int) -> Reservation | None:
    """`workers`: how many are to be made. Raises UsageError or ProviderError where they do not fit
    into --reservation; None without one. Those that run do so when it has ended, too."""
    id = options.cloud.reservation
    if not id:
        return None
    try:
        [found] = _describe(api, id)
    except RefusedByAws as refused:
        if not refused.code.startswith("InvalidCapacityReservationId"):
            raise
        if not workers:
            return Reservation(id=id, zone="", block=False, group="", latest=None)
        raise UsageError(
            f"no Capacity Reservation {id!r} in {api.region}",
            hint="`aws ec2 describe-capacity-reservations` lists them; check --region and your"
            " account",
        ) from refused
    kinds = sorted({catalog.choose_instance_type(group) for group in options.groups})
    for wanted, has, what in (
        (", ".join(kinds), found["InstanceType"], "machines of type"),
        (_PLATFORM, found["InstancePlatform"], "the platform"),
        (_TENANCY, found["Tenancy"], "the tenancy"),
    ):
        if wanted != has:
            raise UsageError(
                f"{id} is for {what} {has}, and the workers are {wanted}",
                hint="choose another --reservation, or leave it out",
            )
    if workers:
        _check_available(id, found, workers)
    return _read_reservation(id, found)


def check_end(api: Api, id: str, deadline: float) -> None:
    """Raises ProviderError where EC2 ends the machines of a Capacity Block before that: programs
    would get no signal, and lose their work."""
    try:
        [found] = _describe(api, id)
    except RefusedByAws as refused:
        if not refused.code.startswith("InvalidCapacityReservationId"):
            raise
        return  # AWS has forgotten it: it ended long ago, and its machines with it
    latest = _read_reservation(id, found).latest
    if latest is not None and deadline > latest:
        left = max(0.0, latest - time.time())
        raise ProviderError(
            f"the Capacity Block {id} keeps its machines until {format_time(latest)}, but the new"
            f" deadline would be {format_time(deadline)}",
            hint=f"give at most --ttl {int(left / 60)}m; AWS can extend a block that has not ended:"
            " `aws ec2 describe-capacity-block-extension-offerings`",
        )


def _describe(api: Api, id: str) -> list[dict[str, Any]]:
    answer = api.call("describe_capacity_reservations", CapacityReservationIds=[id])
    return list(answer["CapacityReservations"])


def _check_available(id: str, found: dict[str, Any], workers: int) -> None:
    if found["State"] != "active":
        start = found.get("StartDate")
        when = f" and starts at {format_time(start.timestamp())}" if start else ""
        scheduled = found["State"] == "scheduled"
        raise ProviderError(
            f"{id} is {found['State']}{when if scheduled else ''}: it takes no machines now",
            hint="try again then" if scheduled else "choose another --reservation",
        )
    free = int(found["AvailableInstanceCount"])
    if free < workers:
        raise ProviderError(
            f"{id} has room for {count(free, 'machine')} more, and {workers} are wanted",
            hint="use fewer --workers; machines that have just ended hold their place for minutes",
        )


def _read_reservation(id: str, found: dict[str, Any]) -> Reservation:
    block = found.get("ReservationType") == "capacity-block"
    end = found.get("EndDate")
    return Reservation(
        id=id,
        zone=found["AvailabilityZone"],
        block=block,
        group=str(found.get("PlacementGroupArn", "")).rpartition("/")[2],
        latest=end.timestamp() - _BLOCK_ENDS if block and end else None,
    )
