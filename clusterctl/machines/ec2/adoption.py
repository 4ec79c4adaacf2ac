"""A cluster whose record is lost, as its tags tell of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from clusterctl.core.model import CloudSpec, Cluster, ClusterSpec, Node, NodeGroup, Phase, Role
from clusterctl.machines.ec2 import prices, tags
from clusterctl.machines.ec2.answers import Instance
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.spec import CPU_DISK, PlannedMachine
from clusterctl.machines.protocol import LAUNCHER


def adopt(api: Api, cluster_id: str, name: str) -> Cluster:
    """A record of the machines, with what they cost as far as their tags and types tell."""
    found = [item for item in api.list_instances(tags.filter_by_cluster(cluster_id)) if item.node]
    disks = _measure_disks(api, cluster_id)
    machines = [
        PlannedMachine(
            name=item.node,
            instance_type=item.type,
            image="cpu",
            disk=disks.get(item.id, CPU_DISK),
        )
        for item in found
    ]
    mine = [tags.filter_by_cluster(cluster_id)]
    gateways = api.list_all("describe_nat_gateways", "NatGateways", Filter=mine)
    private = any(item["State"] in ("pending", "available") for item in gateways)
    quotes = prices.find_quotes(
        api,
        {item.type for item in found if not item.spot},
        spot={item.type for item in found if item.spot},
        zones=[item.zone for item in found],
        report=lambda line: None,
        nat=private,
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
        mode_reason=f"{api.region}, adopted",
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


def _measure_disks(api: Api, cluster_id: str) -> dict[str, int]:
    """GiB of each instance's disks, by its id."""
    found: Counter[str] = Counter()
    for disk in api.list_all(
        "describe_volumes", "Volumes", Filters=[tags.filter_by_cluster(cluster_id)]
    ):
        for link in disk.get("Attachments", ()):
            found[str(link.get("InstanceId", ""))] += int(disk.get("Size", 0))
    return dict(found)
