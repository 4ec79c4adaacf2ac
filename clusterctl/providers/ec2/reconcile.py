"""Terraform's state against the cloud: what a cluster has without Terraform's knowing.

It is made where Terraform is stopped in the middle of a call, and where AWS's answer gets lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clusterctl import terraform
from clusterctl.providers.ec2 import cleanup, failures, report
from clusterctl.providers.ec2 import spec as layout
from clusterctl.providers.ec2.api import Api
from clusterctl.providers.ec2.failures import CapacityError
from clusterctl.providers.protocol import OnEvent, Resource

_NAMED_BY_US = {"key pair": "aws_key_pair", "placement group": "aws_placement_group"}
"""Their names are the cluster's id, which is all over the state: their type tells."""


def apply(
    runner: terraform.Terraform,
    variables: dict[str, Any],
    api: Api,
    cluster_id: str,
    on_event: OnEvent,
) -> dict[str, Any]:
    """Terraform's outputs; once more without what it failed over because it is there already.

    Raises TerraformError, and LeftoverError as `remove_unknown` does.
    """

    def once() -> dict[str, Any]:
        return runner.apply(
            variables,
            report.reporter(on_event),
            parallelism=layout.parallelism(len(variables["user_data"])),
        )

    try:
        return once()
    except terraform.TerraformError as error:
        said = [item.text for item in error.diagnostics]
        if isinstance(failures.from_terraform(said), CapacityError) or not failures.repeated(said):
            raise
        on_event("AWS already has resources that Terraform does not know: creating them again")
    remove_unknown(api, cluster_id, runner, on_event)
    return once()


def remove_unknown(
    api: Api, cluster_id: str, runner: terraform.Terraform, on_event: OnEvent
) -> None:
    """Removes what the cluster has without Terraform's knowing. Raises LeftoverError."""
    cleanup.remove(api, cluster_id, on_event, keep=known_to(runner))
    state = runner.state
    tables = api.all("describe_route_tables", "RouteTables", Filters=[cleanup.tagged(cluster_id)])
    # Associations have no tags of their own.
    for link in (link for table in tables for link in table.get("Associations", ())):
        name = link["RouteTableAssociationId"]
        if not link.get("Main") and name not in state:
            api.call("disassociate_route_table", AssociationId=name)


def known_to(runner: terraform.Terraform) -> Callable[[Resource], bool]:
    """Whether Terraform's state speaks of a thing."""
    state = runner.state
    types = {address.partition(".")[0] for address in runner.resources()}
    return lambda left: (
        _NAMED_BY_US[left.kind] in types if left.kind in _NAMED_BY_US else left.id in state
    )
