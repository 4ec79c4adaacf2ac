"""What moto's EC2 lacks or gets wrong, and Terraform's provider needs.

Two ways: whole actions are answered here (`ACTIONS`), and moto's models are amended (`amended.py`).
What the current request said is at hand in `current`.
"""

from __future__ import annotations

import base64
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tests.sim.ec2 import endpoints, market, nat, saved, wire
from tests.sim.ec2.wire import Answer, ApiError, Request

ACCOUNT = "123456789012"


current = threading.local()
"""`.request`: what this thread is answering."""


@dataclass
class PlacementGroup:
    region: str
    name: str
    strategy: str
    id: str = field(default_factory=lambda: f"pg-{uuid.uuid4().hex[:17]}")
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class SpotRequest:
    region: str
    instance: Any
    kind: str
    behavior: str
    id: str = field(default_factory=lambda: f"sir-{uuid.uuid4().hex[:8]}")
    cancelled: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        if self.cancelled:
            return "cancelled"
        return "closed" if self.instance.state == "terminated" else "active"


class World:
    """All that exists beside moto's own."""

    def __init__(self) -> None:
        self.placement_groups: dict[str, PlacementGroup] = {}
        self.spot_requests: dict[str, SpotRequest] = {}
        self.launched: dict[str, Any] = {}  # client token → reservation
        self.complete: set[str] = set()
        """Instances that have their tags and disks: moto shows them before."""
        self.granted: dict[str, float] = {}
        """Quotas that AWS has raised."""
        self.prices: dict[str, float | None] = {}
        self.free_plan = False
        self.saved = saved.Images()
        self.slow_end = 0.0
        """Seconds that an instance takes to end, with its interface in its network; also a NAT
        gateway, with its address."""
        self.nat = nat.Ends()
        self.endpoints = endpoints.Endpoints()
        self.addressing = threading.Lock()
        """Held while an address of a subnet is looked up and taken, which are two steps."""
        self.allowed: Callable[[str, str, dict[str, str]], bool] = lambda *ask: True
        """Whether IAM allows who asks an action on a resource, with these condition keys."""
        self.ending: dict[str, tuple[float, set[str]]] = {}
        """Instance → when it is gone, and what it holds until then."""

    def end(self, instances: Iterable[Any]) -> None:
        """Those whose time has come are terminated."""
        for one in instances:
            if one.id in self.ending and self.ending[one.id][0] <= time.monotonic():
                del self.ending[one.id]
                one.instance_state.name, one.instance_state.code = "terminated", 48

    def owners(self, ids: list[str]) -> list[PlacementGroup | SpotRequest | endpoints.Endpoint]:
        """Those of these ids that are ours."""
        ours: dict[str, Any] = {**self.spot_requests, **self.endpoints.all}
        ours |= {group.id: group for group in self.placement_groups.values()}
        return [ours[one] for one in ids if one in ours]


Action = Callable[[World, Request], Answer | None]


def _create_placement_group(world: World, request: Request) -> Answer:
    name = request.parameters["GroupName"]
    if name in world.placement_groups:
        raise ApiError("InvalidPlacementGroup.Duplicate", f"The group '{name}' exists.")
    strategy = request.parameters.get("Strategy", "cluster")
    group = PlacementGroup(request.region, name, strategy, tags=request.tags("placement-group"))
    world.placement_groups[name] = group
    inner = f"<placementGroup>{_placement_group(group)}</placementGroup>"
    return wire.xml("CreatePlacementGroup", f"<return>true</return>{inner}")


def _placement_group(group: PlacementGroup) -> str:
    arn = f"arn:aws:ec2:{group.region}:{ACCOUNT}:placement-group/{group.name}"
    fields = {
        "groupName": group.name,
        "groupId": group.id,
        "groupArn": arn,
        "strategy": group.strategy,
        "state": "available",
    }
    spread = wire.tag("spreadLevel", "rack") if group.strategy == "spread" else ""
    return "".join(wire.tag(*one) for one in fields.items()) + spread + wire.tag_set(group.tags)


