"""Networks of the user's own, new networks, and from where SSH is let in."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Any

from msgspec import Struct

from clusterctl.core.clock import run_in_background
from clusterctl.core.model import CloudSpec, ClusterSpec
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2.api import TAG, Api, check_making, read_tags

_ANYWHERE, _OPEN, _OUTWARDS = "0.0.0.0/0", "off", "block-ingress"
_WAYS = (
    *("NatGatewayId", "TransitGatewayId", "CoreNetworkArn", "InstanceId", "NetworkInterfaceId"),
    "GatewayId",
)
"""What a route out of a closed subnet may lead to: also AWS Cloud WAN, an appliance, or an endpoint
of one."""


class Subnet(Struct, frozen=True, kw_only=True):
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


class ZoneSubnets(Struct, frozen=True):
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
    *,
    name: str,
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
        # In many organizations only those who keep the networks may make security groups there.
        check_making(
            *(api, name, cloud.tag, "create_security_group"),
            "clusterctl makes two security groups there",
            GroupName=f"clusterctl-{name}",
            Description="Asked for by a dry run, and not made",
            VpcId=found[0].vpc,
        )
    pairs = cloud.private and not cloud.instance_connect
    if pairs:
        # A machine cannot move: the subnets that some are in are the only ones.
        outer = _prefer([one for one in found if one.public], there)
        inner = _prefer([one for one in found if not one.public], there)
        workers = {one.id: _find_trouble(one, machines, closed=True) for one in inner}
        launcher = {one.id: _find_trouble(one, int(one.id not in there)) for one in outer}
        found = [*inner, *outer]
    else:
        workers = launcher = {
            one.id: _find_trouble(one, machines, closed=cloud.private) for one in found
        }
    usable: dict[str, ZoneSubnets] = {}
    for zone in dict.fromkeys(one.zone for one in found):
        mine = [one for one in found if one.zone == zone]
        first = next((one for one in mine if workers.get(one.id) == ""), None)
        door = next((one for one in mine if launcher.get(one.id) == ""), None)
        if first and door:
            usable[zone] = ZoneSubnets(first.id, door.id, first.out * cloud.private)
    troubles = {id: why for id, why in {**workers, **launcher}.items() if why}
    if cloud.subnet and not cloud.private:
        for id, why in troubles.items():
            raise UsageError(f"{id} {why}", hint="choose another --subnet")
    if usable:
        return usable
    for one in found:
        other = "public" if one.id in workers else "closed"
        lone = f"which is in {one.zone} without a usable {other} subnet beside it"
        troubles.setdefault(one.id, lone)
    what, hint = f"no subnet of {cloud.vpc} can hold the cluster", "choose another --vpc"
    if cloud.private:
        what = (
            "--private needs, in one zone, a public subnet for the launcher, and one for the"
            " workers that reaches the internet through a NAT gateway"
            if pairs
            else "--private with --instance-connect needs a subnet that reaches the internet"
            " through a NAT gateway"
        )
        hint = "name both: --subnet PUBLIC,CLOSED" if pairs else "choose another --subnet"
    said = "; ".join(f"{id} {trouble}" for id, trouble in sorted(troubles.items()))
    raise UsageError(
        f"{what}: {said}",
        hint=f"{hint}; or leave --vpc and --subnet out: clusterctl then makes its own network"
        + " with a NAT gateway" * cloud.private,
    )


def _prefer(subnets: list[Subnet], there: Collection[str]) -> list[Subnet]:
    return [one for one in subnets if one.id in there] or subnets


def _find_trouble(subnet: Subnet, machines: int, *, closed: bool = False) -> str:
    """Why these machines cannot be there, without public addresses if it is to be `closed`; ""
    where they can."""
    if subnet.cluster:
        return f"belongs to cluster {subnet.cluster}, whose `down` removes all that is in its VPC"
    if closed and subnet.public:
        return "has a route to an internet gateway"
    if closed and not subnet.out:
        return "has no route to the internet, so its machines could not fetch packages"
    if not closed and not subnet.public:
        return (
            "has no route to an internet gateway, so its machines could neither be reached over SSH"
            " nor fetch packages"
        )
    if subnet.blocked != _OPEN and not (closed and subnet.blocked == _OUTWARDS):
        return f"is closed to the internet by VPC Block Public Access ({subnet.blocked})"
    if subnet.free < machines:
        return f"has {subnet.free} free addresses, and the cluster needs {machines} more"
    return ""


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


def _list_subnets(api: Api, cloud: CloudSpec) -> list[Subnet]:
    """Those that were named, in that order, else all of the VPC, by zone."""
    search = ("subnet-id", cloud.subnet) if cloud.subnet else ("vpc-id", (cloud.vpc,))
    by_id = {one["SubnetId"]: one for one in _list_by(api, "describe_subnets", "Subnets", *search)}
    ids = cloud.subnet or sorted(by_id, key=lambda id: (by_id[id]["AvailabilityZone"], id))
    vpcs = sorted({item["VpcId"] for item in by_id.values()})
    for id in ids:
        if id not in by_id:
            raise UsageError(
                f"no subnet {id!r} in {api.region}",
                hint="`aws ec2 describe-subnets` lists them; check --region and your account",
            )
        if cloud.vpc and by_id[id]["VpcId"] != cloud.vpc:
            raise UsageError(
                f"{id} is in {by_id[id]['VpcId']}, not in {cloud.vpc}",
                hint="correct --subnet or --vpc",
            )
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
    tables = _list_by(api, "describe_route_tables", "RouteTables", "vpc-id", vpcs)
    return [_read_subnet(by_id[id], tables) for id in ids]


def _list_by(api: Api, action: str, key: str, name: str, values: Collection[str]) -> list[Any]:
    filters = [{"Name": name, "Values": sorted(values)}]
    return api.list_all(action, key, Filters=filters)


def _read_subnet(item: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Subnet:
    routes = _list_routes(item["SubnetId"], tables)
    return Subnet(
        id=item["SubnetId"],
        vpc=item["VpcId"],
        zone=item["AvailabilityZone"],
        free=int(item["AvailableIpAddressCount"]),
        public=any(_find_way_out(route).startswith("igw-") for route in routes),
        out=next(filter(None, map(_find_way_out, routes)), ""),
        blocked=item.get("BlockPublicAccessStates", {}).get("InternetGatewayBlockMode", _OPEN),
        cluster=read_tags(item).get(TAG, ""),
    )


def _list_routes(subnet: str, tables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Those of the subnet's own table, else of the VPC's main one."""
    links = [(link, table) for table in tables for link in table.get("Associations", ())]
    own = [table for link, table in links if link.get("SubnetId") == subnet]
    main = [table for link, table in links if link.get("Main")]
    return [route for table in own or main for route in table.get("Routes", ())]


