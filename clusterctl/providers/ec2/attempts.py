"""Makes the machines of a cluster where there is room for all of them: in one zone of the region,
on the spot market or on demand."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl import catalog, keys, terraform
from clusterctl.errors import ProviderError
from clusterctl.model import SHARED, Cluster, ClusterSpec, Reporter
from clusterctl.node_phases import BOOTING, NodePhases
from clusterctl.node_results import shorten
from clusterctl.providers.ec2 import (
    eventbridge,
    failures,
    launches,
    provider_state,
    reconcile,
    tagging,
    tags,
    terraform_module,
    userdata,
)
from clusterctl.providers.ec2 import spec as layout
from clusterctl.providers.ec2.answers import Instance
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.failures import CapacityError, RefusedByAws
from clusterctl.providers.ec2.host_key_rotation import HostKeys
from clusterctl.providers.ec2.instances import SETTLE, find_instances
from clusterctl.providers.ec2.networks import ZoneSubnets
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.ec2.spec import PlannedMachine
from clusterctl.providers.shared.nodes import LAUNCHER


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


def make(order: Order, runner: terraform.Terraform, report: Reporter) -> list[dict[str, Any]]:
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
    if keeps_spot and not runner.takes("on_demand"):
        todo = [attempt for attempt in todo if attempt.spot]
    for attempt, following in zip_longest(todo, todo[1:]):
        state.zone, state.spot = attempt.zone, attempt.spot or keeps_spot
        state.on_demand = _list_on_demand(order, attempt, running) if keeps_spot else ()
        apart = _choose_launched(order, runner, running)
        state.unfinished = True
        provider_state.save(order.folder, state)
        variables = _build_variables(order, running, apart)
        try:
            return _try(order, runner, variables, apart, running, report)
        except (terraform.TerraformError, CapacityError) as error:
            known = error if isinstance(error, CapacityError) else _require_capacity_error(error)
            if following is None:
                raise _make_last_error(order, runner, todo, known, settled) from error
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
        if gone := [item for item in running if item.apart]:
            launches.end(order.api, order.cluster.id, gone)  # Terraform moves their network
            running = [item for item in running if not item.apart]
    raise ProviderError("no zone to try", hint="name some with --zones")


def _try(
    order: Order,
    runner: terraform.Terraform,
    variables: dict[str, Any],
    apart: Mapping[str, PlannedMachine],
    running: Sequence[Instance],
    report: Reporter,
) -> list[dict[str, Any]]:
    """One attempt. Raises TerraformError and CapacityError where there is no room."""
    made = reconcile.apply(
        runner,
        variables,
        order.api,
        order.cluster.id,
        report,
        may_go=partial(_list_removable, order, runner),
        nodes=order.nodes,
    )
    more = []
    if apart or any(item.apart for item in running):
        more = _launch(order, apart, made, report)
    if running and order.options.cloud.tag:
        # Terraform changes no interface, and nothing of what runs apart.
        wanted = tags.parse(order.options.cloud.tag)
        tagging.label_machines(order.api, order.cluster.id, wanted)
    order.state.unfinished = False
    provider_state.save(order.folder, order.state)
    return [*made["nodes"], *more]


def _make_last_error(
    order: Order,
    runner: terraform.Terraform,
    tried: Sequence[CreateAttempt],
    why: CapacityError,
    settled: bool,
) -> CapacityError:
    """The error after the last attempt. `settled`: some workers run, which stay where they are."""
    state = order.state
    if settled:
        return CapacityError(
            f"{state.zone} has no capacity for more: {why.message}",
            hint=f"running nodes are unchanged: try later, {_suggest_instead(order, runner)}",
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


def _suggest_instead(order: Order, runner: terraform.Terraform) -> str:
    """Of the hint where a zone is full: what else can be done."""
    if not order.state.spot or order.options.cloud.spot_fallback:
        return "or with fewer --workers"
    if not runner.takes("on_demand"):
        return "with fewer --workers"
    return f"or `clusterctl up {order.cluster.name} --spot-fallback` starts on-demand ones instead"


def _list_removable(order: Order, runner: terraform.Terraform) -> list[str]:
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


def _require_capacity_error(error: terraform.TerraformError) -> CapacityError:
    """What is wrong, where it is that; raises anything else."""
    known = failures.from_terraform(item.text for item in error.diagnostics)
    if isinstance(known, CapacityError):
        return known
    raise known or error from error


def _choose_launched(
    order: Order, runner: terraform.Terraform, running: Sequence[Instance]
) -> dict[str, PlannedMachine]:
    """The workers that Terraform does not make: those that it did not, and a large group of new
    ones, if the cluster's own copy of the module can do without them."""
    machines = {m.name: m for m in order.found.machines if m.name != LAUNCHER}
    if not runner.takes("apart"):
        return {}
    made = {item.node for item in running}
    known = {terraform_module.find_node(address) for address in runner.list_resources()}
    new = [name for name in machines if name not in made | known]
    there = [item.node for item in running if item.apart and item.node in machines]
    return {name: machines[name] for name in (*there, *(new if len(new) > layout.FEW else ()))}


