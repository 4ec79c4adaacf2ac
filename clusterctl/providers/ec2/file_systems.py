"""File systems of the user's own that nodes share: Amazon EFS, and FSx with NFS. They are looked at
before anything costs money, and nothing of them is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from clusterctl.errors import ProviderError, UsageError
from clusterctl.model import SHARED, CloudSpec, ClusterSpec
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.failures import RefusedByAws
from clusterctl.providers.ec2.networks import ZoneSubnets
from clusterctl.timeouts import run_in_background

NFS = 2049
_UNKNOWN = "FileSystemNotFound"
_USABLE = {"available", "updating", "misconfigured"}
"""States of a file system that can be mounted, of EFS and FSx."""
_TCP = ("tcp", "6", "-1")
_EFS = "EFS"
_OPENZFS, _ONTAP = "FSx for OpenZFS", "FSx for NetApp ONTAP"
_NO_NFS = {"LUSTRE": "FSx for Lustre", "WINDOWS": "FSx for Windows File Server"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """`source`: what is mounted, `server:/path`; `interfaces`: where it is reached."""

    source: str
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """`wanted` is as it was asked for, with its folder; `target` serves all zones of its VPC,
    `zonal` those of each zone their own."""

    wanted: str
    kind: str
    vpc: str
    name: str = ""
    target: MountTarget | None = None
    zonal: Mapping[str, MountTarget] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.wanted.partition(":")[0]

    def name_source(self, zone: str) -> str:
        return self._find_target(zone).source

    def describe(self, zone: str) -> str:
        """Of the plan."""
        called = f" ({self.name})" if self.name else ""
        return (
            f"shared folder: {SHARED} is {self.name_source(zone)} of {self.kind} {self.id}{called},"
            " over NFS without encryption; its cost is not included, and `down` leaves it as it is"
        )

    def list_targets(self, zones: Sequence[str]) -> list[tuple[str, MountTarget]]:
        """Those of these zones that can mount it."""
        return [
            (zone, self._find_target(zone)) for zone in zones if self.target or zone in self.zonal
        ]

    def _find_target(self, zone: str) -> MountTarget:
        return self.target or self.zonal[zone]


def find(api: Api, wanted: str) -> FileSystem:
    """The file system of this ID (and folder, after a colon). EFS and FSx call theirs alike, so
    both are asked. Raises UsageError for one that cannot be mounted, and ProviderError."""
    id, _, path = wanted.partition(":")
    asked = [
        run_in_background(partial(ask, api, wanted, id, path)) for ask in (_find_efs, _find_fsx)
    ]
    refusals: list[ProviderError] = []
    for answer in asked:
        try:
            if found := answer.result():
                return found
        except ProviderError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    raise UsageError(
        f"no file system {id} in {api.region}: neither EFS nor FSx has it there",
        hint="`aws efs describe-file-systems` and `aws fsx describe-file-systems` list them; check"
        " the ID, --region and your account",
    )


def _list(api: Api, action: str, key: str, service: str, **arguments: Any) -> list[Any]:
    """What is asked for by its ID; nothing where AWS does not know it."""
    try:
        return api.list_all(action, key, service, **arguments)
    except RefusedByAws as refused:
        if refused.code == _UNKNOWN:
            return []
        raise


def _check_state(id: str, state: str) -> None:
    if state.lower() not in _USABLE:
        raise UsageError(
            f"{id} cannot be mounted: it is {state.lower()}",
            hint="wait until it is available, or give another file system",
        )


def _find_efs(api: Api, wanted: str, id: str, path: str) -> FileSystem | None:
    found = _list(api, "describe_file_systems", "FileSystems", "efs", FileSystemId=id)
    if not found:
        return None
    _check_state(id, str(found[0]["LifeCycleState"]))
    targets = api.list_all("describe_mount_targets", "MountTargets", "efs", FileSystemId=id)
    usable = [item for item in targets if item["LifeCycleState"] in _USABLE]
    if not usable:
        raise UsageError(
            f"{id} has no available mount target, so machines cannot mount it",
            hint=f"create one in each zone: `aws efs create-mount-target --file-system-id {id}"
            " --subnet-id … --security-groups …`",
        )
    return FileSystem(
        wanted=wanted,
        kind=_EFS,
        vpc=str(usable[0]["VpcId"]),
        name=str(found[0].get("Name", "")),
        zonal={
            str(item["AvailabilityZoneName"]): MountTarget(
                source=f"{item['IpAddress']}:{path or '/'}",
                interfaces=(str(item["NetworkInterfaceId"]),),
            )
            for item in usable
        },
    )


def _find_fsx(api: Api, wanted: str, id: str, path: str) -> FileSystem | None:
    found = _list(api, "describe_file_systems", "FileSystems", "fsx", FileSystemIds=[id])
    if not found:
        return None
    [item] = found
    if other := _NO_NFS.get(item["FileSystemType"]):
        raise UsageError(
            f"{id} is {other}, which Ubuntu's kernels cannot mount over NFS",
            hint="give a file system of EFS, FSx for OpenZFS or FSx for NetApp ONTAP; for Lustre,"
            " link it to a bucket and use `clusterctl data get s3://…`, or give an --ami with"
            " its client and mount it yourself",
        )
    _check_state(id, str(item["Lifecycle"]))
    ontap = item["FileSystemType"] == "ONTAP"
    source = _find_ontap(api, id, path) if ontap else f"{item['DNSName']}:{path or '/fsx'}"
    names = {tag["Key"]: str(tag["Value"]) for tag in item.get("Tags", ())}
    return FileSystem(
        wanted=wanted,
        kind=_ONTAP if ontap else _OPENZFS,
        vpc=str(item["VpcId"]),
        name=names.get("Name", ""),
        target=MountTarget(source=source, interfaces=tuple(item.get("NetworkInterfaceIds", ()))),
    )


def _find_ontap(api: Api, id: str, path: str) -> str:
    """The volume at that junction path, else the only one. Raises UsageError."""
    asked = [{"Name": "file-system-id", "Values": [id]}]
    volumes = [
        one["OntapConfiguration"]
        for one in api.list_all("describe_volumes", "Volumes", "fsx", Filters=asked)
        if not one["OntapConfiguration"].get("StorageVirtualMachineRoot")
    ]
    mounted = [one for one in volumes if one.get("JunctionPath")]
    fitting = [one for one in mounted if path in ("", one["JunctionPath"])]
    if len(fitting) != 1:
        there = ", ".join(sorted(one["JunctionPath"] for one in mounted)) or "none"
        raise UsageError(
            f"{id} has {len(fitting)} volumes{f' at {path}' if path else ''}, but one is needed"
            f" (junction paths: {there})",
            hint=f"name it: --shared {id}:/PATH",
        )
    [volume] = fitting
    machines = api.list_all(
        "describe_storage_virtual_machines",
        "StorageVirtualMachines",
        "fsx",
        StorageVirtualMachineIds=[volume["StorageVirtualMachineId"]],
    )
    return f"{machines[0]['Endpoints']['Nfs']['DNSName']}:{volume['JunctionPath']}"


def fill_in_network(options: ClusterSpec, found: FileSystem | None) -> ClusterSpec:
    """The options with the network that the file system is in, unless they name one."""
    if found is None or options.cloud.vpc or options.cloud.subnet:
        return options
    return replace(options, cloud=replace(options.cloud, vpc=found.vpc))


def choose_subnets(
    options: ClusterSpec,
    found: FileSystem | None,
    choose: Callable[[CloudSpec], dict[str, ZoneSubnets]],
) -> dict[str, ZoneSubnets]:
    """What `choose` makes of the options, in the network of the file system where they name none:
    its errors say why that one has to do."""
    wanted = fill_in_network(options, found)
    try:
        return choose(wanted.cloud)
    except UsageError as error:
        if found is None or wanted == options:
            raise
        raise UsageError(
            error.message,
            hint=f"{found.id} can be mounted in {found.vpc} alone: change that network, or give"
            " another file system",
        ) from error


def keep_reachable(
    api: Api,
    found: FileSystem | None,
    zones: tuple[str, ...],
    subnets: Mapping[str, ZoneSubnets],
    *,
    there: bool,
) -> tuple[str, ...]:
    """The zones whose nodes can mount it. `there`: of a cluster that has machines, whose own
    security groups may be let in. Raises UsageError where there is none."""
    if found is None:
        return zones
    _check_network(api, found, zones, subnets)
    targets = found.list_targets(zones)
    if not targets:
        raise UsageError(
            f"{found.id} has mount targets in {', '.join(sorted(found.zonal))}, and the cluster can"
            f" be in {', '.join(zones)} only",
            hint="correct --zones or --subnet, or make a mount target there: `aws efs"
            f" create-mount-target --file-system-id {found.id} --subnet-id …`",
        )
    usable = tuple(zone for zone, _ in targets)
    if there:
        return usable
    closed = _list_closed(api, targets, {zone: subnets[zone] for zone in usable})
    if open_zones := tuple(zone for zone in usable if zone not in closed):
        return open_zones
    groups, networks = closed[usable[0]]
    raise UsageError(
        f"the security groups of {found.id} in {usable[0]} ({', '.join(groups) or 'none'}) do not"
        f" allow NFS (TCP {NFS}) from {', '.join(networks)}",
        hint="; ".join(
            f"`aws ec2 authorize-security-group-ingress --group-id {(*groups, 'sg-…')[0]}"
            f" --protocol tcp --port {NFS} --cidr {network}`"
            for network in networks
        ),
    )


def _describe(api: Api, action: str, key: str, name: str, ids: Collection[str]) -> list[Any]:
    return api.list_all(action, key, Filters=[{"Name": name, "Values": sorted(ids)}]) if ids else []


def _check_network(
    api: Api, found: FileSystem, zones: Sequence[str], subnets: Mapping[str, ZoneSubnets]
) -> None:
    """Raises UsageError where the cluster's subnets are in another VPC."""
    ids = {subnets[zone].workers for zone in zones}
    for item in _describe(api, "describe_subnets", "Subnets", "subnet-id", ids):
        if item["VpcId"] != found.vpc:
            raise UsageError(
                f"{found.id} can be mounted in {found.vpc}, and {item['SubnetId']} is in"
                f" {item['VpcId']}",
                hint="leave --vpc and --subnet out, or name subnets of that VPC",
            )