def _find_way_out(route: Mapping[str, Any]) -> str:
    """What the route to the internet leads to; "" for other routes, and for what is gone."""
    if route.get("DestinationCidrBlock") != _ANYWHERE or route.get("State") != "active":
        return ""
    return next((str(route[way]) for way in _WAYS if route.get(way)), "")


# -------------------------------------------------------------------------------------------------
# A network of the cluster's own, before it is made: whether the account lets us make it, and
# whether anybody could reach it.


CIDR = "10.77.0.0/16"
"""As infra/ec2 has it."""

_THEIRS = "use a network that your administrators have made: --vpc ID, or --subnet"


def check_new_network(api: Api, options: ClusterSpec, *, there: bool = False) -> None:
    """Raises ProviderError for the first thing that would stop Terraform halfway. `there`: the
    cluster has machines in it."""
    cloud = options.cloud
    if cloud.vpc or cloud.subnet:
        return
    hidden = cloud.private and cloud.instance_connect
    opened = run_in_background(partial(_check_open, api, hidden=hidden))
    asked = {"create_vpc": {"CidrBlock": CIDR}, "create_internet_gateway": {}}
    if cloud.private:
        asked["allocate_address"] = {"Domain": "vpc"}
    # Many organizations let only administrators make networks.
    for action, arguments in () if there else asked.items():
        check_making(api, options.name, cloud.tag, action, _THEIRS, **arguments)
    opened.result()


def _check_open(api: Api, *, hidden: bool) -> None:
    """Raises ProviderError where SSH to a new network would time out: EC2 makes it all the same.
    `hidden`: no machine has a public address, and traffic goes out through a NAT gateway."""
    try:
        mode = api.find_block_mode()
    except ProviderError:
        return  # who may not ask is not told
    if mode != _OPEN and not (hidden and mode == _OUTWARDS):
        raise ProviderError(
            f"VPC Block Public Access is on in {api.region} ({mode}): the launcher of a new network"
            " could not be reached from the internet",
            hint="choose a --vpc that is excluded from it, another --region, or have an"
            " administrator switch it off: `aws ec2 modify-vpc-block-public-access-options"
            " --internet-gateway-block-mode off`"
            + "; or connect without public addresses: --instance-connect --private"
            * (mode == _OUTWARDS),
        )


# -------------------------------------------------------------------------------------------------
# From where the launcher accepts SSH: what was said, else this machine's public address alone.
#
# Rules are for IPv4: the VPC has no IPv6 addresses, so that nobody could come from one.


