"""What EC2 shows of the machines and NAT gateways of a cluster, and since or until when; and the
record of a cluster by its tags, where its own was lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.model import (
    GATEWAY,
    GATEWAY_ADDRESS,
    CloudSpec,
    Cluster,
    ClusterSpec,
    Node,
    NodeGroup,
    Phase,
    Role,
    Thing,
)
from clusterctl.core.text import format_time
from clusterctl.errors import ProviderError
from clusterctl.machines import ledger
from clusterctl.machines.ec2 import prices, spec
from clusterctl.machines.ec2.api import (
    ENDED,
    LIVING,
    STOPPED,
    UNUSED_TAG,
    Api,
    Instance,
    filter_by_cluster,
    read_tags,
)
from clusterctl.machines.ec2.spec import ADOPTED, LAUNCHER_DISK, PlannedMachine
from clusterctl.machines.protocol import LAUNCHER


def list_things(api: Api, cluster: Cluster, folder: Path | None) -> tuple[Thing, ...]:
    """All that costs money, also what has ended while EC2 shows it. Workers of a cluster of spot
    instances have a price where the ledger has none: they may be on demand, or in another zone."""
    found = api.list_instances(filter_by_cluster(cluster.id), states=(*LIVING, *ENDED))
    memory = spec.load_state(folder) if folder else None
    guarded = bool(memory and memory.guarded)
    machines = [_read(item, guarded) for item in found if item.node]
    if cluster.spec.cloud.spot:
        known = {thing.id for look in ledger.read_looks(folder) for thing in look.things}
        new = [item for item in found if item.id not in known and item.node not in ("", LAUNCHER)]
        ask = cache(partial(prices.find_quote, api))
        quotes = {one.id: ask(one.type, *[one.zone] * one.spot) for one in new}
        machines = [
            replace(one, hourly=quote.dollars, source=quote.source)
            if (quote := quotes.get(one.id))
            else one
            for one in machines
        ]
    return (*machines, *_list_network(api, cluster, guarded))


def record_sighting(api: Api, cluster: Cluster, folder: Path) -> None:
    """Puts what there is now into the ledger: in the middle of an `up`, before something goes that
    nobody else will have seen. An AWS that does not answer ends no `up`."""
    with suppress(ProviderError):
        ledger.add(folder, cluster, list_things(api, cluster, folder), time.time())


def _read(item: Instance, guarded: bool) -> Thing:
    state = "ended" if item.state in ENDED else "off" if item.state in STOPPED else "on"
    return Thing(
        id=item.id,
        node=item.node,
        state=state,
        since=item.launched,
        until=None if state == "on" else item.ended,
        born=item.born,
        lasts=state == "off" and not guarded,
        item=item.type,
    )


def _list_network(api: Api, cluster: Cluster, guarded: bool) -> Iterator[Thing]:
    """The NAT gateways and their addresses of a cluster that pays for such: an `up` that has moved
    to another zone has made one in each. One that failed, or is known to have been removed before
    it was there, ended as it began."""
    parts, search = {item.part for item in cluster.charges}, [filter_by_cluster(cluster.id)]
    if GATEWAY in parts:
        for row in api.list_all("describe_nat_gateways", "NatGateways", Filter=search):
            yield replace(_read_gateway(row), lasts=not guarded)
    if GATEWAY_ADDRESS in parts:
        for row in api.list_all("describe_addresses", "Addresses", Filters=search):
            yield Thing(
                id=row["AllocationId"], node=LAUNCHER, part=GATEWAY_ADDRESS, lasts=not guarded
            )


def _read_gateway(row: dict[str, Any]) -> Thing:
    made, end = row.get("CreateTime"), row.get("DeleteTime")
    there = row.get("State") in ("pending", "available")
    if row.get("FailureCode") or UNUSED_TAG in read_tags(row):
        end = made
    return Thing(
        id=row["NatGatewayId"],
        node=LAUNCHER,
        part=GATEWAY,
        state="on" if there else "ended",
        since=made.timestamp() if made else None,
        until=end.timestamp() if end and not there else None,
    )


def describe_instances(api: Api, cluster: Cluster) -> dict[str, str]:
    """How each node's instance is, in words; before there are nodes, each instance."""
    found = find_newest(api, cluster)
    paused = cluster.phase is Phase.STOPPED
    return {
        name: _describe_instance(found[name], paused)
        if name in found
        else "gone: AWS has no such instance"
        for name in [node.name for node in cluster.nodes] or sorted(found)
    }


def list_ending(api: Api, cluster: Cluster, reclaimed: Collection[str]) -> frozenset[str]:
    """The nodes that AWS is ending; those in `reclaimed` count even if it does not show it yet."""
    return frozenset(
        name
        for name, item in find_newest(api, cluster).items()
        if item.state == "shutting-down"
        or (name in reclaimed and item.state in ("pending", "running"))
    )


