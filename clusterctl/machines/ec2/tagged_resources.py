"""What a cluster has in the cloud: finds it by tag, thing by thing, and says what it costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.core.text import pluralize
from clusterctl.machines.ec2 import eventbridge
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import RefusedByAws
from clusterctl.machines.ec2.tags import (
    CLIENT_TAG,
    DEADLINE_TAG,
    NAME_TAG,
    OWNER_TAG,
    SHARED_TAG,
    TAG,
    filter_by_cluster,
    read_deadline,
)
from clusterctl.machines.protocol import Resource

_NOT_ASKED = ("UnauthorizedOperation", "InvalidAction")
"""Whoever may not ask, and regions that do not know such things."""
MANAGED = "GuardDutyManaged"
"""Tag of what GuardDuty's runtime monitoring puts into a VPC: an endpoint, and a group for it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per hour in a region: of instance types, a GiB of disk, an address, a NAT gateway.
    None: unknown."""

    types: Mapping[str, float | None]
    gib: float | None
    address: float | None
    nat: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How to find and remove things of one kind. AWS's names of it follow from `name`, with few
    exceptions."""

    name: str
    aws_name: str = ""
    answer: str = ""
    field: str = ""
    """That says which it is, where it is not `NameId`."""
    verb: str = "delete"
    many: bool = False
    """Removed by a list of ids."""
    by_vpc: str = ""
    """Filter that finds untagged ones in a VPC of ours."""
    gone: tuple[str, ...] = ()
    """States in which it is no longer there."""
    filters: str = "Filters"
    """What the parameter with filters is called."""
    slow: tuple[str, ...] = ()
    """States in which it goes, which takes minutes, and must not be told again."""
    later: bool = False
    """An earlier version had no such things: its users may not ask for them, and have none."""

    @property
    def _words(self) -> list[str]:
        return (self.aws_name or self.name.lower()).split()

    @property
    def key(self) -> str:
        """Of the list in an answer."""
        return self.answer or pluralize("".join(word.capitalize() for word in self._words))

    @property
    def action(self) -> str:
        return f"describe_{pluralize('_'.join(self._words))}"

    @property
    def id(self) -> str:
        return self.field or "".join(word.capitalize() for word in (*self._words, "id"))

    @property
    def remove(self) -> str:
        words = "_".join(self._words)
        return f"{self.verb}_{pluralize(words) if self.many else words}"


ENDPOINT, GATEWAY = "Instance Connect endpoint", "NAT gateway"
KINDS = (
    # In the order in which they can be removed.
    Kind(
        name="spot request",
        aws_name="spot instance request",
        verb="cancel",
        many=True,
        gone=("cancelled", "closed", "failed"),
    ),
    Kind(
        name="instance",
        answer="Reservations",
        verb="terminate",
        many=True,
        by_vpc="vpc-id",
        gone=("terminated",),
    ),
    Kind(
        name=GATEWAY,
        by_vpc="vpc-id",
        gone=("deleted",),
        filters="Filter",
        slow=("deleting",),
    ),
    Kind(name="address", field="AllocationId", verb="release"),
    Kind(name="volume"),
    Kind(name="VPC endpoint", many=True, by_vpc="vpc-id", gone=("deleted",)),
    Kind(
        name=ENDPOINT,
        by_vpc="vpc-id",
        gone=("delete-complete",),
        # AWS deletes none that is being made: cloudformation-coverage-roadmap, issue 2000.
        slow=("create-in-progress", "update-in-progress", "delete-in-progress"),
        later=True,
    ),
    Kind(name="network interface", by_vpc="vpc-id"),
    Kind(name="launch template"),
    Kind(name="placement group", field="GroupName", gone=("deleted", "deleting")),
    Kind(name="key pair", field="KeyName"),
    Kind(name="security group", field="GroupId", by_vpc="vpc-id"),
    Kind(name="internet gateway", by_vpc="attachment.vpc-id"),
    Kind(name="subnet", by_vpc="vpc-id"),
    Kind(name="route table", by_vpc="vpc-id"),
    Kind(name="VPC"),
)
SCHEDULES = Kind(name=eventbridge.KIND)
"""The last to go: they are for machines that are not gone yet."""
Found = tuple[Kind, dict[str, Any], Resource]
"""Its kind, what EC2 says of it, and what it is for people."""


