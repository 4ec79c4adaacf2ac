"""From the options to Terraform: the machines by name, what a further `up` may change, and
Terraform with our module `infra/ec2`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterctl.core import catalog
from clusterctl.core.model import Charge, Cluster, ClusterSpec, NodeGroup, Reporter, Runtime
from clusterctl.core.progress import BOOTING, NodePhases
from clusterctl.core.text import format_time
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import network
from clusterctl.machines.ec2.api import Api, Image, choose_region
from clusterctl.machines.protocol import LAUNCHER, name_nodes
from clusterctl.state.files import write_atomic
from clusterctl.state.locks import find_held
from clusterctl.terraform import binary as terraform_binary
from clusterctl.terraform import folder as terraform_folder

MAX_WORKERS = 1000
PARALLELISM = (10, 32)
"""Terraform's -parallelism: at least its default, and at most as many machines as it launches and
waits for while EC2 accepts two launches a second (docs/adr/0018)."""

LAUNCHER_DISK = 30
"""GiB, as infra/ec2 has it."""
FASTER = 125
"""MB/s of a worker's disk beyond gp3's own 125, where it builds its container: that writes half of
the time. 250 MB/s take no more than gp3's own 3000 operations a second."""
ROOM = 60
"""GiB of a worker's disk beyond what its machine image takes, without --disk."""


class PlannedMachine(Struct, frozen=True, kw_only=True):
    """A node to be. `image` is a kind: launcher, cpu, nvidia or amd. `disk` in GiB; 0: as the
    machine image needs it. `faster`: MB/s beyond those that every gp3 disk has."""

    name: str
    instance_type: str
    image: str
    disk: int
    faster: int = 0

    def describe_disk(self, kind: str = "") -> str:
        """`68 GiB gp3 at 250 MB/s`."""
        speed = f" at {catalog.INSTALLS.disk + self.faster:g} MB/s" if self.faster else ""
        return f"{self.disk} GiB{kind and ' '}{kind}{speed}"


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
    spec: ClusterSpec,
    gpu_makers: Mapping[str, str],
    present: Mapping[int, str],
    disks: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[PlannedMachine, ...]:
    """The launcher, then the workers by number. `disks`: of machines that there are, in GiB and
    MB/s more. New workers get a faster one where they build their container."""
    workers = {}
    for group, own in zip(spec.groups, number_workers(spec.groups, present), strict=True):
        kind = choose_image_kind(group, gpu_makers)
        builds = spec.runtime is Runtime.DOCKER and is_built(kind, spec)
        for number in own:
            name = f"worker-{number}"
            size, faster = (disks or {}).get(name, (0, FASTER * builds))
            workers[number] = PlannedMachine(
                name=name,
                instance_type=catalog.choose_instance_type(group),
                image=kind,
                disk=spec.cloud.disk or size,
                faster=faster,
            )
    launcher = PlannedMachine(
        name=LAUNCHER,
        instance_type=choose_launcher_type(spec),
        image="launcher",
        disk=LAUNCHER_DISK,
    )
    return (launcher, *(workers[number] for number in sorted(workers)))


def is_built(kind: str, spec: ClusterSpec) -> bool:
    """Whether such workers build their container themselves: there is no image to pull."""
    return catalog.choose_image(kind, spec.image, spec.images) in catalog.RECIPES


def read_disks(charges: Iterable[Charge]) -> dict[str, tuple[int, int]]:
    """GiB of the disks that there are, and MB/s beyond the usual ones, by node."""
    found = {}
    for one in charges:
        read = re.match(r"(\d+) GiB gp3(?: at (\d+) MB/s)?", one.item)
        if read and one.part == "disk" and one.until is None:
            usual = int(catalog.INSTALLS.disk)
            found[one.node] = int(read[1]), int(read[2] or usual) - usual
    return found


def size_disks(
    machines: Sequence[PlannedMachine],
    images: Mapping[str, Image],
    saved: Container[str] = (),
    there: Container[str] = (),
) -> tuple[PlannedMachine, ...]:
    """With the sizes that their machine images lead to. `saved`: kinds of nodes whose image is of a
    worker's disk, with the room on it, and with nothing to install; `there`: those that run."""
    sizes = {k: image.disk + (0 if k in saved else ROOM) for k, image in images.items()}
    return tuple(
        replace(
            one,
            disk=one.disk or sizes[one.image],
            faster=0 if one.image in saved and one.name not in there else one.faster,
        )
        for one in machines
    )


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
    groups: dict[tuple[str, str, int, int], list[int]] = {}
    for machine in machines:
        if machine.name != LAUNCHER:
            key = (machine.instance_type, machine.image, machine.disk, machine.faster)
            groups.setdefault(key, []).append(int(machine.name.removeprefix("worker-")))
    return [
        {
            "instance_type": kind,
            "image": image,
            "count": len(own),
            "numbers": own,
            "placement": kind in placement,
            "disk": disk,
            "throughput": int(catalog.INSTALLS.disk) + faster,
        }
        for (kind, image, disk, faster), own in groups.items()
    ]


