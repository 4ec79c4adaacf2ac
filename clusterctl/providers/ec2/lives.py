"""Which machines of a cluster there are, and since or until when."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
from pathlib import Path

from clusterctl.charge_model import GATEWAY, GATEWAY_ADDRESS
from clusterctl.formats import format_time
from clusterctl.model import Cluster, Phase
from clusterctl.providers.ec2 import history
from clusterctl.providers.ec2.answers import ENDED, LIVING, STOPPED, Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.instances import find_instances
from clusterctl.providers.ec2.tags import UNUSED_TAG, filter_by_cluster
from clusterctl.providers.protocol import Ended, Life
from clusterctl.providers.shared.charges import LATER, SHOWN, find_seen


def list_billed(api: Api, cluster: Cluster) -> dict[str, str]:
    """The instances that AWS bills, by node."""
    found = find_instances(api, cluster.id)
    return {item.node: item.id for item in found if item.node}


def find_network(api: Api, cluster: Cluster, *, pending: bool = True) -> frozenset[str]:
    """Whether there are a NAT gateway and its address, as NETWORK_PARTS: they may be there without
    any instance, and the address without the gateway. AWS bills gateways that are available; one
    that is `pending` will be."""
    states = ("pending", "available") if pending else ("available",)
    paid = {item.part for item in cluster.charges if item.until is None}
    found = set()
    if GATEWAY in paid and _finds_gateway(api, cluster, states):
        found.add(GATEWAY)
    search = [filter_by_cluster(cluster.id)]
    if GATEWAY_ADDRESS in paid and api.list_all("describe_addresses", "Addresses", Filters=search):
        found.add(GATEWAY_ADDRESS)
    return frozenset(found)


def list_lives(api: Api, cluster: Cluster) -> tuple[Life, ...]:
    """Also of instances and a NAT gateway that have ended, while EC2 shows them."""
    found = api.list_instances(filter_by_cluster(cluster.id), states=(*LIVING, *ENDED))
    machines = (
        Life(item.node, item.launched, item.ended if item.state in ENDED else None)
        for item in found
        if item.node
    )
    return (*machines, *_list_gateway_lives(api, cluster))


def _list_gateway_lives(api: Api, cluster: Cluster) -> Iterator[Life]:
    """Of its NAT gateways, as GATEWAY: an `up` that has moved to another zone has made one in each,
    and so has one that was cut off before Terraform knew of the first. One that failed costs
    nothing, nor does one that is still being made; where there were others, it is what goes on.
    One that is known to have been removed before it was there ended as it began."""
    if not any(item.part == GATEWAY for item in cluster.charges):
        return
    found = api.list_all(
        "describe_nat_gateways", "NatGateways", Filter=[filter_by_cluster(cluster.id)]
    )
    known = [item for item in found if "CreateTime" in item and not item.get("FailureCode")]
    if all(item.get("State") == "pending" for item in known):
        return
    for item in sorted(known, key=lambda item: item["CreateTime"]):
        end = item.get("DeleteTime")
        if any(tag["Key"] == UNUSED_TAG for tag in item.get("Tags", ())):
            end = item["CreateTime"]
        yield Life(GATEWAY, item["CreateTime"].timestamp(), end.timestamp() if end else None)


def list_last(api: Api, cluster: Cluster) -> list[Instance]:
    """The instance of each node: that which can run, else what EC2 still shows of the last one."""
    found = api.list_instances(filter_by_cluster(cluster.id), states=(*LIVING, *ENDED))
    found.sort(key=lambda item: (item.state not in ENDED, item.launched))
    return list({item.node: item for item in found}.values())


def describe(api: Api, cluster: Cluster) -> dict[str, str]:
    """How each node's instance is, in words."""
    found = _find_instances(api, cluster)
    return {
        node.name: _describe(found[node.name])
        if node.name in found
        else "gone: AWS has no such instance"
        for node in cluster.nodes
    }