def find_newest(api: Api, cluster: Cluster) -> dict[str, Instance]:
    """By node, while EC2 shows them: for an hour after their end."""
    states = (*LIVING, "terminated")
    found = api.list_instances(filter_by_cluster(cluster.id), states=states)
    # One that was made anew has the name of the one that is gone.
    machines = {node.machine for node in cluster.nodes}
    found.sort(key=lambda item: (item.state != "terminated", item.id in machines))
    return {item.node: item for item in found}


_WHY = {
    "Client.InstanceInitiatedShutdown": "it shut itself down",
    "Client.UserInitiatedShutdown": "by a call of the EC2 API",
    "Server.SpotInstanceTermination": "EC2 reclaimed the spot instance",
    "Service initiated": "by EC2",
}


def _describe_instance(item: Instance, paused: bool) -> str:
    """`terminated 2026-11-22 21:30: EC2 reclaimed the spot instance`. `paused`: of a cluster that
    we have stopped."""
    if item.state in ("pending", "running"):
        return item.state
    when = f" {format_time(item.ended)}" if item.ended else ""
    why = _WHY.get(item.why, item.why)
    if paused and item.state in STOPPED and item.why == "Client.UserInitiatedShutdown":
        why = "by `clusterctl stop`"
    return f"{item.state}{when}" + (f": {why}" if why else "")


# -------------------------------------------------------------------------------------------------
# A cluster whose record is lost, as its tags tell of it.


def adopt(api: Api, cluster_id: str, name: str) -> Cluster:
    """A record of the machines, with what they cost as far as their tags and types tell."""
    found = [item for item in api.list_instances(filter_by_cluster(cluster_id)) if item.node]
    disks = _measure_disks(api, cluster_id)
    machines = [
        PlannedMachine(
            name=item.node,
            instance_type=item.type,
            image="cpu",
            disk=disks[item.id][0] if item.id in disks else LAUNCHER_DISK,
            faster=disks[item.id][1] if item.id in disks else 0,
        )
        for item in found
    ]
    mine = [filter_by_cluster(cluster_id)]
    gateways = api.list_all("describe_nat_gateways", "NatGateways", Filter=mine)
    private = any(item["State"] in ("pending", "available") for item in gateways)
    quotes = prices.find_quotes(
        api,
        {item.type for item in found if not item.spot},
        spot={item.type for item in found if item.spot},
        zones=[item.zone for item in found],
        nat=private,
        faster=any(machine.faster for machine in machines),
    )
    starts = {item.node: item.launched for item in found}
    since = min((item.launched for item in found), default=0.0)
    ordered = sorted(found, key=lambda item: (item.node != LAUNCHER, item.node))
    nodes = tuple(_build_node(item, cluster_id) for item in ordered)
    shared = next((item.shared for item in found if item.shared), "")
    workers = Counter(node.instance_type for node in nodes if node.role is Role.WORKER)
    groups = tuple(NodeGroup(count=count, instance_type=kind) for kind, count in workers.items())
    return Cluster(
        id=cluster_id,
        spec=ClusterSpec(
            name=name,
            provider="ec2",
            groups=groups,
            shared=bool(shared),
            cloud=CloudSpec(region=api.region),
        ),
        phase=Phase.CREATING,
        created=since or time.time(),
        mode="ec2",
        mode_reason=f"{api.region}{ADOPTED}",
        nodes=nodes,
        charges=tuple(
            replace(charge, since=starts.get(charge.node, since))
            for charge in prices.build_charges(machines, quotes, since, private=private)
        ),
        account=api.find_account(),
        shared=shared,
    )


def _build_node(item: Instance, cluster_id: str) -> Node:
    """As nodes of ours usually are: where it lies and who may log in is not among its tags."""
    launcher = item.node == LAUNCHER
    return Node(
        name=item.node,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=item.address if launcher else item.private_address,
        private_address=item.private_address,
        ssh_port=22,
        job_port=22,
        user="ubuntu",
        root=f"/home/ubuntu/.clusterctl/{cluster_id}",
        via="" if launcher else LAUNCHER,
        instance_type=item.type,
        machine=item.id,
    )


def _measure_disks(api: Api, cluster_id: str) -> dict[str, tuple[int, int]]:
    """GiB of each instance's disks, and MB/s beyond the usual ones, by its id."""
    found: dict[str, tuple[int, int]] = {}
    for disk in api.list_all(
        "describe_volumes", "Volumes", Filters=[filter_by_cluster(cluster_id)]
    ):
        for link in disk.get("Attachments", ()):
            id, usual = str(link.get("InstanceId", "")), int(catalog.INSTALLS.disk)
            size, faster = found.get(id, (0, 0))
            more = max(0, int(disk.get("Throughput", 0)) - usual)
            found[id] = size + int(disk.get("Size", 0)), faster + more
    return found
