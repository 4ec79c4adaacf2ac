"""Networks of the user's own: which of their subnets can hold the whole cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.core.errors import ProviderError, UsageError
from clusterctl.core.model import CloudSpec
from clusterctl.machines.ec2 import tags as ec2_tags
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.tags import TAG, as_list

_ANYWHERE, _OPEN, _OUTWARDS = "0.0.0.0/0", "off", "block-ingress"
_WAYS = (
    *("NatGatewayId", "TransitGatewayId", "CoreNetworkArn", "InstanceId", "NetworkInterfaceId"),
    "GatewayId",
)
"""What a route out of a closed subnet may lead to: also AWS Cloud WAN, an appliance, or an endpoint
of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    """`free`: addresses; `public`: it has a route to an internet gateway; `out`: what another route
    to the internet leads to (a NAT gateway, say), "" without one; `blocked`: how VPC Block Public
    Access closes the region, `off` for not at all; `cluster`: the id of the cluster that made it,
    and will remove it."""

    id: str
    vpc: str
    zone: str
    free: int
    public: bool
    out: str
    blocked: str
    cluster: str


@dataclass(frozen=True, slots=True)
class ZoneSubnets:
    """The subnet of the workers and that of the launcher in a zone, and how private workers reach
    the internet ("": they have public addresses)."""

    workers: str
    launcher: str
    out: str = ""


def choose_network(
    api: Api,
    cloud: CloudSpec,
    machines: int,
    there: Collection[str] = (),
    name: str = "",
) -> dict[str, ZoneSubnets]:
    """Subnets by zone, in the order of --subnet, else of their names. `machines`: how many get an
    address there; `there`: the subnets of machines that run, which come first; `name`: the
    cluster's. Nothing where the cluster makes a network of its own.

    Raises UsageError for a subnet that was named and cannot hold the cluster, and where none can;
    ProviderError where AWS does not let us make what a cluster has in a network of theirs.
    """
    if not (cloud.subnet or cloud.vpc):
        return {}
    found = sorted(_list_subnets(api, cloud), key=lambda one: one.id not in there)
    if machines:
        _check_tenancy(api, found[0].vpc)
    if machines and not there:
        _check_rights(api, found[0].vpc, cloud, name)
    if cloud.private and not cloud.instance_connect:
        return _choose_pairs(found, machines, there)
    if cloud.private:
        return _choose_closed(found, machines)
    usable: dict[str, ZoneSubnets] = {}
    troubles = {one.id: _find_trouble(one, machines) for one in found}
    for one in found:
        if troubles[one.id] and cloud.subnet:
            raise UsageError(f"{one.id} {troubles[one.id]}", hint="choose another --subnet")
        if not troubles[one.id]:
            usable.setdefault(one.zone, ZoneSubnets(one.id, one.id))
    if not usable:
        why = "; ".join(f"{id} {trouble}" for id, trouble in sorted(troubles.items()))
        raise UsageError(
            f"no subnet of {cloud.vpc} can hold the cluster: {why}",
            hint="choose another --vpc, or leave it out: clusterctl then makes its own network",
        )
    return usable