def _describe_placement_groups(world: World, request: Request) -> Answer:
    names, ids = request.listed("GroupName"), request.listed("GroupId")
    groups = [one for one in world.placement_groups.values() if one.region == request.region]
    for name in names:
        if name not in (one.name for one in groups):
            message = f"The Placement Group '{name}' is unknown."
            raise ApiError("InvalidPlacementGroup.Unknown", message)
    if names or ids:
        groups = [one for one in groups if one.name in names or one.id in ids]
    for key, values in request.filters().items():
        groups = [one for one in groups if _tag_matches(one.tags, key, values)]
    found = (_placement_group(one) for one in groups)
    return wire.xml("DescribePlacementGroups", wire.items("placementGroupSet", found))


def _delete_placement_group(world: World, request: Request) -> Answer:
    name = request.parameters["GroupName"]
    if name not in world.placement_groups:
        message = f"The Placement Group '{name}' is unknown."
        raise ApiError("InvalidPlacementGroup.Unknown", message)
    if any(
        one.placement.group_name == name and one.state != "terminated"
        for one in backend(request.region).all_instances()
    ):
        message = f"The placement group '{name}' is in use and may not be deleted."
        raise ApiError("InvalidPlacementGroup.InUse", message)
    del world.placement_groups[name]
    return wire.done("DeletePlacementGroup")


def _describe_spot_requests(world: World, request: Request) -> Answer:
    ids = request.listed("SpotInstanceRequestId")
    found = [one for one in world.spot_requests.values() if one.region == request.region]
    for one in ids:
        if one not in world.spot_requests:
            message = f"The spot instance request ID '{one}' does not exist"
            raise ApiError("InvalidSpotInstanceRequestID.NotFound", message)
    if ids:
        found = [one for one in found if one.id in ids]
    for key, values in request.filters().items():
        found = [one for one in found if _tag_matches(one.tags, key, values)]
    members = (_spot_request(one) for one in found)
    return wire.xml("DescribeSpotInstanceRequests", wire.items("spotInstanceRequestSet", members))


def _spot_request(one: SpotRequest) -> str:
    status = wire.tag("code", "fulfilled" if one.state == "active" else "instance-terminated")
    fields = {
        "spotInstanceRequestId": one.id,
        "instanceId": one.instance.id,
        "state": one.state,
        "type": one.kind,
        "instanceInterruptionBehavior": one.behavior,
        "productDescription": "Linux/UNIX",
        "launchedAvailabilityZone": one.instance.placement.zone,
        "spotPrice": "1.0",
    }
    texts = "".join(wire.tag(*pair) for pair in fields.items())
    return f"{texts}<status>{status}</status>{wire.tag_set(one.tags)}"


def _cancel_spot_requests(world: World, request: Request) -> Answer:
    members = []
    for one in request.listed("SpotInstanceRequestId"):
        if one not in world.spot_requests:
            message = f"The spot instance request ID '{one}' does not exist"
            raise ApiError("InvalidSpotInstanceRequestID.NotFound", message)
        world.spot_requests[one].cancelled = True
        members.append(wire.tag("spotInstanceRequestId", one) + wire.tag("state", "cancelled"))
    return wire.xml("CancelSpotInstanceRequests", wire.items("spotInstanceRequestSet", members))


def _spot_prices(world: World, request: Request) -> Answer:
    """Three tenths of the price on demand, in every zone a little more than in the one before."""
    kinds = request.listed("InstanceType")
    wanted = request.filters().get("availability-zone", ())
    zones = [one.name for one in backend(request.region).describe_availability_zones()]
    members = []
    for (number, zone), kind in itertools.product(enumerate(zones), kinds):
        price = market.spot(kind, number, world.prices)
        if price is None or (wanted and zone not in wanted):
            continue
        fields = {
            "instanceType": kind,
            "productDescription": "Linux/UNIX",
            "spotPrice": f"{price:.6f}",
            "timestamp": "2026-05-20T00:00:00.000Z",
            "availabilityZone": zone,
        }
        members.append("".join(wire.tag(*one) for one in fields.items()))
    return wire.xml("DescribeSpotPriceHistory", wire.items("spotPriceHistorySet", members))


