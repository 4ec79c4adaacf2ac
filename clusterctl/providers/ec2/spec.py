"""From options to named machines and Terraform's variables. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from clusterctl import catalog
from clusterctl.errors import UsageError
from clusterctl.model import ClusterSpec, NodeGroup
from clusterctl.providers.ec2.reservations import Reservation
from clusterctl.providers.shared.nodes import LAUNCHER, node_names

MAX_WORKERS = 1000
PARALLELISM = (10, 64)
"""Terraform's -parallelism: at least its default, at most what AWS bears without throttling."""

FEW, ATTEMPTS = 24, (5, 8)
"""How often Terraform's provider tries a request to AWS, for clusters of FEW machines and for
larger ones. EC2 lets five launches through and then two a second; the provider launches each
machine by a call of its own, and waits longer after each refusal: docs/adr/0018 has the numbers."""

LAUNCHER_DISK = 30
GPU_DISK, CPU_DISK = 100, 30
"""GiB, as infra/ec2 has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """A node to be. `image` is a kind: launcher, cpu, nvidia or amd. `disk` in GiB."""

    name: str
    instance_type: str
    image: str
    disk: int


def launcher_type(spec: ClusterSpec) -> str:
    return spec.cloud.launcher_type or catalog.LAUNCHER_TYPE


def check(spec: ClusterSpec) -> None:
    """What is wrong before AWS is asked: raises UsageError for the number of workers, and for a
    family that there is not."""
    node_names(spec.workers, most=MAX_WORKERS, what="a cluster on EC2")
    for group in spec.groups:
        kind = catalog.instance_type(group)
        if group.family not in ("", "cpu") and kind.partition(".")[0] != group.family:
            raise UsageError(
                f"--gpu {group.family} and --instance-type {kind} contradict each other:"
                f" {kind} has no {catalog.family(group.family).gpu}",
                hint=f"leave one of the two out, or name a type such as"
                f" {catalog.family(group.family).instance_type}",
            )


def types(spec: ClusterSpec) -> tuple[str, ...]:
    """Every instance type of the cluster, the launcher's last."""
    return tuple(dict.fromkeys((*map(catalog.instance_type, spec.groups), launcher_type(spec))))


def image_kind(group: NodeGroup, gpu_makers: Mapping[str, str]) -> str:
    """Which machine image a group needs: by its family, else by the maker of its GPUs."""
    if group.family:
        return catalog.family(group.family).image
    kinds = {"nvidia": "nvidia", "amd": "amd"}
    return kinds.get(gpu_makers.get(group.instance_type, "").lower(), "cpu")


def numbers(groups: Sequence[NodeGroup], present: Mapping[int, str]) -> tuple[tuple[int, ...], ...]:
    """The workers' numbers, per group. `present` are those there are, with their instance types:
    each keeps its number while its type is wanted, so that growing and shrinking touches no other.
    """
    free_of_type: dict[str, list[int]] = {}
    for number in sorted(present):
        free_of_type.setdefault(present[number], []).append(number)
    kept = []
    for group in groups:
        mine = free_of_type.get(catalog.instance_type(group), [])
        kept.append(mine[: group.count])
        free_of_type[catalog.instance_type(group)] = mine[group.count :]
    taken = {number for group in kept for number in group}
    fresh = (number for number in count(1) if number not in taken)
    return tuple(
        (*have, *(next(fresh) for _ in range(group.count - len(have))))
        for group, have in zip(groups, kept, strict=True)
    )


def machines(
    spec: ClusterSpec, gpu_makers: Mapping[str, str], present: Mapping[int, str]
) -> tuple[PlannedMachine, ...]:
    """The launcher, then the workers by number."""
    workers = {}
    for group, own in zip(spec.groups, numbers(spec.groups, present), strict=True):
        kind = image_kind(group, gpu_makers)
        disk = spec.cloud.disk or (CPU_DISK if kind == "cpu" else GPU_DISK)
        for number in own:
            workers[number] = PlannedMachine(
                name=f"worker-{number}",
                instance_type=catalog.instance_type(group),
                image=kind,
                disk=disk,
            )
    launcher = PlannedMachine(
        name=LAUNCHER, instance_type=launcher_type(spec), image="launcher", disk=LAUNCHER_DISK
    )
    return (launcher, *(workers[number] for number in sorted(workers)))


