"""Asks the cloud itself what is left of a cluster, by its tag, and removes it."""

from __future__ import annotations

import calendar
import time
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.errors import LeftoverError, ProviderError
from clusterctl.model import Reporter
from clusterctl.providers.ec2 import eventbridge, failures
from clusterctl.providers.ec2.answers import Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.tags import as_list
from clusterctl.providers.protocol import Resource, describe, plural
from clusterctl.timeouts import Deadline

TAG, NAME_TAG = "clusterctl:cluster", "clusterctl:name"
OWNER_TAG, CLIENT_TAG, DEADLINE_TAG, SHARED_TAG = (
    "clusterctl:owner",
    "clusterctl:client",
    "clusterctl:deadline",
    "clusterctl:shared",
)
LIMIT = 600.0
"""Seconds that removing may take: a terminating GPU instance holds its network for minutes."""
MANAGED = "GuardDutyManaged"
"""Tag of what GuardDuty's runtime monitoring puts into a VPC: an endpoint, and a group for it."""
SETTLE = 10.0
"""Seconds that AWS may not yet show what was made just before, by its tags:
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""
MOST_TAGGED = 500
"""Resources in one call; EC2 takes 1,000."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
AT_A_TIME = 1000
"""Machines that one call may end."""
PAUSE = 2.0
"""Seconds between two searches: instances end slowly, and hold what they use."""


def instances(api: Api, cluster_id: str) -> list[Instance]:
    """Those of a cluster that run, or can be started again."""
    return api.instances(tagged(cluster_id), states=("pending", "running", "stopping", "stopped"))


def render_deadline(deadline: float) -> str:
    """As the tag has it: 2026-11-22T21:30:00Z."""
    return time.strftime(_TIME, time.gmtime(deadline))


def _read_deadline(tag: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(tag, _TIME)))
    except ValueError:
        return None


def label(api: Api, cluster_id: str, key: str, value: str) -> None:
    """Gives all that carries a cluster's tag another tag, whatever else it has."""
    mine = [{"Name": "key", "Values": [TAG]}, {"Name": "value", "Values": [cluster_id]}]
    ids = [item["ResourceId"] for item in api.all("describe_tags", "Tags", Filters=mine)]
    _label(api, ids, {key: value})


MACHINES = ("instance", "volume", "network-interface", "spot-instances-request")
"""What a launch makes, by the names that EC2 has for it among tags."""


def label_machines(api: Api, cluster_id: str, tags: Mapping[str, str]) -> None:
    """Gives a cluster's machines, with their disks and interfaces, those of these tags that they
    lack: what was launched stays as Terraform made it, or is unknown to Terraform."""

    def carriers(key: str, value: str) -> set[str]:
        search = [{"Name": "key", "Values": [key]}, {"Name": "value", "Values": [value]}]
        search.append({"Name": "resource-type", "Values": list(MACHINES)})
        found = api.all("describe_tags", "Tags", Filters=search)
        return {str(item["ResourceId"]) for item in found}

    mine = carriers(TAG, cluster_id)
    for key, value in tags.items():
        _label(api, sorted(mine - carriers(key, value)), {key: value})


def _label(api: Api, ids: Sequence[str], tags: Mapping[str, str]) -> None:
    for first in range(0, len(ids), MOST_TAGGED):
        some = ids[first : first + MOST_TAGGED]
        try:
            api.call("create_tags", Resources=some, Tags=as_list(tags))
        except failures.RefusedByAws as refused:
            if not refused.code.endswith(".NotFound"):
                raise
            # One that is gone, and whose tags are still shown, keeps the others from theirs.
            for id in some:
                _label_if_there(api, id, as_list(tags))


def _label_if_there(api: Api, id: str, tags: list[dict[str, str]]) -> None:
    try:
        api.call("create_tags", Resources=[id], Tags=tags)
    except failures.RefusedByAws as refused:
        if not refused.code.endswith(".NotFound"):
            raise


def tagged(cluster_id: str) -> dict[str, Any]:
    """The filter for what belongs to that cluster."""
    return {"Name": f"tag:{TAG}", "Values": [cluster_id]}


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

    @property
    def _words(self) -> list[str]:
        return (self.aws_name or self.name.lower()).split()

    @property
    def key(self) -> str:
        """Of the list in an answer."""
        return self.answer or plural("".join(word.capitalize() for word in self._words))

    @property
    def action(self) -> str:
        return f"describe_{plural('_'.join(self._words))}"

    @property
    def id(self) -> str:
        return self.field or "".join(word.capitalize() for word in (*self._words, "id"))

    @property
    def remove(self) -> str:
        words = "_".join(self._words)
        return f"{self.verb}_{plural(words) if self.many else words}"


