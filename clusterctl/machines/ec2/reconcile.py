"""Terraform's state against the cloud: what a cluster has without Terraform's knowing.

It is made where Terraform is stopped in the middle of a call, and where AWS's answer gets lost.
So the end of a cluster, too, is first Terraform's, and then by tag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterctl.core.clock import Deadline
from clusterctl.core.errors import ProviderError
from clusterctl.core.model import Cluster, Reporter, shorten
from clusterctl.core.progress import NodePhases
from clusterctl.machines.ec2 import (
    cleanup,
    eventbridge,
    failures,
    provider_state,
    spec,
    tagged_resources,
    tags,
    terraform_module,
)
from clusterctl.machines.ec2.answers import STOPPED
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.failures import CapacityError
from clusterctl.machines.ec2.instances import SETTLE, find_instances, terminate_instances
from clusterctl.machines.protocol import Resource
from clusterctl.terraform import binary
from clusterctl.terraform import folder as terraform_folder

START_LIMIT = 300.0
"""Seconds that stopping and starting again may take."""

_NAMED_BY_US = {"key pair": "aws_key_pair", "placement group": "aws_placement_group"}
"""Their names are the cluster's id, which is all over the state: their type tells."""


def apply(
    runner: terraform_folder.Terraform,
    variables: dict[str, Any],
    api: Api,
    cluster_id: str,
    report: Reporter,
    may_go: Callable[[], Collection[str]],
    nodes: NodePhases | None = None,
) -> dict[str, Any]:
    """Terraform's outputs. Asks again where AWS was too busy for a part, as long as each attempt
    makes something; and once without what it failed over because it is there already.
    `may_go`: the addresses of the machines that may be destroyed or replaced, asked for before each
    attempt: what the last one has half made is among them. `nodes` is told which of them run.

    Raises TerraformError, and LeftoverError as `remove_unknown` does.
    """

    new = len(variables["user_data"])

    def apply_once() -> dict[str, Any]:
        return runner.apply(
            variables,
            terraform_module.make_reporter(report, new, nodes),
            parallelism=spec.choose_parallelism(new),
            may_go=may_go(),
        )

    known, tidied = len(runner.list_resources()), False
    while True:
        try:
            return apply_once()
        except binary.TerraformError as error:
            said = [item.text for item in error.diagnostics]
            before, known = known, len(runner.list_resources())
            if isinstance(failures.from_terraform(said), CapacityError):
                raise
            if failures.is_transient(said) and known > before:
                report(f"{failures.from_terraform(said)}: continuing")
            elif failures.is_repeated(said) and not tidied:
                report(
                    "AWS already has resources that are not in Terraform's state:"
                    " creating them again"
                )
                remove_unknown(api, cluster_id, runner, report)
                tidied = True
            else:
                raise


def start_stopped(api: Api, cluster_id: str, report: Reporter) -> None:
    """Starts machines again that were stopped, in the console or by EC2. Terraform would replace
    them: a stopped one has no public address, and that cannot be given to it. Raises ProviderError
    naming those that do not start."""
    end = Deadline(START_LIMIT)
    asked: dict[str, str] = {}
    while True:
        found = find_instances(api, cluster_id)
        down = [item for item in found if item.state in STOPPED]
        if not down and not any(item.id in asked and item.state == "pending" for item in found):
            return
        if end.passed:
            names = shorten(sorted(item.node or item.id for item in down))
            raise ProviderError(
                f"{names} was stopped and does not start again within {START_LIMIT:g} s",
                hint="check it in the EC2 console, and run the same command again",
            )
        fresh = [item for item in down if item.state == "stopped" and item.id not in asked]
        if fresh:
            names = shorten(sorted(item.node or item.id for item in fresh))
            report(f"{names}: stopped; starting again")
            try:
                api.call("start_instances", InstanceIds=[item.id for item in fresh])
            except ProviderError as error:
                raise ProviderError(
                    f"{names} was stopped and cannot be started again: {error.message}",
                    hint=f"{error.hint}; no machine was replaced",
                ) from error
            asked |= {item.id: item.node for item in fresh}
        time.sleep(cleanup.PAUSE)


