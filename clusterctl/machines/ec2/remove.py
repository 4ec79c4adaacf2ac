"""Removes what is left of a cluster in the cloud."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.core.clock import Deadline
from clusterctl.core.model import Reporter
from clusterctl.core.text import pluralize
from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import deadline, prices, refusals
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
    label_resource,
    read_deadline,
)
from clusterctl.machines.ec2.refusals import RefusedByAws
from clusterctl.machines.protocol import Resource, describe_resources

# -------------------------------------------------------------------------------------------------
# What a cluster has in the cloud: finds it by tag, thing by thing, and says what it costs.


_NOT_ASKED = ("UnauthorizedOperation", "InvalidAction")
"""Whoever may not ask, and regions that do not know such things."""
MANAGED = "GuardDutyManaged"
"""Tag of what GuardDuty's runtime monitoring puts into a VPC: an endpoint, and a group for it."""


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
SCHEDULES = Kind(name=deadline.KIND)
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
        return tuple(deadline.find_schedule(api))
    found = search(api, "")
    running = [
        item
        for kind, item, _ in found
        if kind.name == "instance" and item["State"]["Name"] in ("pending", "running")
    ]
    kinds = {str(item["InstanceType"]) for item in running if not _is_spot(item)}
    rates = prices.find_rates(api, kinds)
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
    rates: prices.Rates,
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
    schedules = deadline.find_schedule(api, cluster_id)
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
    instances = [left for kind, _, left in items if kind.name == "instance"]
    gateways = [left for kind, _, left in items if kind.name == GATEWAY]
    for kind in KINDS:
        mine = [(item, left) for owner, item, left in items if owner is kind]
        if not mine:
            continue
        # Refused anyway until they are gone.
        if instances and kind.by_vpc and kind.name != "instance":
            continue
        held = kind.by_vpc or kind.name == "address"
        if gateways and held and kind.name not in ("instance", GATEWAY):
            continue
        try:
            if kind.many:
                ids = [left.id for _, left in mine]
                for first in range(0, len(ids), AT_A_TIME):
                    api.call(kind.remove, **{f"{kind.id}s": ids[first : first + AT_A_TIME]})
                continue
        except ProviderError as error:
            refused |= {left.id: error for _, left in mine}
            continue
        for item, left in mine:
            if item.get("State") in kind.slow:
                continue
            try:
                for step, arguments in _list_before(kind, item):
                    with suppress(ProviderError):
                        api.call(step, **arguments)
                api.call(kind.remove, **{kind.id: left.id})
                if kind.name == GATEWAY and item.get("State") == "pending":
                    with suppress(ProviderError):  # it counts as if it had been there
                        label_resource(api, left.id, ec2_api.UNUSED_TAG, "true")
            except ProviderError as error:
                refused[left.id] = error
    for left in (left for kind, _, left in items if kind is SCHEDULES and not instances):
        try:
            deadline.remove_schedule(api, left.id)
        except ProviderError as error:
            refused[left.id] = error
    return refused


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