def present(nodes: Mapping[str, str]) -> dict[int, str]:
    """Worker numbers with instance types, from node names with instance types."""
    return {
        int(name.removeprefix("worker-")): kind
        for name, kind in nodes.items()
        if name.startswith("worker-")
    }


def cidr(cluster_id: str) -> str:
    """A /16 of the cluster's own: routes and jump hosts of two clusters cannot be confused."""
    digest = hashlib.sha256(cluster_id.encode()).digest()
    return f"10.{64 + digest[0] % 64}.0.0/16"


def parallelism(nodes: int) -> int:
    least, most = PARALLELISM
    return max(least, min(most, nodes + 8))


def variables(
    *,
    cluster_id: str,
    name: str,
    region: str,
    zone: str,
    machines: Sequence[PlannedMachine],
    amis: Mapping[str, str],
    spot: bool,
    placement: Container[str],
    efa: bool,
    subnet: str,
    launcher_subnet: str = "",
    private: bool = False,
    efa_cards: Mapping[str, Sequence[str]] = {},
    reservation: Reservation | None,
    ssh_cidr: str,
    public_key: str,
    user_data: Mapping[str, str],
    hours: float,
    owner: str = "",
    client: str = "",
    deadline: str = "",
    shared: str = "",
    tags: Mapping[str, str] | None = None,
    apart: Collection[str] = (),
    on_demand: Collection[str] = (),
) -> dict[str, Any]:
    """infra/ec2's variables. `placement`: the types that may be in a cluster placement group;
    `apart`: the workers that Terraform does not make; `on_demand`: those that are no spot instances
    where the others are; `efa_cards`: the interfaces of types with
    several network cards; `subnet`: the workers', "" where the cluster makes a network of its own;
    `hours` is how long a machine may live that has no user data."""
    disks = {machine.disk for machine in machines if machine.name != LAUNCHER}
    return {
        "cluster_id": cluster_id,
        "cluster_name": name,
        "region": region,
        "zone": zone,
        "groups": _groups(machines, placement),
        "launcher_type": machines[0].instance_type,
        "amis": dict(amis),
        "disk": disks.pop() if len(disks) == 1 else 0,
        "spot": spot,
        "efa": efa,
        "max_retries": ATTEMPTS[len(machines) - len(apart) > FEW],
        "cidr": cidr(cluster_id),
        "ssh_cidr": ssh_cidr,
        "public_key": public_key,
        "user_data": dict(user_data),
        "ttl_hours": hours,
        "owner": owner,
        "client": client,
        "deadline": deadline,
        # Only where they are given: the module of an older cluster does not know them.
        **({"subnet_id": subnet} if subnet else {}),
        **({"launcher_subnet_id": launcher_subnet} if launcher_subnet != subnet else {}),
        **({"private": True} if private else {}),
        **({"efa_cards": {k: list(v) for k, v in efa_cards.items()}} if efa and efa_cards else {}),
        **({"shared": shared} if shared else {}),
        **({"tags": dict(tags)} if tags else {}),
        **({"apart": sorted(apart)} if apart else {}),
        **({"on_demand": sorted(on_demand)} if on_demand else {}),
        **({"reservation": _reservation(reservation)} if reservation else {}),
    }


def _groups(machines: Sequence[PlannedMachine], placement: Container[str]) -> list[dict[str, Any]]:
    """Workers of one kind together, with their numbers."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for machine in machines:
        if machine.name != LAUNCHER:
            key = (machine.instance_type, machine.image, machine.disk)
            groups.setdefault(key, []).append(int(machine.name.removeprefix("worker-")))
    return [
        {
            "instance_type": kind,
            "image": image,
            "count": len(own),
            "numbers": own,
            "placement": kind in placement,
        }
        for (kind, image, _), own in groups.items()
    ]


def _reservation(found: Reservation) -> dict[str, Any]:
    return {"id": found.id, "block": found.block, "placement_group": found.group}


def root(machine: PlannedMachine, cluster_id: str) -> str:
    """The folder of ours on a machine."""
    return f"{catalog.MACHINE_IMAGES[machine.image].home}/.clusterctl/{cluster_id}"