def _list_closed(
    api: Api,
    targets: Sequence[tuple[str, MountTarget]],
    subnets: Mapping[str, ZoneSubnets],
) -> dict[str, tuple[list[str], list[str]]]:
    """The zones whose nodes certainly do not get in, with the groups that keep them out, and the
    networks that these would have to let in. Nothing where we may not look."""
    try:
        ids = {id for _, target in targets for id in target.interfaces}
        action, key = "describe_network_interfaces", "NetworkInterfaces"
        items = _describe(api, action, key, "network-interface-id", ids)
        by_id = {item["NetworkInterfaceId"]: item for item in items}
        ids = {group["GroupId"] for item in items for group in item["Groups"]}
        groups = _describe(api, "describe_security_groups", "SecurityGroups", "group-id", ids)
        ids = {id for place in subnets.values() for id in (place.workers, place.launcher)}
        nets = {
            item["SubnetId"]: str(item["CidrBlock"])
            for item in _describe(api, "describe_subnets", "Subnets", "subnet-id", ids)
        }
    except ProviderError:
        return {}
    rules = {group["GroupId"]: group.get("IpPermissions", ()) for group in groups}
    closed = {}
    for zone, target in targets:
        doors = [by_id[id] for id in target.interfaces if id in by_id]
        mine = sorted({group["GroupId"] for item in doors for group in item["Groups"]})
        ours = (subnets[zone].workers, subnets[zone].launcher)
        networks = list(dict.fromkeys(nets[id] for id in ours if id in nets))
        shut = [
            network
            for network in networks
            if not any(_lets_in(rule, IPv4Network(network)) for id in mine for rule in rules[id])
        ]
        if doors and shut:
            closed[zone] = (mine, shut)
    return closed


def _lets_in(rule: Mapping[str, Any], network: IPv4Network) -> bool:
    """Whether it may let some of these addresses in. Groups that it names are not those of a new
    cluster, and what is in its prefix lists is not known."""
    if rule["IpProtocol"] not in _TCP:
        return False
    every = rule["IpProtocol"] == "-1"
    if not every and not int(rule["FromPort"]) <= NFS <= int(rule["ToPort"]):
        return False
    if rule.get("PrefixListIds"):
        return True
    theirs = (IPv4Network(item["CidrIp"], strict=False) for item in rule.get("IpRanges", ()))
    return any(one.overlaps(network) for one in theirs)