def _choose_pairs(
    found: Sequence[Subnet], machines: int, there: Collection[str]
) -> dict[str, ZoneSubnets]:
    """By zone, a closed subnet for workers and a public one for the launcher. A machine cannot move
    to another subnet: those that some are in (`there`) are the only ones. Raises UsageError."""
    outer = [one for one in found if one.public]
    inner = [one for one in found if not one.public]
    outer = [one for one in outer if one.id in there] or outer
    inner = [one for one in inner if one.id in there] or inner
    closed = {one.id: _find_private_trouble(one, machines) for one in inner}
    public = {one.id: _find_trouble(one, int(one.id not in there)) for one in outer}
    found = [*inner, *outer]
    usable: dict[str, ZoneSubnets] = {}
    for zone in dict.fromkeys(one.zone for one in found):
        mine = [one for one in found if one.zone == zone]
        workers = next((one for one in mine if closed.get(one.id) == ""), None)
        launcher = next((one for one in mine if public.get(one.id) == ""), None)
        if workers and launcher:
            usable[zone] = ZoneSubnets(workers.id, launcher.id, workers.out)
    if usable:
        return usable
    troubles = {id: trouble for id, trouble in {**closed, **public}.items() if trouble}
    for one in found:
        where = f"which is in {one.zone} without a usable"
        other = "public subnet beside it" if one.id in closed else "closed subnet beside it"
        troubles.setdefault(one.id, f"{where} {other}")
    why = "; ".join(f"{id} {trouble}" for id, trouble in sorted(troubles.items()))
    raise UsageError(
        "--private needs, in one zone, a public subnet for the launcher, and one for the workers"
        f" that reaches the internet through a NAT gateway: {why}",
        hint="name both: --subnet PUBLIC,CLOSED; or leave --vpc and --subnet out: clusterctl then"
        " makes a network with a NAT gateway",
    )


def _choose_closed(found: Sequence[Subnet], machines: int) -> dict[str, ZoneSubnets]:
    """By zone, a closed subnet for all machines: also the launcher needs no public one. Raises
    UsageError."""
    troubles = {
        one.id: "has a route to an internet gateway"
        if one.public
        else _find_private_trouble(one, machines)
        for one in found
    }
    usable: dict[str, ZoneSubnets] = {}
    for one in found:
        if not troubles[one.id]:
            usable.setdefault(one.zone, ZoneSubnets(one.id, one.id, one.out))
    if not usable:
        why = "; ".join(f"{id} {trouble}" for id, trouble in sorted(troubles.items()))
        raise UsageError(
            "--private with --instance-connect needs a subnet that reaches the internet through a"
            f" NAT gateway: {why}",
            hint="leave --vpc and --subnet out: clusterctl then makes a network with a NAT gateway",
        )
    return usable


def _find_private_trouble(subnet: Subnet, machines: int) -> str:
    """Why private workers cannot be there; "" where they can."""
    if subnet.cluster:
        return f"belongs to cluster {subnet.cluster}, whose `down` removes all that is in its VPC"
    if not subnet.out:
        return "has no route to the internet, so its machines could not fetch packages"
    if subnet.blocked not in (_OPEN, _OUTWARDS):
        return f"is closed to the internet by VPC Block Public Access ({subnet.blocked})"
    return _find_shortage(subnet, machines)


def _find_shortage(subnet: Subnet, machines: int) -> str:
    if subnet.free >= machines:
        return ""
    return f"has {subnet.free} free addresses, and the cluster needs {machines} more"


def _check_tenancy(api: Api, vpc: str) -> None:
    """Raises UsageError where machines would cost more than the prices that the plan is made of."""
    try:
        tenancy = api.find_tenancy(vpc)
    except ProviderError:
        return  # who may not ask is not told
    if tenancy != "default":
        raise UsageError(
            f"{vpc} has the tenancy {tenancy!r}: EC2 makes every machine there a Dedicated"
            " Instance, whose prices clusterctl does not know",
            hint="choose another --vpc; or, for new machines there: `aws ec2 modify-vpc-tenancy"
            f" --vpc-id {vpc} --instance-tenancy default`",
        )


def _check_rights(api: Api, vpc: str, cloud: CloudSpec, name: str) -> None:
    """Raises ProviderError where we may make no security group there: in many organizations only
    those who keep the networks do. Terraform would find out when the key pair is made."""
    pairs = as_list({TAG: name, **ec2_tags.parse_tags(cloud.tag)})
    try:
        api.check_right(
            "create_security_group",
            GroupName=f"clusterctl-{name}",
            Description="Asked for by a dry run, and not made",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": pairs}],
        )
    except RefusedByAws as refused:
        raise ProviderError(
            f"{vpc}: {refused.message}",
            hint=f"clusterctl makes two security groups there; {refused.hint}",
        ) from refused