def _describe_regions(world: World, request: Request) -> Answer:
    regions = (
        wire.tag("regionName", name) + wire.tag("regionEndpoint", f"ec2.{name}.amazonaws.com")
        for name in market.LOCATIONS
    )
    return wire.xml("DescribeRegions", wire.items("regionInfo", regions))


def _create_tags(world: World, request: Request) -> Answer | None:
    ours = world.owners(request.listed("ResourceId"))
    for one in ours:
        one.tags.update(wire.pairs(request.parameters))
    return wire.done("CreateTags") if ours else None


def _delete_tags(world: World, request: Request) -> Answer | None:
    ours = world.owners(request.listed("ResourceId"))
    for one in ours:
        for name in wire.pairs(request.parameters):
            one.tags.pop(name, None)
    return wire.done("DeleteTags") if ours else None


def _modify_instance(world: World, request: Request) -> Answer | None:
    """moto takes the groups away when it is told the shutdown behaviour alone."""
    behavior = request.parameters.get("InstanceInitiatedShutdownBehavior.Value")
    instance = backend(request.region).get_instance(request.parameters["InstanceId"])
    if behavior is None:
        _set_groups(instance.nics[0], request.listed("GroupId"))
        return None
    instance.instance_initiated_shutdown_behavior = behavior
    return wire.done("ModifyInstanceAttribute")


def _modify_interface(world: World, request: Request) -> None:
    card = backend(request.region).get_network_interface(request.parameters["NetworkInterfaceId"])
    _set_groups(card, request.listed("SecurityGroupId"))


def _set_groups(card: Any, ids: list[str]) -> None:
    """moto adds those of the interface to those of its instance; on EC2 they are the same."""
    if ids:
        there = card.ec2_backend
        there.modify_network_interface_attribute(card.id, ids)
        if card.instance:
            groups = [there.get_security_group_from_id(id) for id in ids]
            card.instance.security_groups = groups


def _run_instances(world: World, request: Request) -> Answer | None:
    """Refuses what EC2 refuses; moto does the rest."""
    kind = request.parameters.get("InstanceType", "")
    if len(base64.b64decode(request.parameters.get("UserData", ""))) > 16384:
        raise ApiError("InvalidParameterValue", "User data is limited to 16384 bytes")
    name = request.parameters.get("Placement.GroupName")
    if name:
        if name not in world.placement_groups:
            message = f"The Placement Group '{name}' is unknown."
            raise ApiError("InvalidPlacementGroup.Unknown", message)
        if world.placement_groups[name].strategy == "cluster" and kind.startswith("t"):
            message = f"Cluster placement groups are not supported by the '{kind}' instance type."
            raise ApiError("InvalidParameterCombination", message)
    if new_tags(request, "spot-instances-request") and not is_spot(request):
        raise ApiError(
            "InvalidParameterCombination",
            "You cannot specify tags for Spot instances requests if there are no Spot instances"
            " requests being created by the request.",
        )
    if world.free_plan and not _look_up(kind).get("FreeTierEligible"):
        raise ApiError(
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier. For a list of Free Tier"
            " instance types, run 'describe-instance-types' with the filter"
            " 'free-tier-eligible=true'.",
        )
    _keep_to_quota(world, request, kind)
    return None