def find_tagged(api: Api, cluster_id: str = "") -> tuple[Resource, ...]:
    """All that carries the cluster's tag (of all clusters, without an id), and what lies untagged
    in its VPCs. What goes with its VPC (default group, main route table) is not counted."""
    api.find_account()  # says soon where nobody answers, and before anything else who is not known
    return tuple(left for _, _, left in search(api, cluster_id))


def find_priced(api: Api, price: Callable[[Api, Collection[str]], Rates]) -> tuple[Resource, ...]:
    """As `find`, of all clusters, with what each thing costs per hour. `price`: the rates of a
    region, for these instance types. Few calls where there is nothing."""
    api.find_account()
    if not api.list_all("describe_tags", "Tags", Filters=[{"Name": "key", "Values": [TAG]}]):
        return tuple(eventbridge.find_schedule(api))
    found = search(api, "")
    running = [
        item
        for kind, item, _ in found
        if kind.name == "instance" and item["State"]["Name"] in ("pending", "running")
    ]
    kinds = {str(item["InstanceType"]) for item in running if not _is_spot(item)}
    rates = price(api, kinds) if found else Rates({}, None, None)
    spots = {
        (kind, zone): api.find_spot_price(kind, zone)
        for kind, zone in {_read_market(item) for item in running if _is_spot(item)}
    }
    ids = {str(item["InstanceId"]) for item in running}
    return tuple(
        replace(left, hourly=_compute_hourly(kind, item, rates, spots, ids))
        for kind, item, left in found
    )


def _is_spot(item: dict[str, Any]) -> bool:
    return item.get("InstanceLifecycle") == "spot"


def _read_market(item: dict[str, Any]) -> tuple[str, str]:
    return str(item["InstanceType"]), str(item.get("Placement", {}).get("AvailabilityZone", ""))


def _compute_hourly(
    kind: Kind,
    item: dict[str, Any],
    rates: Rates,
    spots: Mapping[tuple[str, str], float | None],
    running: Collection[str],
) -> float | None:
    if kind.name == "volume":
        return None if rates.gib is None else rates.gib * float(item.get("Size", 0))
    if kind.name == "address":
        return rates.address
    if kind.name == GATEWAY:
        return rates.nat if item.get("State") in ("pending", "available") else 0.0
    if kind.name != "instance" or item["InstanceId"] not in running:
        return 0.0
    machine = (
        spots[_read_market(item)] if _is_spot(item) else rates.types.get(str(item["InstanceType"]))
    )
    address = rates.address if item.get("PublicIpAddress") else 0.0
    return None if machine is None or address is None else machine + address


def search(api: Api, cluster_id: str) -> list[tuple[Kind, dict[str, Any], Resource]]:
    by_tag = filter_by_cluster(cluster_id) if cluster_id else {"Name": "tag-key", "Values": [TAG]}
    vpcs = {
        item["VpcId"]: _read_tags(item)
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
                tags = _read_tags(item) or vpcs.get(_read_vpc(item), {})
                if TAG not in tags:
                    tags = vpcs.get(_read_vpc(item), tags)
                left = Resource(
                    kind.name,
                    str(item[kind.id]),
                    tags.get(TAG, ""),
                    tags.get(NAME_TAG, ""),
                    managed=MANAGED in _read_tags(item),
                    owner=tags.get(OWNER_TAG, ""),
                    client=tags.get(CLIENT_TAG, ""),
                    shared=tags.get(SHARED_TAG, ""),
                    deadline=read_deadline(tags.get(DEADLINE_TAG, "")),
                    made=item["LaunchTime"].timestamp() if "LaunchTime" in item else None,
                )
                found.setdefault((kind.name, left.id), (kind, item, left))
    schedules = eventbridge.find_schedule(api, cluster_id)
    return [*found.values(), *((SCHEDULES, {}, left) for left in schedules)]


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
        found = api.list_all(kind.action, kind.key, **{kind.filters: [search]})
    except RefusedByAws as refused:
        if not (kind.later and refused.code in _NOT_ASKED):
            raise
        return
    for item in found:
        for inner in item["Instances"] if kind.key == "Reservations" else (item,):
            state = inner.get("State", inner.get("Status", ""))
            if (state["Name"] if isinstance(state, dict) else state).lower() not in kind.gone:
                yield inner


def _read_tags(item: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", item.get("TagSet", ()))}


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
