"""A cluster whose record is lost, as its tags tell of it."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.model import Charge, Node, Role
from clusterctl.providers.ec2 import prices, sweep
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.spec import CPU_DISK, LAUNCHER, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """`since`: when the first of them was started, 0 without any. `account`: AWS's number."""

    nodes: tuple[Node, ...]
    charges: tuple[Charge, ...]
    since: float
    account: str


def adopt(api: Api, cluster_id: str) -> Adopted:
    """The machines, and what they cost as far as their tags and types tell."""
    found = [item for item in api.instances(sweep.tagged(cluster_id)) if item.node]
    kinds = api.instance_types({item.type for item in found}) if found else {}
    machines = [
        Machine(name=item.node, instance_type=item.type, image="cpu", disk=CPU_DISK)
        for item in found
    ]
    spots = {item.type for item in found if item.spot}
    quotes = prices.quotes(
        api, kinds, spot=spots, zone=found[0].zone if found else "", tell=lambda line: None
    )
    since = min((item.launched for item in found), default=0.0)
    nodes = tuple(
        Node(
            name=item.node,
            role=Role.LAUNCHER if item.node == LAUNCHER else Role.WORKER,
            address=item.address if item.node == LAUNCHER else item.private_address,
            private_address=item.private_address,
            ssh_port=22,
            job_port=22,
            user="ubuntu",
            root=f"/home/ubuntu/.clusterctl/{cluster_id}",
            via="" if item.node == LAUNCHER else LAUNCHER,
            instance_type=item.type,
            machine=item.id,
        )
        for item in sorted(found, key=lambda item: (item.node != LAUNCHER, item.node))
    )
    return Adopted(
        nodes=nodes,
        charges=prices.charges(machines, quotes, api.region, since),
        since=since,
        account=api.account(),
    )
