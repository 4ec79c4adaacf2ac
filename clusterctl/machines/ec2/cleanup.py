"""Removes what is left of a cluster in the cloud."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from clusterctl.core.clock import Deadline
from clusterctl.core.errors import LeftoverError, ProviderError
from clusterctl.core.model import Reporter
from clusterctl.machines.ec2 import eventbridge, failures, tags
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.instances import AT_A_TIME
from clusterctl.machines.ec2.tagged_resources import (
    ENDPOINT,
    GATEWAY,
    KINDS,
    SCHEDULES,
    Found,
    Kind,
    search,
)
from clusterctl.machines.ec2.tagging import label_resource
from clusterctl.machines.protocol import Resource, describe_resources

LIMIT = 600.0
"""Seconds that removing may take: a terminating GPU instance holds its network for minutes."""
PAUSE = 2.0
"""Seconds between two searches: instances end slowly, and hold what they use."""


def remove_all(api: Api, cluster_id: str, report: Reporter, *, settle: float = 0.0) -> None:
    """Removes a cluster as `remove` does, and says that AWS has nothing left of it."""
    remove_cluster(api, cluster_id, report, settle=settle)
    report(f"asked AWS again: nothing tagged {tags.TAG}={cluster_id} is left in {api.region}")


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
        stuck |= {id: error for id, error in refused.items() if failures.is_permanent(error)}
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
                        label_resource(api, left.id, tags.UNUSED_TAG, "true")
            except ProviderError as error:
                refused[left.id] = error
    for left in (left for kind, _, left in items if kind is SCHEDULES and not instances):
        try:
            eventbridge.remove_schedule(api, left.id)
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
