"""Makes the machines of a cluster where there is room for all of them: in one zone of the region,
on the spot market or on demand."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.core import catalog, keys
from clusterctl.core.errors import ProviderError
from clusterctl.core.model import SHARED, Cluster, ClusterSpec, Reporter, shorten
from clusterctl.core.progress import NodePhases
from clusterctl.machines.ec2 import (
    eventbridge,
    failures,
    provider_state,
    reconcile,
    sightings,
    spec,
    tags,
    terraform_module,
    userdata,
)
from clusterctl.machines.ec2.answers import Instance
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import CapacityError, RefusedByAws
from clusterctl.machines.ec2.host_key_rotation import HostKeys
from clusterctl.machines.ec2.instances import find_instances
from clusterctl.machines.ec2.networks import ZoneSubnets
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.ec2.provider_state import ProviderState
from clusterctl.machines.protocol import LAUNCHER
from clusterctl.terraform import binary
from clusterctl.terraform import folder as terraform_folder


class CreateAttempt(NamedTuple):
    spot: bool
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What has to be made, and what is known of it. `state` is changed, and kept in `folder`;
    `rate`: what the cluster costs per hour with these workers on-demand, for people."""

    cluster: Cluster
    options: ClusterSpec
    found: Survey
    api: Api
    folder: Path
    state: ProviderState
    host_keys: HostKeys
    rate: Callable[[Collection[str]], str]
    nodes: NodePhases = field(default_factory=NodePhases)


def list_attempts(
    options: ClusterSpec, zones: Sequence[str], state: ProviderState
) -> list[CreateAttempt]:
    """In this order. The zones before the one that an earlier attempt got to had no room."""
    first = zones.index(state.zone) if state.zone in zones else 0
    markets = (True, False) if state.spot and options.cloud.spot_fallback else (state.spot,)
    return [CreateAttempt(spot, zone) for spot in markets for zone in zones[first:]]


def make_attempts(
    order: Order, runner: terraform_folder.Terraform, report: Reporter
) -> list[dict[str, Any]]:
    """Terraform's list of nodes. Raises CapacityError where no zone has room for all; what runs
    already never moves."""
    state = order.state
    running = find_instances(order.api, order.cluster.id)
    settled = any(order.cluster.has(item.node) for item in running)
    if settled:
        state.spot = state.spot or any(item.spot for item in running)
    elif not running:
        # What an earlier attempt came to says nothing about today.
        state.zone, state.spot = "", order.options.cloud.spot
    keeps_spot = settled and state.spot
    todo = list_attempts(order.options, order.found.zones, state)
    for attempt, following in zip_longest(todo, todo[1:]):
        state.zone, state.spot = attempt.zone, attempt.spot or keeps_spot
        state.on_demand = _list_on_demand(order, attempt, running) if keeps_spot else ()
        state.unfinished = True
        provider_state.save(order.folder, state)
        try:
            return _try(order, runner, running, report)
        except binary.TerraformError as error:
            known = _require_capacity_error(error)
            sightings.note(order.api, order.cluster, order.folder)  # what goes now costs, too
            if following is None:
                raise _make_last_error(order, todo, known, settled) from error
        running = find_instances(order.api, order.cluster.id)
        if settled:
            there = {item.node for item in running}
            new = [n for n in _list_on_demand(order, following, running) if n not in there]
            report(
                f"{attempt.zone} has no capacity for spot ({known.message}): {shorten(new)}"
                f" on-demand instead, the cluster then costs {order.rate(new)}/h"
            )
            continue
        report(
            f"{attempt.zone} has no capacity{' for spot' * attempt.spot} ({known.message}):"
            f" the whole cluster moves to {following.zone}"
            + ("" if following.spot == attempt.spot else ", on-demand")
        )
    raise ProviderError("no zone to try", hint="name some with --zones")


def _try(
    order: Order, runner: terraform_folder.Terraform, running: Sequence[Instance], report: Reporter
) -> list[dict[str, Any]]:
    """One attempt. Raises TerraformError, also where there is no room."""
    made = reconcile.apply(
        runner,
        _build_variables(order, running),
        order.api,
        order.cluster.id,
        report,
        may_go=partial(_list_removable, order, runner),
        nodes=order.nodes,
    )
    order.state.unfinished = False
    provider_state.save(order.folder, order.state)
    nodes: list[dict[str, Any]] = made["nodes"]
    return nodes


def _make_last_error(
    order: Order,
    tried: Sequence[CreateAttempt],
    why: CapacityError,
    settled: bool,
) -> CapacityError:
    """The error after the last attempt. `settled`: some workers run, which stay where they are."""
    state = order.state
    if settled:
        state.unfinished = False  # the refusal is all that EC2 made of it
        provider_state.save(order.folder, state)
        return CapacityError(
            f"{state.zone} has no capacity for more: {why.message}",
            hint=f"running nodes are unchanged: try later, {_suggest_instead(order)}",
        )
    zones = ", ".join(dict.fromkeys(zone for _, zone in tried))
    hint = why.hint + (", or --spot-fallback" if state.spot else "")
    # The next `up` finds another day, and begins anew.
    state.zone, state.spot = "", order.options.cloud.spot
    provider_state.save(order.folder, state)
    return CapacityError(
        f"no zone has capacity for the whole cluster (tried {zones}): {why.message}", hint=hint
    )


def _list_on_demand(
    order: Order, attempt: CreateAttempt, running: Sequence[Instance]
) -> tuple[str, ...]:
    """The workers of a cluster of spot instances that are none: those that run so, and the new
    ones of an attempt on demand."""
    spot = {item.node: item.spot for item in running}
    workers = [machine.name for machine in order.found.machines if machine.name != LAUNCHER]
    return tuple(name for name in workers if not spot.get(name, attempt.spot))


