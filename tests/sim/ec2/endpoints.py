"""EC2 Instance Connect Endpoints: what the API says of them. What goes through them is in
`tunnels.py`.

Sources: EC2 API Reference, Ec2InstanceConnectEndpoint (states) and
DescribeInstanceConnectEndpoints (filters); EC2 User Guide, "Quotas for EC2 Instance Connect
Endpoint" (one per VPC and per subnet, 20 connections at a time) and "Security groups for EC2
Instance Connect Endpoint". The texts of refusals are not AWS's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.ec2 import wire
from tests.sim.ec2.wire import Answer, ApiError, Request

ACCOUNT = "123456789012"
QUOTA, CONNECTIONS = 5, 20
COMING, READY, GOING, GONE = (
    "create-in-progress",
    "create-complete",
    "delete-in-progress",
    "delete-complete",
)
ROLE = "ec2-instance-connect.amazonaws.com"
"""Whose service-linked role an account has after its first endpoint."""


@dataclass
class Endpoint:
    region: str
    subnet: Any
    groups: tuple[str, ...]
    dns_name: str
    interface: Any
    ready: float
    """When it is there, and below: when it is gone; by time.monotonic."""
    tags: dict[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"eice-{uuid.uuid4().hex[:17]}")
    end: float | None = None

    @property
    def state(self) -> str:
        now = time.monotonic()
        if self.end is not None:
            return GOING if now < self.end else GONE
        if now < self.ready:
            return COMING
        return READY

    @property
    def vpc(self) -> str:
        return str(self.subnet.vpc_id)

    @property
    def address(self) -> str:
        return str(self.interface.private_ip_address)

    @property
    def arn(self) -> str:
        return f"arn:aws:ec2:{self.region}:{ACCOUNT}:instance-connect-endpoint/{self.id}"


class Endpoints:
    """All of an account. `dns_name`: where their tunnels begin."""

    def __init__(self) -> None:
        self.all: dict[str, Endpoint] = {}
        self.dns_name = ""
        self.slow_start = 0.0
        """Seconds that one takes to come."""

    def living(self) -> Iterator[Endpoint]:
        """Those that hold their subnet and groups. The interface of one goes last, with it."""
        for one in list(self.all.values()):
            if one.state != GONE:
                yield one
            elif one.interface.id in one.interface.ec2_backend.enis:
                one.interface.ec2_backend.delete_network_interface(one.interface.id)

    def holds(self) -> set[str]:
        """What cannot be deleted, for one is in it."""
        return {id for one in self.living() for id in (one.vpc, one.subnet.id, *one.groups)}

    def members(self) -> dict[str, list[str]]:
        """Group → the private addresses of the endpoints that are in it."""
        found: dict[str, list[str]] = {}
        for one in self.living():
            for group in one.groups:
                found.setdefault(group, []).append(one.address)
        return found

    def create(self, request: Request, there: Any, has_right: bool) -> Answer:
        """`has_right`: to make the role that AWS needs in an account that has none."""
        form = request.parameters
        if not self.all and not has_right:
            raise ApiError(
                "UnauthorizedOperation",
                "You are not authorized to perform: iam:CreateServiceLinkedRole",
                403,
            )
        subnet = there.get_subnet(form["SubnetId"])
        living = [one for one in self.living() if one.region == request.region]
        if any(one.vpc == subnet.vpc_id for one in living):
            raise ApiError("LimitExceeded", f"{subnet.vpc_id} has an endpoint already")
        if len(living) >= QUOTA:
            raise ApiError("LimitExceeded", f"{QUOTA} endpoints exist in {request.region}")
        groups = tuple(request.listed("SecurityGroupId"))
        default = there.get_default_security_group(subnet.vpc_id)
        made = Endpoint(
            request.region,
            subnet,
            groups or (default.id,),
            self.dns_name,
            _interface(there, subnet),
            time.monotonic() + self.slow_start,
            request.tags("instance-connect-endpoint"),
        )
        made.interface.description = f"EC2 Instance Connect Endpoint {made.id}"
        self.all[made.id] = made
        inner = f"<instanceConnectEndpoint>{_document(made)}</instanceConnectEndpoint>"
        return wire.xml("CreateInstanceConnectEndpoint", inner)

    def delete(self, request: Request, seconds: float) -> Answer:
        one = self._find(request.parameters["InstanceConnectEndpointId"])
        if one.state == COMING:  # source: aws-cloudformation/cloudformation-coverage-roadmap, 2000
            raise ApiError("OperationNotPermitted", f"{one.id} is in the state {COMING}")
        one.end = time.monotonic() + seconds if one.end is None else one.end
        inner = f"<instanceConnectEndpoint>{_document(one)}</instanceConnectEndpoint>"
        return wire.xml("DeleteInstanceConnectEndpoint", inner)

    def describe(self, request: Request, matches: Any) -> Answer:
        """`matches`: whether tags fit a filter."""
        list(self.living())
        ids = request.listed("InstanceConnectEndpointId")
        found = [self._find(id) for id in ids] or [
            one for one in self.all.values() if one.region == request.region
        ]
        for key, values in request.filters().items():
            known = {
                "instance-connect-endpoint-id": lambda one: one.id,
                "state": lambda one: one.state,
                "subnet-id": lambda one: one.subnet.id,
                "vpc-id": lambda one: one.vpc,
            }
            if key in known:
                found = [one for one in found if known[key](one) in values]
            else:
                found = [one for one in found if matches(one.tags, key, values)]
        items = wire.items("instanceConnectEndpointSet", map(_document, found))
        return wire.xml("DescribeInstanceConnectEndpoints", items)

    def _find(self, id: str) -> Endpoint:
        if id not in self.all:
            raise ApiError(
                "InvalidInstanceConnectEndpointId.NotFound",
                f"The instance connect endpoint '{id}' does not exist",
            )
        return self.all[id]


def _interface(there: Any, subnet: Any) -> Any:
    made = there.create_network_interface(subnet, subnet.get_available_subnet_ip(None))
    made.requester_managed = True
    return made


def _document(one: Endpoint) -> str:
    fields: Mapping[str, object] = {
        "ownerId": ACCOUNT,
        "instanceConnectEndpointId": one.id,
        "instanceConnectEndpointArn": one.arn,
        "state": one.state,
        "stateMessage": "",
        "dnsName": one.dns_name,
        "fipsDnsName": one.dns_name,
        "vpcId": one.vpc,
        "availabilityZone": one.subnet.availability_zone,
        "createdAt": "2026-11-27T12:00:00.000Z",
        "subnetId": one.subnet.id,
        "preserveClientIp": "false",
    }
    return (
        "".join(wire.tag(*pair) for pair in fields.items())
        + wire.items("networkInterfaceIdSet", [one.interface.id])
        + wire.items("securityGroupIdSet", one.groups)
        + wire.tag_set(one.tags)
    )
