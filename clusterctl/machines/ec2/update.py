"""What a further `up` may change about a cluster whose machines run: how many there are.

Machines that run are never replaced, and their deadline is moved by `extend` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from clusterctl.core import catalog
from clusterctl.core.model import Charge, Cluster, ClusterSpec
from clusterctl.core.text import format_time
from clusterctl.errors import ProviderError, UsageError
from clusterctl.machines import charges as machines_charges
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import network
from clusterctl.machines.ec2.api import choose_region
from clusterctl.machines.ec2.spec import PlannedMachine, check_spec

_FIXED = {
    "disk": "--disk",
    "spot": "--spot",
    "efa": "--efa",
    "reservation": "--reservation",
    "vpc": "--vpc",
    "subnet": "--subnet",
    "private": "--private",
    "instance_connect": "--instance-connect",
    "file_system": "--shared",
}
"""What EC2 or Terraform would make other machines for."""

_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso", "eusc-")
"""How regions begin whose accounts, images and prices are none of the others'."""


def require_record(current: Cluster | None) -> None:
    """Raises ProviderError for a cluster that was adopted: its tags tell neither when its machines
    end nor what Terraform knows of them, so that none can be added or left out."""
    if current and current.deadline is None:
        raise ProviderError(
            f"cluster {current.name} was adopted: when its machines end, and what Terraform knew of"
            " them, is not on record",
            hint=f"it can only be shown and removed: `clusterctl down {current.name}`",
        )


def resolve_rules(spec: ClusterSpec, current: Cluster | None) -> ClusterSpec:
    """The options with what they left to us. A cluster stays in its region. Raises UsageError for
    what is wrong whatever AWS says."""
    check_spec(spec)
    before = current.spec.cloud if current else None
    region = spec.cloud.region or (before.region if before else "") or choose_region()
    if before and before.region and before.region != region:
        raise UsageError(
            f"cluster {spec.name} is in {before.region}, not in {region}",
            hint=f"leave --region out, or `clusterctl down {spec.name}` first, or choose another"
            " name",
        )
    if region.startswith(_OTHER_PARTITIONS):
        raise UsageError(
            f"region {region}: clusterctl supports no separate partition of AWS, such as China and"
            " GovCloud",
            hint="choose another --region; AWS_REGION or your AWS profile may name that one",
        )
    if spec.cloud.regions and region not in spec.cloud.regions:
        raise UsageError(
            f"--region {region} is not one of --regions {','.join(spec.cloud.regions)}",
            hint="leave one of the two out",
        )
    if spec.cloud.spot and spec.cloud.reservation:
        raise UsageError(
            "--spot cannot be combined with --reservation: reserved machines are not spot"
            " instances",
            hint="leave one of the two out",
        )
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
    options: ClusterSpec,
    current: Cluster | None,
    machines: Sequence[PlannedMachine],
    present: Mapping[str, str],
) -> None:
    """`present`: the nodes there are, with their types. Raises UsageError where the options would
    replace one of them: what runs on it would be lost, and a new one would cost other money."""
    if current is None or not present:
        return
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
    for field, flag in _FIXED.items():
        if getattr(options.cloud, field) != getattr(current.spec.cloud, field):
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
    latest: float | None = None,
) -> float:
    """When every node ends itself: as the machines that run have it from their first minute, else
    from --ttl and --budget, whichever is nearer, and by `latest`.

    Raises UsageError where another one is asked for, a budget does not last until then, or they
    run beyond it.
    """
    if current and present and current.deadline:
        armed = current.deadline
        if armed <= now:
            raise _make_overdue_error(current, present, armed)
        if options.ttl != current.spec.ttl:
            raise UsageError(
                f"the machines of cluster {options.name} end at {format_time(armed)}, and `up` does"
                " not change that",
                hint=f"leave --ttl out; `clusterctl extend {options.name} --ttl …` moves it",
            )
        changed = options.cloud.budget != current.spec.cloud.budget
        if options.cloud.budget and (changed or _has_more(charges, present)):
            machines_charges.check_until(options, charges, armed, now)
        return armed
    seconds = options.ttl or catalog.DEFAULT_TTL
    _check_ttl(seconds)
    if options.cloud.budget:
        seconds = min(seconds, machines_charges.limit_life(options, charges, now))
    if latest is not None and latest < now + machines_charges.SHORTEST:
        raise UsageError(
            f"the Capacity Block of --reservation ends its machines at {format_time(latest)}",
            hint="choose another --reservation",
        )
    return float(int(now + seconds if latest is None else min(now + seconds, latest)))


def _check_ttl(seconds: float) -> None:
    if seconds < machines_charges.SHORTEST:
        raise UsageError(
            f"--ttl of {seconds:g} s: the machines would end before they are ready",
            hint=f"give at least {machines_charges.SHORTEST / 60:g}m",
        )


def check_stopped(
    current: Cluster | None, present: Collection[str], stopped: Collection[str], now: float
) -> None:
    """Raises UsageError where all machines are stopped and their deadline is over: they would end
    themselves as soon as they boot."""
    if (
        current
        and current.deadline
        and current.deadline <= now
        and present
        and set(present) == set(stopped)
    ):
        raise UsageError(
            f"the stopped machines of cluster {current.name} should have ended at"
            f" {format_time(current.deadline)}",
            hint=f"`clusterctl down {current.name}` removes them",
        )


def _make_overdue_error(current: Cluster, present: Mapping[str, str], armed: float) -> UsageError:
    """`extend` needs nodes on record; what is none yet can only go."""
    name, known = current.name, all(map(current.has, present))
    return UsageError(
        f"the machines of cluster {name} should have ended at {format_time(armed)}, and are still"
        " running",
        hint=(f"`clusterctl extend {name} --ttl …` keeps them, " if known else "")
        + f"`clusterctl down {name}` removes them",
    )


def _has_more(charges: Sequence[Charge], present: Mapping[str, str]) -> bool:
    return any(charge.until is None and charge.node not in present for charge in charges)