def _keep_to_quota(world: World, request: Request, kind: str) -> None:
    spot = is_spot(request)
    code = market.quota_code(kind, spot)
    limit = world.granted.get(code, market.QUOTAS[code][1])
    used = sum(
        vcpus(one.instance_type)
        for one in backend(request.region).all_instances()
        if one.state not in ("terminated", "stopped")
        and market.quota_code(one.instance_type, one.lifecycle == "spot") == code
    )
    more = vcpus(kind) * int(request.parameters.get("MaxCount", 1))
    if used + more <= limit or request.parameters.get("ClientToken") in world.launched:
        return
    if spot:
        raise ApiError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    message = (
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows "
        "for the instance bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
    )
    raise ApiError("VcpuLimitExceeded", message)


def _associate_route_table(world: World, request: Request) -> None:
    subnet = request.parameters.get("SubnetId")
    for table in backend(request.region).describe_route_tables():
        if subnet and subnet in table.get_filter_value("association.subnet-id"):
            raise ApiError(
                "Resource.AlreadyAssociated",
                f"the specified association for route table {request.parameters['RouteTableId']}"
                " conflicts with an existing association",
            )


def _refuse_while_used(world: World, request: Request) -> None:
    """What an interface is in cannot go. Source: terraform-provider-aws issues 43124 and 46747;
    EC2 API Reference, error code DependencyViolation."""
    form = request.parameters
    there = backend(request.region)
    if request.action == "DetachInternetGateway":
        nat.refuse_detach(there, world.nat, form.get("VpcId", ""))
    if request.action == "DeleteSubnet":
        nat.refuse_subnet(there, world.nat, form.get("SubnetId", ""))
    ids = {str(form.get(key, "")) for key in ("GroupId", "SubnetId", "VpcId")} - {""}
    held = world.endpoints.holds()
    for end in there.vpc_end_points.values():
        if end.state != "deleted":
            held |= {end.vpc_id, *end.subnet_ids, *end.security_group_ids}
    now = time.monotonic()
    for until, things in world.ending.values():
        held |= things if until > now else set()
    for id in sorted(ids & held):
        kind = {"s": "resource", "v": "vpc"}[id[0]]
        name = f"The {kind} '{id}'" if kind == "vpc" else f"resource {id}"
        raise ApiError("DependencyViolation", f"{name} has dependencies and cannot be deleted.")


def _release_address(world: World, request: Request) -> None:
    there, id = backend(request.region), request.parameters.get("AllocationId", "")
    nat.refuse_release(there, world.nat, id)


def _describe_endpoints(world: World, request: Request) -> Answer | None:
    """moto does not know the filter that finds those of a network."""
    filters = request.filters()
    members = []
    for one in backend(request.region).vpc_end_points.values():
        tags = {tag["key"]: tag["value"] for tag in one.get_tags()}
        by_vpc = one.vpc_id in filters.get("vpc-id", [one.vpc_id])
        rest = [(key, values) for key, values in filters.items() if key != "vpc-id"]
        if by_vpc and all(_tag_matches(tags, key, values) for key, values in rest):
            texts = (wire.tag("vpcEndpointId", one.id), wire.tag("vpcId", one.vpc_id))
            members.append("".join(texts) + wire.tag("state", one.state) + wire.tag_set(tags))
    return wire.xml("DescribeVpcEndpoints", wire.items("vpcEndpointSet", members))


def _instance_connect(world: World, request: Request) -> Answer:
    if request.action.startswith("Create"):
        role = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/{endpoints.ROLE}/AWSServiceRole"
        may = world.allowed(
            "iam:CreateServiceLinkedRole", role, {"iam:AWSServiceName": endpoints.ROLE}
        )
        with world.addressing:
            return world.endpoints.create(request, backend(request.region), may)
    if request.action.startswith("Delete"):
        return world.endpoints.delete(request, world.slow_end)
    return world.endpoints.describe(request, _tag_matches)


def _check_group_name(world: World, request: Request) -> None:
    """Source: EC2 API Reference, CreateSecurityGroup, GroupName: "Can't start with sg-"."""
    if request.parameters["GroupName"].startswith("sg-"):
        raise ApiError(
            "InvalidParameterValue",
            f"Invalid value '{request.parameters['GroupName']}' for groupName. Group names may not"
            " be in the format sg-*.",
        )