def stop(api: Api, cluster_id: str, report: Reporter) -> None:
    """Stops all machines: from then on only disks cost money. Raises ProviderError naming those
    that do not stop."""
    found = [item for item in find_instances(api, cluster_id) if item.state not in STOPPED]
    if found:
        report(f"stopping {shorten(sorted(item.node or item.id for item in found))}")
        api.call("stop_instances", InstanceIds=[item.id for item in found])
    end = Deadline(START_LIMIT)
    while going := [i for i in find_instances(api, cluster_id) if i.state != "stopped"]:
        if end.passed:
            names = shorten(sorted(item.node or item.id for item in going))
            raise ProviderError(
                f"{names} does not stop within {START_LIMIT:g} s",
                hint="check it in the EC2 console, and run the same command again",
            )
        time.sleep(cleanup.PAUSE)


def remove_unknown(
    api: Api, cluster_id: str, runner: terraform_folder.Terraform, report: Reporter
) -> None:
    """Removes what the cluster has without Terraform's knowing. Raises LeftoverError."""
    cleanup.remove_cluster(api, cluster_id, report, keep=make_is_known(runner))
    state = runner.state
    tables = api.list_all(
        "describe_route_tables", "RouteTables", Filters=[tags.filter_by_cluster(cluster_id)]
    )
    # Associations have no tags of their own.
    for link in (link for table in tables for link in table.get("Associations", ())):
        name = link["RouteTableAssociationId"]
        if not link.get("Main") and name not in state:
            api.call("disassociate_route_table", AssociationId=name)


def make_is_known(runner: terraform_folder.Terraform) -> Callable[[Resource], bool]:
    """Whether Terraform's state speaks of a thing, or it never made such a one: schedules are ours,
    and AWS and people may have put endpoints into the network. A NAT gateway that Terraform would
    replace is not known: `cleanup` notes whether it was there, and so is to be paid for."""
    state = runner.state
    types = {address.partition(".")[0] for address in runner.list_resources()}
    tainted = terraform_folder.find_tainted(state)
    return lambda left: (
        left.managed
        or left.kind in ("VPC endpoint", eventbridge.KIND)
        or (
            _NAMED_BY_US[left.kind] in types
            if left.kind in _NAMED_BY_US
            else left.id in state
            and not (left.kind == tagged_resources.GATEWAY and left.id in tainted)
        )
    )


def destroy(api: Api, cluster: Cluster, folder: Path, report: Reporter) -> None:
    """Raises ProviderError, and LeftoverError where something is left."""
    _destroy_known(api, cluster, folder, report)
    if not find_instances(api, cluster.id):
        with suppress(ProviderError):  # the search below finds what is left
            eventbridge.remove_schedule(api, eventbridge.name_group(cluster.id))
    state = provider_state.load_state(folder)
    # An `up` was cut off: what it made last may have no tags yet, and no Terraform knows of it.
    settle = SETTLE if state and state.unfinished else 0.0
    cleanup.remove_all(api, cluster.id, report, settle=settle)


def _destroy_known(api: Api, cluster: Cluster, folder: Path, report: Reporter) -> None:
    """What Terraform knows of, by Terraform. What it leaves is for `cleanup`."""
    try:
        runner = terraform_module.open_terraform(api, folder, cluster.name, report)
        resources = runner.list_resources()
        if not resources:
            return
        if tagged_resources.is_managed(api, cluster.id):
            report("AWS has endpoints of its own in the cluster's VPC; removing by tag")
            return
        state = provider_state.load_state(folder)
        if state and state.unfinished:
            # Terraform would wait for a network that is held by what it does not know.
            report(
                "the last `up` did not finish: AWS may have more than Terraform knows; removing by"
                " tag"
            )
            return
        if unknown := [i for i in find_instances(api, cluster.id) if i.id not in runner.state]:
            names = shorten(sorted(item.node or item.id for item in unknown))
            report(f"{names}: not in Terraform's state; removing by tag")
            return
        runner.init()
        at_a_time = spec.choose_parallelism(len(resources))
        if len(resources) > at_a_time:
            # Terraform waits for each: the others would be billed meanwhile.
            terminate_instances(api, cluster.id)
        machines = sum(map(bool, map(terraform_module.find_node, resources)))
        runner.destroy(terraform_module.make_reporter(report, machines), parallelism=at_a_time)
    except ProviderError as error:
        report(f"{error.message}; removing by tag")
