"""NAT gateways, as far as moto makes them too easy, and who reaches the internet.

Sources: VPC User Guide, "NAT gateways" and "Route tables"; EC2 API Reference, NatGateway (states
of one, and why it fails); eformat/sno-for-100 issue 5 (an address cannot be released while its
gateway goes); terraform issue 1303 (the internet gateway of a network with public addresses cannot
be detached).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

from tests.sim.ec2.wire import ApiError

COMING, GOING, FAILED = "pending", "deleting", "failed"


class Ends:
    """When gateways that are being made are there, and those that are being deleted are gone."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self.slow_start = 0.0
        """Seconds that one takes to come."""
        self.kept = False
        """Whether one cannot be deleted while it comes. AWS's documents do not say."""
        self.available: Callable[[Any], None] = lambda gateway: None
        """Told of each that has come."""

    def come(self, gateway: Any) -> None:
        gateway.state = COMING
        self._ends[gateway.id] = time.monotonic() + self.slow_start
        self.turn(gateway)

    def begin(self, gateway: Any, seconds: float) -> None:
        gateway.state = GOING
        gateway.delete_time = datetime.now(timezone.utc)
        self._ends[gateway.id] = time.monotonic() + seconds
        self.turn(gateway)

    def turn(self, gateway: Any) -> None:
        """Its interface and the tie to its address go last, with it."""
        if gateway.state not in (COMING, GOING) or self._ends[gateway.id] > time.monotonic():
            return
        del self._ends[gateway.id]
        if gateway.state == COMING:
            gateway.state = "available"
            self.available(gateway)
            return
        gateway.state = "deleted"
        there = gateway.ec2_backend
        interface = _interface(gateway)
        for address in there.addresses:
            if address.eni is interface:
                there.disassociate_address(address=address.public_ip)
        there.delete_network_interface(interface.id)


def install(ends: Ends, seconds: Any) -> None:
    """Amends moto. `seconds`: asked for how long a gateway takes to go."""
    from moto.ec2.models.nat_gateways import NatGatewayBackend

    make, describe = NatGatewayBackend.create_nat_gateway, NatGatewayBackend.describe_nat_gateways

    def create(self: Any, subnet_id: str, allocation_id: str, *args: Any, **kwargs: Any) -> Any:
        held = any(
            one.allocation_id == allocation_id and one.association_id for one in self.addresses
        )
        gateway = make(self, subnet_id, "" if held else allocation_id, *args, **kwargs)
        if held:
            _fail(gateway, allocation_id)
            return gateway
        ends.come(gateway)
        interface = _interface(gateway)
        interface.requester_managed = True
        interface.description = f"Interface for NAT Gateway {gateway.id}"
        return gateway

    def describe_all(self: Any, filters: Any, ids: Any) -> list[Any]:
        """moto does not know the filters for tags."""
        for gateway in list(self.nat_gateways.values()):
            ends.turn(gateway)
        found = describe(self, filters, ids)
        by_tag = {key: values for key, values in (filters or {}).items() if key.startswith("tag")}
        return [one for one in found if all(_tagged(one, *pair) for pair in by_tag.items())]

    def delete(self: Any, id: str) -> Any:
        gateway = self.nat_gateways.get(id)
        if gateway is None or gateway.state == "deleted":
            raise ApiError("NatGatewayNotFound", f"NAT gateway {id} was not found")
        ends.turn(gateway)
        if gateway.state == COMING and ends.kept:
            raise ApiError("IncorrectState", f"NAT gateway {id} is in the state {COMING}")
        if gateway.state == FAILED:
            gateway.state = "deleted"
        elif gateway.state != GOING:
            ends.begin(gateway, seconds())
        return gateway

    NatGatewayBackend.create_nat_gateway = create  # type: ignore[method-assign]
    NatGatewayBackend.describe_nat_gateways = describe_all  # type: ignore[method-assign]
    NatGatewayBackend.delete_nat_gateway = delete  # type: ignore[method-assign]


def _fail(gateway: Any, allocation: str) -> None:
    """Its address is in use."""
    gateway.ec2_backend.delete_network_interface(_interface(gateway).id)
    gateway.address_set.clear()
    gateway.state = FAILED
    gateway.failure_code = "Resource.AlreadyAssociated"
    gateway.failure_message = f"Elastic IP address {allocation} is already associated"


def _interface(gateway: Any) -> Any:
    return gateway.ec2_backend.enis[gateway.address_set[0]["networkInterfaceId"]]


def _tagged(gateway: Any, key: str, values: list[str]) -> bool:
    tags = {tag["key"]: tag["value"] for tag in gateway.get_tags()}
    if key == "tag-key":
        return not tags.keys().isdisjoint(values)
    value = tags.get(key.removeprefix("tag:"))
    return value is not None and any(fnmatchcase(value, pattern) for pattern in values)


def _gateways(backend: Any, ends: Ends) -> list[Any]:
    for gateway in list(backend.nat_gateways.values()):
        ends.turn(gateway)
    return [one for one in backend.nat_gateways.values() if one.state != "deleted"]


def refuse_release(backend: Any, ends: Ends, allocation: str) -> None:
    held = {
        address.get("allocationId")
        for gateway in _gateways(backend, ends)
        for address in gateway.address_set
    }
    if allocation in held:
        said = "You do not have permission to access the specified resource."
        raise ApiError("AuthFailure", said)


def refuse_detach(backend: Any, ends: Ends, vpc: str) -> None:
    if any(gateway.vpc_id == vpc for gateway in _gateways(backend, ends)):
        raise ApiError(
            "DependencyViolation",
            f"Network {vpc} has some mapped public address(es). Please unmap those public"
            " address(es) before detaching the gateway.",
        )


def refuse_subnet(backend: Any, ends: Ends, subnet: str) -> None:
    if any(gateway.subnet_id == subnet for gateway in _gateways(backend, ends)):
        said = f"The subnet '{subnet}' has dependencies and cannot be deleted."
        raise ApiError("DependencyViolation", said)


def reaches_internet(instance: Any) -> bool:
    """A machine with a public address does; another one by a NAT gateway that its subnet has a
    route to."""
    if instance.public_ip_address:
        return True
    subnet = instance.nics[0].subnet
    tables = instance.ec2_backend.describe_route_tables()
    mine = [t for t in tables if t.vpc_id == subnet.vpc_id]
    own = [t for t in mine if subnet.id in t.get_filter_value("association.subnet-id")]
    main = [t for t in mine if t.main_association_id]
    return any(
        route.destination_cidr_block == "0.0.0.0/0"
        and route.nat_gateway is not None
        and route.nat_gateway.state == "available"
        for table in (own or main)[:1]
        for route in table.routes
    )