def _suggest_instead(order: Order) -> str:
    """Of the hint where a zone is full: what else can be done."""
    if not order.state.spot or order.options.cloud.spot_fallback:
        return "or with fewer --workers"
    return f"or `clusterctl up {order.cluster.name} --spot-fallback` starts on-demand ones instead"


def _list_removable(order: Order, runner: terraform_folder.Terraform) -> list[str]:
    """The machines that Terraform may destroy or replace: surplus ones, whose removal was agreed
    to, and those that never became nodes, on which nothing ever ran."""
    nodes = {node.machine for node in order.cluster.nodes}
    wanted = {machine.name for machine in order.found.machines}
    return [
        address
        for address, machine in runner.list_resources().items()
        if (name := terraform_module.find_node(address))
        and (machine not in nodes or name not in wanted)
    ]


def _require_capacity_error(error: binary.TerraformError) -> CapacityError:
    """What is wrong, where it is that; raises anything else."""
    known = failures.from_terraform(item.text for item in error.diagnostics)
    if isinstance(known, CapacityError):
        return known
    raise known or error from error


def _make_tags(order: Order) -> dict[str, str]:
    """Tags of all that is made: the user's own, the cluster's name, and who made it."""
    names = (tags.NAME_TAG, tags.OWNER_TAG, tags.CLIENT_TAG)
    values = (order.cluster.name, order.cluster.owner, order.cluster.client)
    ours = {name: value for name, value in zip(names, values, strict=True) if value}
    return {**tags.parse_tags(order.options.cloud.tag), **ours}


def _build_variables(order: Order, running: Sequence[Instance]) -> dict[str, Any]:
    """Terraform's. Machines that boot get host keys of ours with their user data."""
    cluster, found, state = order.cluster, order.found, order.state
    deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
    living = {item.node for item in running}
    booted = living - order.host_keys.booting
    booting = [machine for machine in found.machines if machine.name not in booted]
    pairs = order.host_keys.make_boot_keys([machine.name for machine in booting], living)
    public_key = keys.ensure(order.folder / "ssh" / "user")
    place = found.subnets.get(state.zone, ZoneSubnets("", ""))
    disks = {machine.disk for machine in found.machines if machine.name != LAUNCHER}
    reserved = found.reservation
    cloud = order.options.cloud
    return {
        "cluster_id": cluster.id,
        "cluster_name": cluster.name,
        "owner": cluster.owner,
        "client": cluster.client,
        "shared": SHARED if cluster.spec.makes_folder else "",
        "deadline": tags.render_deadline(deadline),
        "tags": tags.parse_tags(cloud.tag),
        "region": order.api.region,
        "zone": state.zone,
        "groups": spec.group_machines(found.machines, found.placement),
        "launcher_type": found.machines[0].instance_type,
        "amis": dict(found.amis),
        "disk": disks.pop() if len(disks) == 1 else 0,
        "spot": state.spot,
        "on_demand": sorted(state.on_demand),
        "reservation": {
            "id": reserved.id,
            "block": reserved.block,
            "placement_group": reserved.group,
        }
        if reserved
        else None,
        "efa": cloud.efa,
        # Of types with several network cards.
        "efa_cards": {
            name: list(kind.efa)
            for name, kind in found.types.items()
            if cloud.efa and len(kind.efa) > 1
        },
        "private": cloud.private,
        "cidr": spec.choose_cidr(cluster.id),
        "subnet_id": place.workers,
        "launcher_subnet_id": place.launcher,
        "ssh_cidr": state.ssh_cidr,
        "instance_connect": cloud.instance_connect,
        "endpoint_groups": list(found.endpoint.groups) if found.endpoint else [],
        "public_key": public_key,
        "user_data": {
            machine.name: userdata.render_userdata(
                host_key=pairs[machine.name],
                authorized=public_key,
                deadline=deadline,
                root=spec.name_root(machine, cluster.id),
                spot=state.spot and machine.name not in (LAUNCHER, *state.on_demand),
            )
            for machine in booting
        },
        # Whole minutes, so that asking again plans no change; and never nothing.
        "ttl_hours": max(1, round((deadline - time.time()) / 60)) / 60,
    }


def schedule_ends(order: Order, made: set[str], report: Reporter) -> None:
    """Gives the machines that there are an end outside of themselves.

    `made`: instances that Terraform knows of, which AWS may not yet find by their tags.
    """
    state, api, id = order.state, order.api, order.cluster.id
    guarded = state.guarded
    try:
        there = made | {item.id for item in find_instances(api, id)}
        nat = order.found.nat
        # A NAT gateway costs money without machines, and ends itself even less.
        if not order.cluster.deadline or not (there or (nat and eventbridge.find_network(api, id))):
            return
        until = {tags.DEADLINE_TAG: tags.render_deadline(order.cluster.deadline)}
        eventbridge.prepare(api, id, {**_make_tags(order), **until}, nat=nat)
        state.guarded = True
        provider_state.save(order.folder, state)
        eventbridge.schedule_ends(api, id, there, order.cluster.deadline, nat=nat)
    except ProviderError as error:
        if isinstance(error, RefusedByAws) and failures.is_account_error(error):
            state.guarded = guarded
            provider_state.save(order.folder, state)
        report(
            f"AWS itself does not terminate the machines ({error.message}): {eventbridge.UNGUARDED}"
        )