GATEWAY = "NAT gateway"
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


def find(api: Api, cluster_id: str = "") -> tuple[Resource, ...]:
    """All that carries the cluster's tag (of all clusters, without an id), and what lies untagged
    in its VPCs. What goes with its VPC (default group, main route table) is not counted."""
    api.account()  # says soon where nobody answers, and before anything else who is not known
    return tuple(left for _, _, left in _find(api, cluster_id))


def find_priced(api: Api, price: Callable[[Api, Collection[str]], Rates]) -> tuple[Resource, ...]:
    """As `find`, of all clusters, with what each thing costs per hour. `price`: the rates of a
    region, for these instance types. Few calls where there is nothing."""
    api.account()
    if not api.all("describe_tags", "Tags", Filters=[{"Name": "key", "Values": [TAG]}]):
        return tuple(eventbridge.find(api))
    found = _find(api, "")
    running = [
        item
        for kind, item, _ in found
        if kind.name == "instance" and item["State"]["Name"] in ("pending", "running")
    ]
    kinds = {str(item["InstanceType"]) for item in running if not _spot(item)}
    rates = price(api, kinds) if found else Rates({}, None, None)
    spots = {
        (kind, zone): api.spot_price(kind, zone)
        for kind, zone in {_market(item) for item in running if _spot(item)}
    }
    ids = {str(item["InstanceId"]) for item in running}
    return tuple(
        replace(left, hourly=_hourly(kind, item, rates, spots, ids)) for kind, item, left in found
    )


def _spot(item: dict[str, Any]) -> bool:
    return item.get("InstanceLifecycle") == "spot"


def _market(item: dict[str, Any]) -> tuple[str, str]:
    return str(item["InstanceType"]), str(item.get("Placement", {}).get("AvailabilityZone", ""))