def name_root(machine: PlannedMachine, cluster_id: str) -> str:
    """The folder of ours on a machine."""
    return f"{catalog.MACHINE_IMAGES[machine.image].home}/.clusterctl/{cluster_id}"


# -------------------------------------------------------------------------------------------------
# What a further `up` may change about a cluster whose machines run: how many there are.
#
# Machines that run are never replaced, and their deadline is moved by `extend` alone.


_FIXED = ("disk", "spot", "efa", "vpc", "subnet", "private", "instance_connect")
"""What EC2 or Terraform would make other machines for."""

ADOPTED = ", adopted"
"""The end of the reason for the mode of a cluster that was taken back by its tags."""
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso", "eusc-")
"""How regions begin whose accounts, images and prices are none of the others'."""


def require_record(current: Cluster | None) -> None:
    """Raises ProviderError for a cluster that was adopted: its tags do not tell what Terraform
    knows of its machines, so that none can be added or left out, and nothing lets us in."""
    if current and (current.deadline is None or current.mode_reason.endswith(ADOPTED)):
        raise ProviderError(
            f"cluster {current.name} was adopted: its keys, and what Terraform knew of its"
            " machines, are not on record",
            hint=f"it can only be shown and removed: `clusterctl down {current.name}`",
        )


def resolve_rules(spec: ClusterSpec, current: Cluster | None) -> ClusterSpec:
    """The options with what they left to us. A cluster stays in its region. Raises UsageError for
    what is wrong whatever AWS says."""
    check_spec(spec)
    cloud, before = spec.cloud, current.spec.cloud if current else None
    region = cloud.region or (before.region if before else "") or choose_region()
    for wrong, what, hint in (
        (
            before and before.region not in ("", region),
            f"cluster {spec.name} is in {before.region if before else ''}, not in {region}",
            f"leave --region out, or `clusterctl down {spec.name}` first, or choose another name",
        ),
        (
            region.startswith(_OTHER_PARTITIONS),
            f"region {region}: clusterctl supports no separate partition of AWS, such as China and"
            " GovCloud",
            "choose another --region; AWS_REGION or your AWS profile may name that one",
        ),
        (
            cloud.regions and region not in cloud.regions,
            f"--region {region} is not one of --regions {','.join(cloud.regions)}",
            "leave one of the two out",
        ),
    ):
        if wrong:
            raise UsageError(what, hint=hint)
    if current is None:
        _check_ttl(spec.ttl or catalog.DEFAULT_TTL)
    if spec.cloud.ssh_cidr:
        network.parse_networks("--ssh-cidr", spec.cloud.ssh_cidr)
    idle = catalog.DEFAULT_IDLE if spec.cloud.idle is None else spec.cloud.idle
    tag = ec2_api.add(before.tag if before else (), spec.cloud.tag)
    return replace(spec, cloud=replace(spec.cloud, region=region, idle=idle, tag=tag))


def check_account(cluster: Cluster, number: str) -> None:
    """Raises ProviderError where the credentials are for another account than the cluster's: there
    nothing would be found of it, and that be taken for nothing left."""
    if cluster.account not in ("", number):
        raise ProviderError(
            f"cluster {cluster.name} is in the AWS account {cluster.account}, and the credentials"
            f" are for {number}",
            hint="set AWS_PROFILE to what it was at `up`; `aws sts get-caller-identity` shows who"
            " you are",
        )


def check_kept(
    options: ClusterSpec, machines: Sequence[PlannedMachine], present: Mapping[str, str]
) -> None:
    """`present`: the nodes there are, with their types. Raises UsageError where the options would
    replace one of them: what runs on it would be lost, and a new one would cost other money."""
    for machine in machines:
        kind = present.get(machine.name, machine.instance_type)
        if kind != machine.instance_type:
            raise UsageError(
                f"{machine.name} of cluster {options.name} is a {kind}, not a"
                f" {machine.instance_type}",
                hint=_suggest_another(options),
            )


def check_settings(options: ClusterSpec, current: Cluster, zone: str) -> None:
    """Raises UsageError for what cannot change under machines that run. `zone`: where nodes are, ""
    while all may still move."""
    for field in _FIXED:
        if getattr(options.cloud, field) != getattr(current.spec.cloud, field):
            flag = f"--{field.replace('_', '-')}"
            raise UsageError(
                f"the machines of cluster {options.name} are running: {flag} cannot be changed now",
                hint=_suggest_another(options),
            )
    if zone and options.cloud.zones and zone not in options.cloud.zones:
        raise UsageError(
            f"the machines of cluster {options.name} are running in {zone} and cannot move",
            hint=f"leave --zones out; {_suggest_another(options)}",
        )


def _suggest_another(options: ClusterSpec) -> str:
    return f"`clusterctl down {options.name}` first, or choose another name for another cluster"


