"""From options to named machines and Terraform's variables. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from clusterctl.core import catalog
from clusterctl.core.model import ClusterSpec, NodeGroup
from clusterctl.errors import UsageError
from clusterctl.machines.protocol import LAUNCHER, name_nodes

MAX_WORKERS = 1000
PARALLELISM = (10, 32)
"""Terraform's -parallelism: at least its default, and at most as many machines as it launches and
waits for while EC2 accepts two launches a second (docs/adr/0018)."""

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


def choose_launcher_type(spec: ClusterSpec) -> str:
    return spec.cloud.launcher_type or catalog.LAUNCHER_TYPE


def check_spec(spec: ClusterSpec) -> None:
    """What is wrong before AWS is asked: raises UsageError for the number of workers, and for a
    family that there is not."""
    name_nodes(spec.workers, most=MAX_WORKERS, what="a cluster on EC2")
    for group in spec.groups:
        kind = catalog.choose_instance_type(group)
        if group.family not in ("", "cpu") and kind.partition(".")[0] != group.family:
            raise UsageError(
                f"--gpu {group.family} and --instance-type {kind} contradict each other:"
                f" {kind} has no {catalog.find_family(group.family).gpu}",
                hint=f"leave one of the two out, or name a type such as"
                f" {catalog.find_family(group.family).instance_type}",
            )


def list_types(spec: ClusterSpec) -> tuple[str, ...]:
    """Every instance type of the cluster, the launcher's last."""
    return tuple(
        dict.fromkeys((*map(catalog.choose_instance_type, spec.groups), choose_launcher_type(spec)))
    )


def choose_image_kind(group: NodeGroup, gpu_makers: Mapping[str, str]) -> str:
    """Which machine image a group needs: by its family, else by the maker of its GPUs."""
    if group.family:
        return catalog.find_family(group.family).image
    kinds = {"nvidia": "nvidia", "amd": "amd"}
    return kinds.get(gpu_makers.get(group.instance_type, "").lower(), "cpu")


def number_workers(
    groups: Sequence[NodeGroup], present: Mapping[int, str]
) -> tuple[tuple[int, ...], ...]:
    """The workers' numbers, per group. `present` are those there are, with their instance types:
    each keeps its number while its type is wanted, so that growing and shrinking touches no other.
    """
    free_of_type: dict[str, list[int]] = {}
    for number in sorted(present):
        free_of_type.setdefault(present[number], []).append(number)
    kept = []
    for group in groups:
        mine = free_of_type.get(catalog.choose_instance_type(group), [])
        kept.append(mine[: group.count])
        free_of_type[catalog.choose_instance_type(group)] = mine[group.count :]
    taken = {number for group in kept for number in group}
    fresh = (number for number in count(1) if number not in taken)
    return tuple(
        (*have, *(next(fresh) for _ in range(group.count - len(have))))
        for group, have in zip(groups, kept, strict=True)
    )


def plan_machines(
    spec: ClusterSpec, gpu_makers: Mapping[str, str], present: Mapping[int, str]
) -> tuple[PlannedMachine, ...]:
    """The launcher, then the workers by number."""
    workers = {}
    for group, own in zip(spec.groups, number_workers(spec.groups, present), strict=True):
        kind = choose_image_kind(group, gpu_makers)
        disk = spec.cloud.disk or (CPU_DISK if kind == "cpu" else GPU_DISK)
        for number in own:
            workers[number] = PlannedMachine(
                name=f"worker-{number}",
                instance_type=catalog.choose_instance_type(group),
                image=kind,
                disk=disk,
            )
    launcher = PlannedMachine(
        name=LAUNCHER,
        instance_type=choose_launcher_type(spec),
        image="launcher",
        disk=LAUNCHER_DISK,
    )
    return (launcher, *(workers[number] for number in sorted(workers)))


def read_present(nodes: Mapping[str, str]) -> dict[int, str]:
    """Worker numbers with instance types, from node names with instance types."""
    return {
        int(name.removeprefix("worker-")): kind
        for name, kind in nodes.items()
        if name.startswith("worker-")
    }


def choose_cidr(cluster_id: str) -> str:
    """A /16 of the cluster's own: routes and jump hosts of two clusters cannot be confused."""
    digest = hashlib.sha256(cluster_id.encode()).digest()
    return f"10.{64 + digest[0] % 64}.0.0/16"


def choose_parallelism(nodes: int) -> int:
    least, most = PARALLELISM
    return max(least, min(most, nodes + 8))


def group_machines(
    machines: Sequence[PlannedMachine], placement: Container[str]
) -> list[dict[str, Any]]:
    """Workers of one kind together, with their numbers, as infra/ec2 takes them. `placement`: the
    types that may be in a cluster placement group."""
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


def name_root(machine: PlannedMachine, cluster_id: str) -> str:
    """The folder of ours on a machine."""
    return f"{catalog.MACHINE_IMAGES[machine.image].home}/.clusterctl/{cluster_id}"