def _hourly(
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
    machine = spots[_market(item)] if _spot(item) else rates.types.get(str(item["InstanceType"]))
    address = rates.address if item.get("PublicIpAddress") else 0.0
    return None if machine is None or address is None else machine + address


def _find(api: Api, cluster_id: str) -> list[tuple[Kind, dict[str, Any], Resource]]:
    by_tag = tagged(cluster_id) if cluster_id else {"Name": "tag-key", "Values": [TAG]}
    vpcs = {
        item["VpcId"]: _tags(item) for item in api.all("describe_vpcs", "Vpcs", Filters=[by_tag])
    }
    found: dict[tuple[str, str], tuple[Kind, dict[str, Any], Resource]] = {}
    for kind in KINDS:
        searches = [by_tag]
        if kind.by_vpc and vpcs:
            searches.append({"Name": kind.by_vpc, "Values": list(vpcs)})
        for search in searches:
            for item in _items(api, kind, search):
                if _goes_by_itself(kind, item) or not item.get(kind.id):
                    continue
                tags = _tags(item) or vpcs.get(_vpc(item), {})
                if TAG not in tags:
                    tags = vpcs.get(_vpc(item), tags)
                left = Resource(
                    kind.name,
                    str(item[kind.id]),
                    tags.get(TAG, ""),
                    tags.get(NAME_TAG, ""),
                    managed=MANAGED in _tags(item),
                    owner=tags.get(OWNER_TAG, ""),
                    client=tags.get(CLIENT_TAG, ""),
                    shared=tags.get(SHARED_TAG, ""),
                    deadline=_read_deadline(tags.get(DEADLINE_TAG, "")),
                    made=item["LaunchTime"].timestamp() if "LaunchTime" in item else None,
                )
                found.setdefault((kind.name, left.id), (kind, item, left))
    schedules = eventbridge.find(api, cluster_id)
    return [*found.values(), *((SCHEDULES, {}, left) for left in schedules)]


def terminate(api: Api, cluster_id: str) -> None:
    """Begins to end all machines of a cluster at once, as far as AWS lets us. What is refused (a
    protected machine) is for who ends them one by one."""
    ids = [item.id for item in instances(api, cluster_id)]
    for first in range(0, len(ids), AT_A_TIME):
        with suppress(ProviderError):
            api.call("terminate_instances", InstanceIds=ids[first : first + AT_A_TIME])


def managed(api: Api, cluster_id: str) -> bool:
    """Whether AWS has put endpoints of its own into the cluster's network: Terraform does not know
    of them, and would wait for twenty minutes for its subnet to go."""
    vpcs = [
        item["VpcId"] for item in api.all("describe_vpcs", "Vpcs", Filters=[tagged(cluster_id)])
    ]
    search = [{"Name": "vpc-id", "Values": vpcs}]
    return bool(vpcs and api.all("describe_vpc_endpoints", "VpcEndpoints", Filters=search))


def _items(api: Api, kind: Kind, search: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in api.all(kind.action, kind.key, **{kind.filters: [search]}):
        for inner in item["Instances"] if kind.key == "Reservations" else (item,):
            state = inner.get("State", inner.get("Status", ""))
            if (state["Name"] if isinstance(state, dict) else state).lower() not in kind.gone:
                yield inner


def _tags(item: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in item.get("Tags", item.get("TagSet", ()))}


def _vpc(item: dict[str, Any]) -> str:
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


def remove(
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
        items = drop_kept(_find(api, cluster_id), keep)
        if not items:
            clean = clean or time.monotonic()
            if time.monotonic() >= clean + settle:
                return
            time.sleep(min(PAUSE, settle))
            continue
        clean = 0.0
        left = tuple(left for _, _, left in items)
        if not told:
            report(f"left over: {describe(left, ids=False)}; removing")
            told = True
        refused = _remove(api, items)
        if not waits and (coming := _coming(items, refused)):
            report(
                f"AWS is still making {coming} and does not remove it meanwhile: waiting for that,"
                " which takes some minutes"
            )
            waits = True
        stuck |= {id: error for id, error in refused.items() if failures.permanent(error)}
        over = end.passed
        if over or _hopeless(left, stuck):
            causes = list((refused if over else stuck).values())
            raise LeftoverError(
                f"cluster {cluster_id} was not fully removed: {describe(left)}"
                + (f" ({causes[0].message})" if causes else ""),
                hint=(f"{causes[0].hint}; then " if causes and causes[0].hint else "")
                + "run the same command again, or remove that in the EC2 console",
            )
        time.sleep(PAUSE)


Found = tuple[Kind, dict[str, Any], Resource]


def drop_kept(found: list[Found], keep: Callable[[Resource], bool]) -> list[Found]:
    """What is not to be kept. A disk, an interface or a spot request stays with its instance:
    Terraform may have been stopped when it knew of the instance, but not yet of its parts."""
    kept = {left.id for kind, _, left in found if kind.name == "instance" and keep(left)}
    return [
        (kind, item, left)
        for kind, item, left in found
        if not keep(left) and _holder(item) not in kept
    ]


def _holder(item: dict[str, Any]) -> str:
    """The instance that a disk or an interface is attached to, or that a spot request is for."""
    attached = item.get("Attachments") or [item.get("Attachment") or item]
    return str(attached[0].get("InstanceId", ""))


def _coming(items: Iterable[Found], refused: Container[str]) -> str:
    """The NAT gateways that could not be deleted because they are being made. AWS's documents do
    not say whether they can be."""
    return ", ".join(
        left.id
        for kind, item, left in items
        if kind.name == GATEWAY and item.get("State") == "pending" and left.id in refused
    )


def _hopeless(left: Sequence[Resource], stuck: Container[str]) -> bool:
    """Whether nothing more can go: machines hold the network that they are in."""
    machines = [item for item in left if item.kind == "instance"]
    return all(item.id in stuck for item in machines or left)


def _remove(
    api: Api, items: list[tuple[Kind, dict[str, Any], Resource]]
) -> dict[str, ProviderError]:
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
                api.call(kind.remove, **{f"{kind.id}s": [left.id for _, left in mine]})
                continue
        except ProviderError as error:
            refused |= {left.id: error for _, left in mine}
            continue
        for item, left in mine:
            if item.get("State") in kind.slow:
                continue
            try:
                for step, arguments in _before(kind, item):
                    with suppress(ProviderError):
                        api.call(step, **arguments)
                api.call(kind.remove, **{kind.id: left.id})
            except ProviderError as error:
                refused[left.id] = error
    for left in (left for kind, _, left in items if kind is SCHEDULES and not instances):
        try:
            eventbridge.remove(api, left.id)
        except ProviderError as error:
            refused[left.id] = error
    return refused


def _before(kind: Kind, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
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