WHO_AM_I = "https://checkip.amazonaws.com"
ANYBODY = "0.0.0.0/0"
LIMIT = 3.0
"""Seconds that asking for our address may take."""

DESCRIPTION = "Whoever made the cluster"
"""Of the rules, as infra/ec2 has it."""


def parse_network(option: str, text: str) -> str:
    """An IPv4 network as AWS wants it: `203.0.113.7` is `203.0.113.7/32`. UsageError names the
    option."""
    try:
        return str(IPv4Network(text, strict=False))
    except ValueError as error:
        six = "; clusters on EC2 have no IPv6 addresses" * (":" in text)
        raise UsageError(
            f"{option} {text!r} is not an IPv4 network: {error}{six}",
            hint="for example 203.0.113.7/32",
        ) from error


def parse_networks(option: str, text: str) -> str:
    """As `parse_network`, for several with commas between them."""
    return ",".join(dict.fromkeys(parse_network(option, one.strip()) for one in text.split(",")))


def ask_my_address() -> str:
    """This machine's public IPv4 address. OSError, ValueError.

    SSH takes no proxy: one in HTTPS_PROXY would tell its own address. It is asked where nobody
    answers without it."""
    try:
        return _ask(urllib.request.ProxyHandler({}))
    except OSError:
        if urllib.parse.urlsplit(WHO_AM_I).scheme not in urllib.request.getproxies():
            raise
        return _ask(urllib.request.ProxyHandler())


def _ask(proxies: urllib.request.ProxyHandler) -> str:
    with urllib.request.build_opener(proxies).open(WHO_AM_I, timeout=LIMIT) as answer:
        return parse_address(answer.read(100).decode())


def parse_address(text: str) -> str:
    """An IPv4 address as it was answered. ValueError says what else it is."""
    found = ip_address(text.strip())
    if found.version != 4:
        raise ValueError(f"{found} is an IPv6 address, and clusters on EC2 have no IPv6 addresses")
    return str(found)


def resolve_ssh_cidr(said: str, before: str, ask: Callable[[], str]) -> tuple[str, str]:
    """`said` with --ssh-cidr, else what `ask` answers, else what it was `before`; and the line of
    the plan that tells it. Raises UsageError where nobody knows."""
    if said:
        wanted = parse_networks("--ssh-cidr", said)
        everybody = ": the whole internet, with keys only" * (ANYBODY in wanted.split(","))
        return wanted, f"SSH to the launcher is open to {wanted} (--ssh-cidr){everybody}"
    try:
        mine = f"{ask()}/32"
    except (OSError, ValueError) as error:
        if before:
            return before, f"SSH to the launcher stays open to {before} ({WHO_AM_I}: {error})"
        raise UsageError(
            f"{WHO_AM_I} did not return this machine's public address: {error}",
            hint="give it: --ssh-cidr 203.0.113.7/32",
        ) from error
    return mine, f"SSH to the launcher is open to {mine} (your address, by {WHO_AM_I})"


def explain_shut_out(allowed: str, ask: Callable[[], str]) -> str:
    """Why this machine is not let in; "" where it is, or where that is not known."""
    try:
        address = ask()
    except (OSError, ValueError):
        return ""
    if any(IPv4Address(address) in IPv4Network(one) for one in allowed.split(",") if one):
        return ""
    return f"this machine's address is now {address}, and SSH is open to {allowed or 'no address'}"


def change(api: Api, cluster_id: str, wanted: Sequence[str]) -> None:
    """Lets SSH in from these networks, then from no others. Raises ProviderError."""
    found = api.list_all(
        "describe_security_groups",
        "SecurityGroups",
        Filters=[ec2_api.filter_by_cluster(cluster_id)],
    )
    group = next((item for item in found if item["GroupName"] == f"{cluster_id}-ssh"), None)
    if group is None:
        raise ProviderError(
            f"the security group {cluster_id}-ssh is gone", hint="`clusterctl up` creates it again"
        )
    present = {
        item["CidrIp"]
        for rule in group["IpPermissions"]
        if rule.get("FromPort") == 22
        for item in rule["IpRanges"]
    }
    for action, networks in (
        ("authorize_security_group_ingress", [one for one in wanted if one not in present]),
        ("revoke_security_group_ingress", sorted(present.difference(wanted))),
    ):
        if networks:
            ranges = [{"CidrIp": one, "Description": DESCRIPTION} for one in networks]
            rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": ranges}
            api.call(action, GroupId=group["GroupId"], IpPermissions=[rule])
