"""Removes what is left of a cluster in the cloud."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.clock import Deadline
from clusterctl.core.model import Reporter
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import prices, refusals, schedules
from clusterctl.machines.ec2.api import (
    AT_A_TIME,
    CLIENT_TAG,
    DEADLINE_TAG,
    NAME_TAG,
    OWNER_TAG,
    SHARED_TAG,
    TAG,
    Api,
    filter_by_cluster,
    label_if_there,
    read_deadline,
    read_tags,
    split,
)
from clusterctl.machines.ec2.refusals import RefusedByAws
from clusterctl.machines.protocol import Resource, describe_resources

# -------------------------------------------------------------------------------------------------
# What a cluster has in the cloud: finds it by tag, thing by thing, and says what it costs.


_NOT_ASKED = ("UnauthorizedOperation", "InvalidAction")
"""Whoever may not ask, and regions that do not know such things."""
MANAGED = "GuardDutyManaged"
"""Tag of what GuardDuty's runtime monitoring puts into a VPC: an endpoint, and a group for it."""


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to find and remove things of one kind: a row of resources.toml, which explains it."""

    name: str
    describe: str = ""
    answer: str = ""
    id: str = ""
    remove: str = ""
    many: bool = False
    by_vpc: str = ""
    gone: tuple[str, ...] = ()
    filters: str = "Filters"
    slow: tuple[str, ...] = ()
    later: bool = False


KINDS = msgspec.toml.decode(
    Path(__file__).with_name("resources.toml").read_bytes(), type=dict[str, tuple[Kind, ...]]
)["kind"]
"""In the order in which they can be removed."""
ENDPOINT, GATEWAY, SNAPSHOT = "Instance Connect endpoint", "NAT gateway", "snapshot"
SCHEDULES = Kind(name=schedules.KIND)
"""The last to go: they are for machines that are not gone yet."""
Found = tuple[Kind, dict[str, Any], Resource]
"""Its kind, what EC2 says of it, and what it is for people."""


def find_tagged(api: Api, cluster_id: str = "") -> tuple[Resource, ...]:
    """All that carries the cluster's tag (of all clusters, without an id), and what lies untagged
    in its VPCs. What goes with its VPC (default group, main route table) is not counted."""
    api.find_account()  # says soon where nobody answers, and before anything else who is not known
    return tuple(left for _, _, left in search(api, cluster_id))


def find_priced(api: Api) -> tuple[Resource, ...]:
    """As `find_tagged`, of all clusters, with what each thing costs per hour. Few calls where there
    is nothing."""
    api.find_account()
    if not api.list_all("describe_tags", "Tags", Filters=[{"Name": "key", "Values": [TAG]}]):
        return tuple(schedules.find_schedule(api))
    ask = cache(partial(prices.find_quote, api))
    return tuple(
        replace(left, hourly=_compute_hourly(kind, item, ask))
        for kind, item, left in search(api, "")
    )


def _compute_hourly(
    kind: Kind, item: dict[str, Any], ask: Callable[..., prices.Quote]
) -> float | None:
    """US dollars; None: unknown."""
    if kind.name == SNAPSHOT:
        return None  # of what is used of the disk, which EC2 does not tell
    if kind.name == "volume":
        faster = max(0.0, float(item.get("Throughput", 0)) - catalog.INSTALLS.disk)
        return prices.price_disk(ask, float(item.get("Size", 0)), faster)
    if kind.name == "address":
        return ask(prices.ADDRESS).dollars
    if kind.name == GATEWAY and item.get("State") in ("pending", "available"):
        return ask(prices.NAT).dollars
    if kind.name != "instance" or item["State"]["Name"] not in ("pending", "running"):
        return 0.0
    spot = item.get("InstanceLifecycle") == "spot"
    zones = [item["Placement"]["AvailabilityZone"]] if spot else []
    machine = ask(item["InstanceType"], *zones).dollars
    address = ask(prices.ADDRESS).dollars if item.get("PublicIpAddress") else 0.0
    return None if machine is None or address is None else machine + address


def search(api: Api, cluster_id: str) -> list[tuple[Kind, dict[str, Any], Resource]]:
    by_tag = filter_by_cluster(cluster_id) if cluster_id else {"Name": "tag-key", "Values": [TAG]}
    vpcs = {
        item["VpcId"]: read_tags(item)
        for item in api.list_all("describe_vpcs", "Vpcs", Filters=[by_tag])
    }
    found: dict[tuple[str, str], tuple[Kind, dict[str, Any], Resource]] = {}
    for kind in KINDS:
        searches = [by_tag]
        if kind.by_vpc and vpcs:
            searches.append({"Name": kind.by_vpc, "Values": list(vpcs)})
        for search in searches:
            for item in _list_items(api, kind, search):
                if _goes_by_itself(kind, item) or not item.get(kind.id):
                    continue
                own = read_tags(item)
                tags = own if TAG in own else vpcs.get(_read_vpc(item), own)
                left = Resource(
                    kind.name,
                    str(item[kind.id]),
                    tags.get(TAG, ""),
                    tags.get(NAME_TAG, ""),
                    managed=MANAGED in own,
                    owner=tags.get(OWNER_TAG, ""),
                    client=tags.get(CLIENT_TAG, ""),
                    shared=tags.get(SHARED_TAG, ""),
                    deadline=read_deadline(tags.get(DEADLINE_TAG, "")),
                    made=item["LaunchTime"].timestamp() if "LaunchTime" in item else None,
                )
                found.setdefault((kind.name, left.id), (kind, item, left))
    if snapshots := [id for name, id in found if name == SNAPSHOT]:
        for id in find_used_snapshots(api, snapshots):
            del found[SNAPSHOT, id]
    found_schedules = schedules.find_schedule(api, cluster_id)
    return [*found.values(), *((SCHEDULES, {}, left) for left in found_schedules)]


def find_used_snapshots(api: Api, snapshots: Sequence[str]) -> set[str]:
    """Those that a machine image is of."""
    search = [{"Name": "block-device-mapping.snapshot-id", "Values": list(snapshots)}]
    images = api.list_all("describe_images", "Images", Owners=["self"], Filters=search)
    disks = (disk for image in images for disk in image.get("BlockDeviceMappings", ()))
    return {disk.get("Ebs", {}).get("SnapshotId", "") for disk in disks} & set(snapshots)


def is_managed(api: Api, cluster_id: str) -> bool:
    """Whether AWS has put endpoints of its own into the cluster's network: Terraform does not know
    of them, and would wait for twenty minutes for its subnet to go."""
    vpcs = [
        item["VpcId"]
        for item in api.list_all("describe_vpcs", "Vpcs", Filters=[filter_by_cluster(cluster_id)])
    ]
    search = [{"Name": "vpc-id", "Values": vpcs}]
    return bool(vpcs and api.list_all("describe_vpc_endpoints", "VpcEndpoints", Filters=search))


def _list_items(api: Api, kind: Kind, search: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        found = api.list_all(kind.describe, kind.answer, **{kind.filters: [search]})
    except RefusedByAws as refused:
        if not (kind.later and refused.code in _NOT_ASKED):
            raise
        return
    for item in found:
        for inner in item["Instances"] if kind.answer == "Reservations" else (item,):
            state = inner.get("State", inner.get("Status", ""))
            if (state["Name"] if isinstance(state, dict) else state).lower() not in kind.gone:
                yield inner


def _read_vpc(item: dict[str, Any]) -> str:
    attached = item.get("Attachments", ())
    vpc = item.get("VpcId") or (attached[0].get("VpcId", "") if attached else "")
    return str(vpc)


def _goes_by_itself(kind: Kind, item: dict[str, Any]) -> bool:
    if kind.name == "security group":
        return bool(item.get("GroupName") == "default")
    if kind.name == "route table":
        return any(link.get("Main") for link in item.get("Associations", ()))
    if kind.name == "network interface":
        return bool(item.get("RequesterManaged"))
    return False


# -------------------------------------------------------------------------------------------------

LIMIT = 600.0
"""Seconds that removing may take: a terminating GPU instance holds its network for minutes."""
PAUSE = 2.0
"""Seconds between two searches: instances end slowly, and hold what they use."""


def remove_all(api: Api, cluster_id: str, report: Reporter, *, settle: float = 0.0) -> None:
    """Removes a cluster as `remove` does, and says that AWS has nothing left of it."""
    remove_cluster(api, cluster_id, report, settle=settle)
    report(f"asked AWS again: nothing tagged {ec2_api.TAG}={cluster_id} is left in {api.region}")


def remove_cluster(
    api: Api,
    cluster_id: str,
    report: Reporter,
    *,
    keep: Callable[[Resource], bool] = lambda left: False,
    settle: float = 0.0,
) -> None:
    """Removes until a whole search finds nothing, for `settle` seconds. What `keep` says yes to
    stays, and what is attached to it. Raises LeftoverError that names what is still there after
    LIMIT seconds, or as soon as AWS refuses for good what all the rest waits for."""
    told = waits = False
    stuck: dict[str, ProviderError] = {}
    end = Deadline(LIMIT)
    clean = 0.0
    while True:
        items = drop_kept(search(api, cluster_id), keep)
        if not items:
            clean = clean or time.monotonic()
            if time.monotonic() >= clean + settle:
                return
            time.sleep(min(PAUSE, settle))
            continue
        clean = 0.0
        left = tuple(left for _, _, left in items)
        if not told:
            report(f"left over: {describe_resources(left, ids=False)}; removing")
            told = True
        refused = _remove(api, items)
        if not waits and (coming := _list_coming(items, refused)):
            report(
                f"AWS is still creating {coming}, which can only be removed afterwards; this takes"
                " some minutes"
            )
            waits = True
        stuck |= {id: error for id, error in refused.items() if refusals.is_permanent(error)}
        over = end.passed
        if over or _is_hopeless(left, stuck):
            causes = list((refused if over else stuck).values())
            raise LeftoverError(
                f"cluster {cluster_id} was not fully removed: {describe_resources(left)}"
                + (f" ({causes[0].message})" if causes else ""),
                hint=(f"{causes[0].hint}; then " if causes and causes[0].hint else "")
                + "run the same command again, or remove that in the EC2 console",
            )
        time.sleep(PAUSE)


def drop_kept(found: list[Found], keep: Callable[[Resource], bool]) -> list[Found]:
    """What is not to be kept. A disk, an interface or a spot request stays with its instance:
    Terraform may have been stopped when it knew of the instance, but not yet of its parts."""
    kept = {left.id for kind, _, left in found if kind.name == "instance" and keep(left)}
    return [
        (kind, item, left)
        for kind, item, left in found
        if not keep(left) and _find_holder(item) not in kept
    ]


def _find_holder(item: dict[str, Any]) -> str:
    """The instance that a disk or an interface is attached to, or that a spot request is for."""
    attached = item.get("Attachments") or [item.get("Attachment") or item]
    return str(attached[0].get("InstanceId", ""))


def _list_coming(items: Iterable[Found], refused: Container[str]) -> str:
    """What cannot be deleted because it is being made: endpoints, and NAT gateways that AWS has
    refused to delete. Its documents do not say whether those can be."""
    return ", ".join(
        left.id
        for kind, item, left in items
        if (kind.name == ENDPOINT and item.get("State") == "create-in-progress")
        or (kind.name == GATEWAY and item.get("State") == "pending" and left.id in refused)
    )


def _is_hopeless(left: Sequence[Resource], stuck: Container[str]) -> bool:
    """Whether nothing more can go: machines hold the network that they are in."""
    machines = [item for item in left if item.kind == "instance"]
    return all(item.id in stuck for item in machines or left)


def _remove(api: Api, items: list[Found]) -> dict[str, ProviderError]:
    """One attempt at everything, in order; what was refused, by the id of the resource."""
    refused: dict[str, ProviderError] = {}
    there = {kind.name for kind, _, _ in items}
    for kind in (*KINDS, SCHEDULES):
        mine = [(item, left.id) for owner, item, left in items if owner is kind]
        if _has_to_wait(kind, there):
            continue
        if kind.many:
            for ids in split([id for _, id in mine], AT_A_TIME):
                try:
                    api.call(kind.remove, **{f"{kind.id}s": ids})
                except ProviderError as error:
                    refused |= dict.fromkeys(ids, error)
            continue
        for item, id in mine:
            try:
                _remove_one(api, kind, item, id)
            except ProviderError as error:
                refused[id] = error
    return refused


def _has_to_wait(kind: Kind, there: Container[str]) -> bool:
    """Whether it would be refused anyway until others are gone."""
    if kind.name == "instance":
        return False
    if "instance" in there and (kind.by_vpc or kind is SCHEDULES):
        return True
    held = kind.by_vpc or kind.name == "address"
    return bool(held) and GATEWAY in there and kind.name != GATEWAY


def _remove_one(api: Api, kind: Kind, item: dict[str, Any], id: str) -> None:
    if kind is SCHEDULES:
        schedules.remove_schedule(api, id)
    elif item.get("State") not in kind.slow:
        for step, arguments in _list_before(kind, item):
            with suppress(ProviderError):
                api.call(step, **arguments)
        api.call(kind.remove, **{kind.id: id})
        if kind.name == GATEWAY and item.get("State") == "pending":
            with suppress(ProviderError):  # it counts as if it had been there
                label_if_there(api, [id], ec2_api.UNUSED_TAG, "true")


def _list_before(kind: Kind, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What has to be undone first."""
    if kind.name == "internet gateway":
        for link in item.get("Attachments", ()):
            yield (
                "detach_internet_gateway",
                {"InternetGatewayId": item["InternetGatewayId"], "VpcId": link["VpcId"]},
            )
    elif kind.name == "route table":
        for link in item.get("Associations", ()):
            yield "disassociate_route_table", {"AssociationId": link["RouteTableAssociationId"]}
    elif kind.name == "address" and item.get("AssociationId"):
        yield "disassociate_address", {"AssociationId": item["AssociationId"]}
    elif kind.name == "security group" and item.get("IpPermissions"):
        # Groups that let each other in hold each other.
        yield (
            "revoke_security_group_ingress",
            {"GroupId": item["GroupId"], "IpPermissions": item["IpPermissions"]},
        )