def _find_trouble(subnet: Subnet, machines: int) -> str:
    """Why the cluster cannot be there; "" where it can."""
    if subnet.cluster:
        return f"belongs to cluster {subnet.cluster}, whose `down` removes all that is in its VPC"
    if not subnet.public:
        return (
            "has no route to an internet gateway, so its machines could neither be reached over SSH"
            " nor fetch packages"
        )
    if subnet.blocked != _OPEN:
        return f"is closed to the internet by VPC Block Public Access ({subnet.blocked})"
    return _find_shortage(subnet, machines)


def _list_subnets(api: Api, cloud: CloudSpec) -> list[Subnet]:
    """Those that were named, in that order, else all of the VPC."""
    search = ("subnet-id", list(cloud.subnet)) if cloud.subnet else ("vpc-id", [cloud.vpc])
    found = _describe(api, "describe_subnets", "Subnets", *search)
    by_id = {item["SubnetId"]: item for item in found}
    ids = cloud.subnet or tuple(sorted(by_id, key=lambda id: (_read_zone(by_id[id]), id)))
    for id in ids:
        if id not in by_id:
            raise UsageError(
                f"no subnet {id!r} in {api.region}",
                hint="`aws ec2 describe-subnets` lists them; check --region and your account",
            )
        vpc = by_id[id]["VpcId"]
        if cloud.vpc and vpc != cloud.vpc:
            raise UsageError(
                f"{id} is in {vpc}, not in {cloud.vpc}", hint="correct --subnet or --vpc"
            )
    vpcs = sorted({item["VpcId"] for item in found})
    if not vpcs:
        raise UsageError(
            f"{cloud.vpc} has no subnet in {api.region}, or does not exist",
            hint="`aws ec2 describe-vpcs` lists them; check --region and your account",
        )
    if len(vpcs) > 1:
        raise UsageError(
            f"--subnet {','.join(ids)}: they are in different VPCs ({', '.join(vpcs)})",
            hint="name subnets of one VPC, each in another zone",
        )
    tables = _describe(api, "describe_route_tables", "RouteTables", "vpc-id", vpcs)
    return [_read_subnet(by_id[id], tables) for id in ids]


def _describe(api: Api, action: str, key: str, name: str, values: list[str]) -> list[Any]:
    return api.list_all(action, key, Filters=[{"Name": name, "Values": values}])


def _read_zone(item: Mapping[str, Any]) -> str:
    return str(item["AvailabilityZone"])


def _read_subnet(item: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Subnet:
    tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", ())}
    routes = _list_routes(item["SubnetId"], tables)
    return Subnet(
        id=item["SubnetId"],
        vpc=item["VpcId"],
        zone=_read_zone(item),
        free=int(item["AvailableIpAddressCount"]),
        public=any(_find_way_out(route).startswith("igw-") for route in routes),
        out=next(filter(None, map(_find_way_out, routes)), ""),
        blocked=item.get("BlockPublicAccessStates", {}).get("InternetGatewayBlockMode", _OPEN),
        cluster=tags.get(TAG, ""),
    )


def _list_routes(subnet: str, tables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Those of the subnet's own table, else of the VPC's main one."""
    for key, value in (("SubnetId", subnet), ("Main", True)):
        for table in tables:
            if any(link.get(key) == value for link in table.get("Associations", ())):
                return list(table.get("Routes", ()))
    return ()


def _find_way_out(route: Mapping[str, Any]) -> str:
    """What the route to the internet leads to; "" for other routes, and for what is gone."""
    if route.get("DestinationCidrBlock") != _ANYWHERE or route.get("State") != "active":
        return ""
    return next((str(route[way]) for way in _WAYS if route.get(way)), "")