def choose_deadline(
    options: ClusterSpec,
    current: Cluster | None,
    present: Mapping[str, str],
    charges: Sequence[Charge],
    now: float,
    stopped: Collection[str] = (),
) -> float:
    """When every node ends itself: as the machines that run have it from their first minute, else
    from --ttl and --budget, whichever is nearer.

    Raises UsageError where another one is asked for, a budget does not last until then, or they
    run beyond it.
    """
    if current and present and current.deadline:
        armed = current.deadline
        if armed <= now:
            raise _make_overdue_error(current, armed, present, stopped)
        if options.ttl != current.spec.ttl:
            raise UsageError(
                f"the machines of cluster {options.name} end at {format_time(armed)}, and `up` does"
                " not change that",
                hint=f"leave --ttl out; `clusterctl extend {options.name} --ttl …` moves it",
            )
        changed = options.cloud.budget != current.spec.cloud.budget
        more = any(one.until is None and one.node not in present for one in charges)
        if options.cloud.budget and (changed or more):
            machines_charges.check_until(options, charges, armed, now)
        return armed
    seconds = options.ttl or catalog.DEFAULT_TTL
    _check_ttl(seconds)
    if options.cloud.budget:
        seconds = min(seconds, machines_charges.limit_life(options, charges, now))
    return float(int(now + seconds))


def _check_ttl(seconds: float) -> None:
    if seconds < machines_charges.SHORTEST:
        raise UsageError(
            f"--ttl of {seconds:g} s: the machines would end before they are ready",
            hint=f"give at least {machines_charges.SHORTEST / 60:g}m",
        )


def _make_overdue_error(
    current: Cluster, armed: float, present: Collection[str], stopped: Collection[str]
) -> UsageError:
    """Stopped machines would end themselves as soon as they boot. `extend` needs nodes on record;
    what is none yet can only go."""
    name, paused = current.name, set(present) == set(stopped)
    keeps = f"`clusterctl extend {name} --ttl …` keeps them, "
    return UsageError(
        f"the {'stopped ' * paused}machines of cluster {name} should have ended at"
        f" {format_time(armed)}" + ", and are still running" * (not paused),
        hint=keeps * (not paused and all(map(current.has, present)))
        + f"`clusterctl down {name}` removes them",
    )


# -------------------------------------------------------------------------------------------------
# What is kept between two attempts to make a cluster: a file in its folder.


class ProviderState(msgspec.Struct, kw_only=True):
    """`zone` and `spot` are those of the last attempt, `ssh_cidr` is from where SSH is open;
    `unfinished`: an attempt has begun, and nobody has seen its end; `guarded`: AWS itself ends the
    machines after their deadline."""

    id: str
    region: str
    zone: str = ""
    ssh_cidr: str = ""
    spot: bool = False
    on_demand: tuple[str, ...] = ()
    """The workers that are none where the others are spot instances."""
    unfinished: bool = False
    guarded: bool = False


def load_state(folder: Path) -> ProviderState | None:
    """None where nothing was tried yet."""
    try:
        return msgspec.json.decode(_locate_file(folder).read_bytes(), type=ProviderState)
    except (OSError, msgspec.DecodeError):
        return None


def save_state(folder: Path, state: ProviderState) -> None:
    path = _locate_file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(state))


def _locate_file(folder: Path) -> Path:
    return folder / "ec2" / "memory.json"


# -------------------------------------------------------------------------------------------------
# Terraform with our module `infra/ec2`, in the folder of a cluster: how it is started, what it has
# made there, and what it does, in lines for people.


def open_terraform(
    api: Api, folder: Path, name: str, report: Reporter
) -> terraform_folder.Terraform:
    """In the cluster's own folder, with the lock of the cluster, which it inherits."""
    home = folder.parent.parent
    try:
        lock = find_held(home, name)
    except KeyError:
        lock = None
    return terraform_folder.Terraform(
        folder / "terraform",
        terraform_binary.find_terraform(),
        cluster=name,
        cache=home / "terraform-plugins",
        lock=lock.fileno() if lock else None,
        on_start=lock.lend if lock else lambda pid, command: None,
        report=report,
        lent=api.lend_credentials,
    )


def find_node(address: str) -> str:
    """Whose machine that is, by Terraform's address of it; "" for what is no machine."""
    return address.split('"')[1] if address.startswith("aws_instance.") else ""


def make_reporter(
    report: Reporter, nodes: NodePhases | None = None
) -> Callable[[terraform_folder.Event], None]:
    """Says what happens to each machine, and that the rest is made, in one line each. `nodes`
    is told which machines run."""

    def show(event: terraform_folder.Event) -> None:
        hook, state = event.hook, event.type.removeprefix("apply_")
        if hook is None or state == event.type:
            return
        address, what = hook.resource.addr, (hook.action, state)
        machine = find_node(address)
        if nodes and machine and what == ("create", "complete"):
            nodes.enter([machine], BOOTING)
        words = {
            ("create", "start"): "starts" if machine else "",
            ("create", "complete"): f"{hook.id_value} is running" if machine else "made",
            ("delete", "start"): "ends" if machine else "",
            ("delete", "complete"): "gone",
            ("update", "complete"): "changed",
        }.get(what, "failed" if state == "errored" else "")
        if words:
            after = f" after {hook.elapsed_seconds:g} s" if state == "complete" else ""
            report(f"{machine or address}: {words}{after}")

    return show