def _create_image(world: World, request: Request) -> Answer:
    tags = {kind: request.tags(kind) for kind in ("image", "snapshot")}
    image = world.saved.create(backend(request.region), request.parameters, tags)
    return wire.xml("CreateImage", wire.tag("imageId", image.id))


def _look_at_images(world: World, request: Request) -> None:
    world.saved.look()


def _deregister_image(world: World, request: Request) -> None:
    world.saved.deregister(request.parameters["ImageId"])


ACTIONS: dict[str, Action] = {
    "CreateImage": _create_image,
    "DescribeImages": _look_at_images,
    "DeregisterImage": _deregister_image,
    "CreateSecurityGroup": _check_group_name,
    "DeleteSecurityGroup": _refuse_while_used,
    "DeleteSubnet": _refuse_while_used,
    "DeleteVpc": _refuse_while_used,
    "DetachInternetGateway": _refuse_while_used,
    "ReleaseAddress": _release_address,
    "DescribeVpcEndpoints": _describe_endpoints,
    "CreateInstanceConnectEndpoint": _instance_connect,
    "DescribeInstanceConnectEndpoints": _instance_connect,
    "DeleteInstanceConnectEndpoint": _instance_connect,
    "AssociateRouteTable": _associate_route_table,
    "CreatePlacementGroup": _create_placement_group,
    "DescribePlacementGroups": _describe_placement_groups,
    "DeletePlacementGroup": _delete_placement_group,
    "DescribeSpotInstanceRequests": _describe_spot_requests,
    "CancelSpotInstanceRequests": _cancel_spot_requests,
    "DescribeSpotPriceHistory": _spot_prices,
    "DescribeRegions": _describe_regions,
    "CreateTags": _create_tags,
    "DeleteTags": _delete_tags,
    "ModifyInstanceAttribute": _modify_instance,
    "ModifyNetworkInterfaceAttribute": _modify_interface,
    "RunInstances": _run_instances,
}
"""EC2 actions that are answered here; None leaves the answer to moto."""


def _tag_matches(tags: Mapping[str, str], key: str, values: list[str]) -> bool:
    if key == "tag-key":
        return any(one in tags for one in values)
    if not key.startswith("tag:"):
        raise ApiError("InvalidParameterValue", f"The filter '{key}' is invalid")
    value = tags.get(key.removeprefix("tag:"))
    return value is not None and any(fnmatchcase(value, pattern) for pattern in values)


def backend(region: str) -> Any:
    """moto's EC2 of this region."""
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][region]


def regions() -> list[str]:
    """Those in which anything was ever asked."""
    from moto.ec2.models import ec2_backends

    return sorted(ec2_backends[ACCOUNT]) if ACCOUNT in ec2_backends else []


def new_tags(request: Request, kind: str) -> dict[str, str]:
    """The tags that RunInstances gives to new ones of this kind: those of its launch template and
    its own."""
    tags: dict[str, str] = {}
    if name := request.parameters.get("LaunchTemplate.LaunchTemplateId"):
        version = backend(request.region).get_launch_template(name).latest_version()
        for one in version.data.get("TagSpecifications", ()):
            if one["ResourceType"] == kind:
                tags |= {tag["Key"]: tag["Value"] for tag in one["Tags"]}
    return {**tags, **request.tags(kind)}


def is_spot(request: Request) -> bool:
    return request.parameters.get("InstanceMarketOptions.MarketType") == "spot"


def vcpus(kind: str) -> int:
    return int(_look_up(kind).get("VCpuInfo", {}).get("DefaultVCpus", 0))


def _look_up(kind: str) -> dict[str, Any]:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    found: dict[str, Any] = INSTANCE_TYPES.get(kind, {})
    return found