def list_ended(
    api: Api, cluster: Cluster, now: float, folder: Path | None = None
) -> dict[str, Ended]:
    """What has stopped or ended, and when; `now` in seconds since the epoch. `folder`: the
    cluster's, which keeps ends that EC2 does not show any more."""
    shown = list_last(api, cluster)
    ends = {
        item.node: Ended(item.ended, item.state in STOPPED)
        for item in shown
        if item.node and item.ended and item.state not in ("pending", "running")
    }
    seen = {item.node for item in shown}
    forgotten = history.list_forgotten(api, cluster, now, seen, folder)
    # Those of an `up` that was cut off have no id on record.
    recorded = {GATEWAY, *(node.name for node in cluster.nodes)}
    latest = Ended(min(now, cluster.deadline or now), doubt="it was not on record yet")
    lost = dict.fromkeys(find_seen(cluster) - seen - recorded, latest)
    return find_gateway_end(api, cluster, now) | lost | ends | forgotten


def list_ending(api: Api, cluster: Cluster, reclaimed: Collection[str]) -> frozenset[str]:
    """The nodes that AWS is ending; those in `reclaimed` count even if it does not show it yet."""
    return frozenset(
        name
        for name, item in _find_instances(api, cluster).items()
        if item.state == "shutting-down"
        or (name in reclaimed and item.state in ("pending", "running"))
    )


def find_gateway_end(api: Api, cluster: Cluster, now: float) -> dict[str, Ended]:
    """When the NAT gateway has gone of a cluster whose deadline is over, or that a command was
    changing which may have been cut off."""
    over = cluster.deadline is not None and now > cluster.deadline
    changing = cluster.phase in (Phase.CREATING, Phase.DELETING)
    if not (has_gateway(cluster) and (over or changing)):
        return {}
    if _finds_gateway(api, cluster, ("pending", "available")):
        return {}
    gone = max((life.until or 0.0 for life in _list_gateway_lives(api, cluster)), default=0.0)
    planned = (cluster.deadline or inf) + LATER
    only_planned = cluster.phase is Phase.CREATING and GATEWAY not in find_seen(cluster)
    if not gone and only_planned and now <= planned + SHOWN:
        return {}  # there was none: EC2 would show it
    return {GATEWAY: Ended(gone or min(now, planned))}


def _finds_gateway(api: Api, cluster: Cluster, states: Collection[str]) -> bool:
    search = [filter_by_cluster(cluster.id)]
    found = api.list_all("describe_nat_gateways", "NatGateways", Filter=search)
    return any(item["State"] in states for item in found)


def _find_instances(api: Api, cluster: Cluster) -> dict[str, Instance]:
    """By node, while EC2 shows them: for an hour after their end."""
    states = (*LIVING, "terminated")
    found = api.list_instances(filter_by_cluster(cluster.id), states=states)
    # One that was made anew has the name of the one that is gone.
    machines = {node.machine for node in cluster.nodes}
    found.sort(key=lambda item: (item.state != "terminated", item.id in machines))
    return {item.node: item for item in found}


def has_gateway(cluster: Cluster) -> bool:
    """Whether it pays for a NAT gateway of its own."""
    return any(item.part == GATEWAY and item.until is None for item in cluster.charges)


_WHY = {
    "Client.InstanceInitiatedShutdown": "it shut itself down",
    "Client.UserInitiatedShutdown": "by a call of the EC2 API",
    "Server.SpotInstanceTermination": "EC2 reclaimed the spot instance",
    "Service initiated": "by EC2",
}


def _describe(item: Instance) -> str:
    """`terminated 2026-11-22 21:30: EC2 reclaimed the spot instance`."""
    if item.state in ("pending", "running"):
        return item.state
    when = f" {format_time(item.ended)}" if item.ended else ""
    why = _WHY.get(item.why, item.why)
    return f"{item.state}{when}" + (f": {why}" if why else "")