def _launch(
    order: Order, apart: Mapping[str, PlannedMachine], made: Mapping[str, Any], report: Reporter
) -> list[dict[str, Any]]:
    """Starts those of these workers that are not there, and ends those that are too many; returns
    them as Terraform's list has the others."""
    api, cluster, state = order.api, order.cluster, order.state
    if state.launching:
        # The end of the last launch was not seen: AWS may show its machines only now.
        time.sleep(SETTLE)
    running = [item for item in find_instances(api, cluster.id) if item.apart]
    if surplus := [item for item in running if item.node not in apart]:
        launches.end(api, cluster.id, surplus)
    there = {item.node for item in running}
    if new := [machine for name, machine in apart.items() if name not in there]:
        _start(order, new, made["launch"], report)
    state.launching = ""
    found = [item for item in find_instances(api, cluster.id) if item.node in apart]
    state.launched = tuple(item.node for item in found)
    launches.name_machines(api, cluster.id, [item for item in found if item.node not in there])
    return launches.build_rows(found)


def _start(
    order: Order, new: Sequence[PlannedMachine], network: Mapping[str, Any], report: Reporter
) -> None:
    """Launches these workers, and keeps which ones EC2 has accepted: also an `up` that is cut off
    now has to be paid for."""
    state, accepted = order.state, set[str]()
    state.launching = state.launching or secrets.token_hex(8)
    provider_state.save(order.folder, state)

    def keep(names: Sequence[str]) -> None:
        accepted.update(names)
        state.launched = (*state.launched, *names)
        provider_state.save(order.folder, state)
        order.nodes.enter(names, BOOTING)

    try:
        launches.launch(order.api, new, _build_terms(order, new, network), report, keep)
    except RefusedByAws as error:
        if isinstance(error, CapacityError) or len(accepted) == len(new):
            # All answers are known. The same tokens would name machines that have ended.
            state.launching = ""
            provider_state.save(order.folder, state)
        raise


def _make_tags(order: Order) -> dict[str, str]:
    """Tags of all that is made: the user's own, the cluster's name, and who made it."""
    names = (tags.NAME_TAG, tags.OWNER_TAG, tags.CLIENT_TAG)
    values = (order.cluster.name, order.cluster.owner, order.cluster.client)
    ours = {name: value for name, value in zip(names, values, strict=True) if value}
    return {**tags.parse(order.options.cloud.tag), **ours}


def _build_terms(
    order: Order, new: Sequence[PlannedMachine], network: Mapping[str, Any]
) -> launches.Terms:
    cluster, found, state = order.cluster, order.found, order.state
    deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
    of_ours = {
        tags.TAG: cluster.id,
        tags.SHARED_TAG: SHARED if cluster.spec.makes_folder else "",
        tags.DEADLINE_TAG: tags.render_deadline(deadline),
    }
    reservation = found.reservation
    known = order.api.list_images({found.amis[machine.image] for machine in new})
    return launches.Terms(
        cluster_id=cluster.id,
        tags={
            **_make_tags(order),
            **{key: value for key, value in of_ours.items() if value},
        },
        network=network,
        images={machine.image: known[found.amis[machine.image]] for machine in new},
        user_data=_render_user_data(order, new),
        spot=state.spot and not any(machine.name in state.on_demand for machine in new),
        placement=found.placement,
        reservation=reservation.id if reservation else "",
        block=bool(reservation and reservation.block),
        nonce=state.launching,
    )


def _render_user_data(order: Order, machines: Sequence[PlannedMachine]) -> dict[str, str]:
    """By node. Machines that boot have host keys of ours, which are there by now."""
    cluster = order.cluster
    pairs = order.host_keys.make_boot_keys([m.name for m in machines], [m.name for m in machines])
    return {
        machine.name: userdata.render(
            host_key=pairs[machine.name],
            authorized=keys.ensure(order.folder / "ssh" / "user"),
            deadline=cluster.deadline or time.time() + catalog.DEFAULT_TTL,
            root=layout.name_root(machine, cluster.id),
            spot=order.state.spot and machine.name not in (LAUNCHER, *order.state.on_demand),
        )
        for machine in machines
    }


def _build_variables(
    order: Order, running: Sequence[Instance], apart: Collection[str]
) -> dict[str, Any]:
    """Terraform's. Machines that boot get host keys of ours with their user data."""
    cluster, found, state = order.cluster, order.found, order.state
    deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
    living = {item.node for item in running}
    booted = living - order.host_keys.booting
    booting = [machine for machine in found.machines if machine.name not in booted]
    order.host_keys.make_boot_keys([machine.name for machine in booting], living)
    if together := [m.name for m in booting if m.name in apart and m.name not in living]:
        order.host_keys.share(together)
    place = found.subnets.get(state.zone, ZoneSubnets("", ""))
    return layout.ModuleVariables(
        cluster_id=cluster.id,
        name=cluster.name,
        region=order.api.region,
        zone=state.zone,
        machines=found.machines,
        amis=found.amis,
        spot=state.spot,
        on_demand=state.on_demand,
        placement=found.placement,
        efa=order.options.cloud.efa,
        efa_cards={name: kind.efa for name, kind in found.types.items() if len(kind.efa) > 1},
        private=order.options.cloud.private,
        instance_connect=order.options.cloud.instance_connect,
        endpoint_groups=found.endpoint.groups if found.endpoint else (),
        subnet=place.workers,
        launcher_subnet=place.launcher,
        reservation=found.reservation,
        ssh_cidr=state.ssh_cidr,
        public_key=keys.ensure(order.folder / "ssh" / "user"),
        user_data=_render_user_data(order, [m for m in booting if m.name not in apart]),
        # Whole minutes, so that asking again plans no change; and never nothing.
        hours=max(1, round((deadline - time.time()) / 60)) / 60,
        owner=cluster.owner,
        client=cluster.client,
        deadline=tags.render_deadline(deadline),
        shared=SHARED if cluster.spec.makes_folder else "",
        tags=tags.parse(order.options.cloud.tag),
        apart=apart,
    ).render()


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
