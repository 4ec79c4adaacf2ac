"""File systems of the user's own that nodes share: Amazon EFS, and FSx with NFS. Whether one is
there, and whether nodes reach it, is asked before anything costs money. Nothing of it is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Network
from typing import Any

from clusterctl.core.clock import run_in_background
from clusterctl.core.model import SHARED, ClusterSpec
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.network import ZoneSubnets
from clusterctl.machines.ec2.refusals import RefusedByAws

NFS = 2049
_UNKNOWN = "FileSystemNotFound"
_USABLE = {"available", "updating", "misconfigured"}
"""States of a file system that can be mounted, of EFS and FSx."""
_FSX = {"OPENZFS": "FSx for OpenZFS", "ONTAP": "FSx for NetApp ONTAP"}
"""What has NFS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTarget:
    """`source`: what is mounted, `server:/path`; `interfaces`: where it is reached."""

    source: str
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """`wanted` is as it was asked for, with its folder; `targets` are by zone, or one for all zones
    of its VPC under ""."""

    wanted: str
    kind: str
    vpc: str
    targets: Mapping[str, MountTarget]

    @property
    def id(self) -> str:
        return self.wanted.partition(":")[0]

    def name_source(self, zone: str) -> str:
        return self.find_target(zone).source

    def find_target(self, zone: str) -> MountTarget:
        return self.targets.get(zone) or self.targets[""]

    def describe(self, zone: str) -> str:
        """Of the plan."""
        return (
            f"shared folder: {SHARED} is {self.name_source(zone)} of {self.kind} {self.id}, over"
            " NFS without encryption; its cost is not included, and `down` leaves it as it is"
        )


def find_file_system(api: Api, wanted: str) -> FileSystem:
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
        except RefusedByAws as error:
            if error.code != _UNKNOWN:
                refusals.append(error)
    if refusals:
        raise refusals[0]
    raise UsageError(
        f"no file system {id} in {api.region}: neither EFS nor FSx has it there",
        hint="`aws efs describe-file-systems` and `aws fsx describe-file-systems` list them; check"
        " the ID, --region and your account",
    )


def _find_efs(api: Api, wanted: str, id: str, path: str) -> FileSystem:
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
        kind="EFS",
        vpc=str(usable[0]["VpcId"]),
        targets={
            str(item["AvailabilityZoneName"]): MountTarget(
                source=f"{item['IpAddress']}:{path or '/'}",
                interfaces=(str(item["NetworkInterfaceId"]),),
            )
            for item in usable
        },
    )


def _find_fsx(api: Api, wanted: str, id: str, path: str) -> FileSystem:
    [item] = api.list_all("describe_file_systems", "FileSystems", "fsx", FileSystemIds=[id])
    kind, state = item["FileSystemType"], str(item["Lifecycle"]).lower()
    if kind not in _FSX or state not in _USABLE:
        raise UsageError(
            f"{id} cannot be mounted over NFS: it is FSx for {kind.capitalize()}, {state}",
            hint="give an available file system of EFS, FSx for OpenZFS or FSx for NetApp ONTAP;"
            " for Lustre, link it to a bucket and use `clusterctl data get s3://…`",
        )
    source = (
        _find_ontap(api, id, path) if kind == "ONTAP" else f"{item['DNSName']}:{path or '/fsx'}"
    )
    interfaces = tuple(item.get("NetworkInterfaceIds", ()))
    target = MountTarget(source=source, interfaces=interfaces)
    return FileSystem(wanted=wanted, kind=_FSX[kind], vpc=str(item["VpcId"]), targets={"": target})


def _find_ontap(api: Api, id: str, path: str) -> str:
    """The volume at that junction path, else the only one. Raises UsageError."""
    asked = [{"Name": "file-system-id", "Values": [id]}]
    found = api.list_all("describe_volumes", "Volumes", "fsx", Filters=asked)
    volumes = {
        str(one["JunctionPath"]): str(one["StorageVirtualMachineId"])
        for one in (item["OntapConfiguration"] for item in found)
        if one.get("JunctionPath") and not one.get("StorageVirtualMachineRoot")
    }
    chosen = path or (next(iter(volumes)) if len(volumes) == 1 else "")
    if chosen not in volumes:
        raise UsageError(
            f"{id} has {f'no volume at {path}' if path else f'{len(volumes)} volumes'} (junction"
            f" paths: {', '.join(sorted(volumes)) or 'none'})",
            hint=f"name one: --shared {id}:/PATH",
        )
    key, ids = "StorageVirtualMachines", [volumes[chosen]]
    action = "describe_storage_virtual_machines"
    [machine] = api.list_all(action, key, "fsx", StorageVirtualMachineIds=ids)
    return f"{machine['Endpoints']['Nfs']['DNSName']}:{chosen}"


