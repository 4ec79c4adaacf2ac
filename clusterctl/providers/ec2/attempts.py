"""Makes the machines of a cluster where there is room for all of them: in one zone of the region,
on the spot market or on demand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl import catalog, keys, terraform
from clusterctl.errors import ProviderError
from clusterctl.model import Cluster, ClusterSpec
from clusterctl.providers.ec2 import (
    cleanup,
    eventbridge,
    failures,
    provider_state,
    reconcile,
    report,
    tags,
    userdata,
)
from clusterctl.providers.ec2 import spec as layout
from clusterctl.providers.ec2.api import Api, Instance
from clusterctl.providers.ec2.failures import CapacityError, Refused
from clusterctl.providers.ec2.hostkeys import HostKeys
from clusterctl.providers.ec2.networks import Place
from clusterctl.providers.ec2.preflight import Survey
from clusterctl.providers.ec2.provider_state import ProviderState
from clusterctl.providers.protocol import OnEvent
from clusterctl.providers.shared.nodes import LAUNCHER


class Attempt(NamedTuple):
    spot: bool
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What has to be made, and what is known of it. `state` is changed, and kept in `folder`."""

    cluster: Cluster
    options: ClusterSpec
    found: Survey
    api: Api
    folder: Path
    state: ProviderState
    host_keys: HostKeys


def attempts(options: ClusterSpec, zones: Sequence[str], state: ProviderState) -> list[Attempt]:
    """In this order. The zones before the one that an earlier attempt got to had no room."""
    first = zones.index(state.zone) if state.zone in zones else 0
    fall_back = state.spot and options.cloud.spot_fallback
    markets = (True, False) if fall_back else (state.spot,)
    return [Attempt(spot, zone) for spot in markets for zone in zones[first:]]


def make(order: Order, runner: terraform.Terraform, on_event: OnEvent) -> list[dict[str, Any]]:
    """Terraform's list of nodes. Raises CapacityError where no zone has room for all; what runs
    already never moves."""
    state = order.state
    running = cleanup.instances(order.api, order.cluster.id)
    settled = any(order.cluster.has(item.node) for item in running)
    if not running:
        # What an earlier attempt came to says nothing about today.
        state.zone, state.spot = "", order.options.cloud.spot
    todo = attempts(order.options, order.found.zones, state)
    for attempt, following in zip_longest(todo, todo[1:]):
        state.spot, state.zone = attempt
        state.unfinished = True
        provider_state.save(order.folder, state)
        variables = _variables(order, running)
        try:
            made = reconcile.apply(
                runner,
                variables,
                order.api,
                order.cluster.id,
                on_event,
                may_go=partial(_may_go, order, runner),
            )
            state.unfinished = False
            provider_state.save(order.folder, state)
            return list(made["nodes"])
        except terraform.TerraformError as error:
            known = _no_capacity(error)
            if settled:
                raise CapacityError(
                    f"{state.zone} has no capacity for more: {known.message}",
                    hint="running nodes are unchanged: try later, or with fewer --workers",
                ) from error
            if following is None:
                tried = ", ".join(dict.fromkeys(zone for _, zone in todo))
                hint = known.hint + (", or --spot-fallback" if state.spot else "")
                # The next `up` finds another day, and begins anew.
                state.zone, state.spot = "", order.options.cloud.spot
                provider_state.save(order.folder, state)
                raise CapacityError(
                    f"no zone has capacity for the whole cluster (tried {tried}): {known.message}",
                    hint=hint,
                ) from error
        on_event(
            f"{attempt.zone} has no capacity{' for spot' * attempt.spot} ({known.message}):"
            f" the whole cluster moves to {following.zone}"
            + ("" if following.spot == attempt.spot else ", on-demand")
        )
        running = cleanup.instances(order.api, order.cluster.id)
    raise ProviderError("no zone to try", hint="name some with --zones")


def _may_go(order: Order, runner: terraform.Terraform) -> list[str]:
    """The machines that Terraform may destroy or replace: surplus ones, whose removal was agreed
    to, and those that never became nodes, on which nothing ever ran."""
    nodes = {node.machine for node in order.cluster.nodes}
    wanted = {machine.name for machine in order.found.machines}
    return [
        address
        for address, machine in runner.resources().items()
        if (name := report.node(address)) and (machine not in nodes or name not in wanted)
    ]


def _no_capacity(error: terraform.TerraformError) -> CapacityError:
    """What is wrong, where it is that; raises anything else."""
    known = failures.from_terraform(item.text for item in error.diagnostics)
    if isinstance(known, CapacityError):
        return known
    raise known or error from error


def _variables(order: Order, running: Sequence[Instance]) -> dict[str, Any]:
    """Terraform's. Machines that boot get host keys of ours with their user data."""
    cluster, found, state = order.cluster, order.found, order.state
    public = keys.ensure(order.folder / "ssh" / "user")
    deadline = cluster.deadline or time.time() + catalog.DEFAULT_TTL
    living = {item.node for item in running}
    booted = living - order.host_keys.booting
    pairs = order.host_keys.boot([m.name for m in found.machines if m.name not in booted], living)
    user_data = {
        machine.name: userdata.render(
            host_key=pairs[machine.name],
            authorized=public,
            deadline=deadline,
            root=layout.root(machine, cluster.id),
            spot=state.spot and machine.name != LAUNCHER,
        )
        for machine in found.machines
        if machine.name in pairs
    }
    place = found.subnets.get(state.zone, Place("", ""))
    return layout.variables(
        cluster_id=cluster.id,
        name=cluster.name,
        region=order.api.region,
        zone=state.zone,
        machines=found.machines,
        amis=found.amis,
        spot=state.spot,
        placement=found.placement,
        efa=order.options.cloud.efa,
        efa_cards={name: kind.efa for name, kind in found.types.items() if len(kind.efa) > 1},
        private=order.options.cloud.private,
        subnet=place.workers,
        launcher_subnet=place.launcher,
        reservation=found.reservation,
        ssh_cidr=state.ssh_cidr,
        public_key=public,
        user_data=user_data,
        # Whole minutes, so that asking again plans no change; and never nothing.
        hours=max(1, round((deadline - time.time()) / 60)) / 60,
        owner=cluster.owner,
        client=cluster.client,
        deadline=cleanup.render_deadline(deadline),
        tags=tags.parse(order.options.cloud.tag),
    )


def arm(order: Order, made: set[str], tell: OnEvent) -> None:
    """Gives the machines that there are an end outside of themselves.

    `made`: instances that Terraform knows of, which AWS may not yet find by their tags.
    """
    state, api, id = order.state, order.api, order.cluster.id
    guarded = state.guarded
    try:
        there = made | {item.id for item in cleanup.instances(api, id)}
        if not there or not order.cluster.deadline:
            return
        eventbridge.prepare(api, id, tags.parse(order.options.cloud.tag))
        state.guarded = True
        provider_state.save(order.folder, state)
        eventbridge.arm(api, id, there, order.cluster.deadline)
    except ProviderError as error:
        if isinstance(error, Refused) and failures.about_the_account(error):
            state.guarded = guarded
            provider_state.save(order.folder, state)
        tell(
            f"AWS itself does not terminate the machines ({error.message}): {eventbridge.UNGUARDED}"
        )