def fill_in_network(options: ClusterSpec, found: FileSystem | None) -> ClusterSpec:
    """The options with the network that the file system is in, unless they name one."""
    if found is None or options.cloud.vpc or options.cloud.subnet:
        return options
    return replace(options, cloud=replace(options.cloud, vpc=found.vpc))


def keep_reachable(
    api: Api,
    found: FileSystem | None,
    zones: tuple[str, ...],
    subnets: Mapping[str, ZoneSubnets],
    *,
    there: bool,
) -> tuple[str, ...]:
    """The zones where it can be mounted. `there`: of a cluster that has machines, whose own
    security groups may be let in. Raises UsageError where nodes certainly do not reach it."""
    if found is None:
        return zones
    usable = tuple(zone for zone in zones if "" in found.targets or zone in found.targets)
    if not usable:
        raise UsageError(
            f"{found.id} has mount targets in {', '.join(sorted(found.targets))}, and the cluster"
            f" can be in {', '.join(zones)} only",
            hint="correct --zones or --subnet, or make a mount target there: `aws efs"
            f" create-mount-target --file-system-id {found.id} --subnet-id …`",
        )
    for zone in usable:
        ours = {subnets[zone].workers, subnets[zone].launcher}
        nets = _describe(api, "describe_subnets", "Subnets", "subnet-id", ours)
        for item in nets:
            if item["VpcId"] != found.vpc:
                raise UsageError(
                    f"{found.id} can be mounted in {found.vpc}, and {item['SubnetId']} is in"
                    f" {item['VpcId']}",
                    hint="leave --vpc and --subnet out, or name subnets of that VPC",
                )
        if not there:
            _check_open(api, found, zone, sorted(str(item["CidrBlock"]) for item in nets))
    return usable


def _check_open(api: Api, found: FileSystem, zone: str, networks: Sequence[str]) -> None:
    """Raises UsageError where no security group lets these networks in, as far as we may look."""
    target = found.find_target(zone)
    try:
        action, key = "describe_network_interfaces", "NetworkInterfaces"
        doors = _describe(api, action, key, "network-interface-id", target.interfaces)
        ids = {group["GroupId"] for item in doors for group in item["Groups"]}
        groups = _describe(api, "describe_security_groups", "SecurityGroups", "group-id", ids)
    except ProviderError:
        return
    rules = [rule for group in groups for rule in group.get("IpPermissions", ())]
    shut = [one for one in networks if not any(_lets_in(rule, IPv4Network(one)) for rule in rules)]
    if doors and shut:
        raise UsageError(
            f"the security groups of {found.id} in {zone} ({', '.join(sorted(ids)) or 'none'}) do"
            f" not allow NFS (TCP {NFS}) from {', '.join(shut)}",
            hint=f"`aws ec2 authorize-security-group-ingress --group-id {min(ids, default='sg-…')}"
            f" --protocol tcp --port {NFS} --cidr {shut[0]}`, or choose other --zones",
        )


def _describe(api: Api, action: str, key: str, name: str, ids: Collection[str]) -> list[Any]:
    return api.list_all(action, key, Filters=[{"Name": name, "Values": sorted(ids)}]) if ids else []


def _lets_in(rule: Mapping[str, Any], network: IPv4Network) -> bool:
    """Whether it may let some of these addresses in. Groups that it names are not those of a new
    cluster, and what is in its prefix lists is not known."""
    protocol = rule["IpProtocol"]
    if protocol in ("tcp", "6"):
        if not int(rule["FromPort"]) <= NFS <= int(rule["ToPort"]):
            return False
    elif protocol != "-1":
        return False
    ranges = (IPv4Network(item["CidrIp"], strict=False) for item in rule.get("IpRanges", ()))
    return bool(rule.get("PrefixListIds")) or any(one.overlaps(network) for one in ranges)
