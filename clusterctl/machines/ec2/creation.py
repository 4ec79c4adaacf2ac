"""From a plan to machines that answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clusterctl.core import catalog
from clusterctl.core.errors import ProviderError
from clusterctl.core.model import (
    SHARED,
    Accelerator,
    Cluster,
    ClusterSpec,
    Node,
    Reporter,
    Role,
    Runtime,
    shorten,
)
from clusterctl.core.progress import NodePhases
from clusterctl.machines.ec2 import (
    host_key_rotation,
    plan,
    prices,
    provider_state,
    reconcile,
    sightings,
    spec,
    ssh_cidr,
    terraform_module,
    tunnels,
)
from clusterctl.machines.ec2.api import Api
from clusterctl.machines.ec2.attempts import Order, make_attempts, schedule_ends
from clusterctl.machines.ec2.instances import find_instances
from clusterctl.machines.ec2.preflight import Survey
from clusterctl.machines.ec2.provider_state import ProviderState
from clusterctl.machines.ec2.tunnels import ConnectEndpoint
from clusterctl.machines.protocol import LAUNCHER, Created
from clusterctl.terraform import binary
from clusterctl.terraform import folder as terraform_folder
from clusterctl.transport.ssh import preload

JOB_PORT = 2222
"""Where the node container's sshd listens, beside the machine's own on 22."""

_ACCELERATORS = {"nvidia": Accelerator.NVIDIA, "amd": Accelerator.AMD}
"""What the machine image is for. The facts tell later whether it is there."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What is known when `create` begins."""

    options: ClusterSpec
    found: Survey
    api: Api
    init_cache: binary.InitCache
    address: Future[str]
    """This machine's, as the internet sees it; "" where nobody has to know."""
    spot: bool
    """Whether new workers are priced as spot instances."""


def check_state(cluster: Cluster, folder: Path) -> None:
    """Raises ProviderError where Terraform would make all machines a second time."""
    state_folder = folder / "terraform"
    if not terraform_folder.list_resources(state_folder, cluster.name) and cluster.nodes:
        raise ProviderError(
            f"the Terraform state of cluster {cluster.name} is lost: its folder"
            f" {state_folder} holds none",
            hint=f"`clusterctl down {cluster.name}` finds the cluster by its tags and removes"
            " it without the state",
        )


def create(
    planned: Planned, cluster: Cluster, folder: Path, phases: NodePhases, report: Reporter
) -> Created:
    """Makes what is missing, and waits until it answers. Raises ProviderError, NodeUnreachable."""
    options, found, api = planned.options, planned.found, planned.api
    runner = terraform_module.open_terraform(api, folder, cluster.name, report)
    known = provider_state.load_state(folder)
    state = known or ProviderState(id=cluster.id, region=api.region)
    if not options.cloud.instance_connect:
        state.ssh_cidr = ssh_cidr.resolve_ssh_cidr(
            options.cloud.ssh_cidr, state.ssh_cidr, planned.address.result, report
        )
    _check_nodes(api, cluster, runner)
    runner.copy(terraform_module.find_module())
    runner.init(planned.init_cache)
    if known:
        _remove_unknown(api, cluster, folder, runner, report)
        reconcile.start_stopped(api, cluster.id, report)
    host_keys = host_key_rotation.HostKeys(folder, partial(tunnels.open_tunnel, api))
    preload()
    order = Order(
        cluster=cluster,
        options=options,
        found=found,
        api=api,
        folder=folder,
        state=state,
        host_keys=host_keys,
        rate=lambda names: prices.render_rate(
            plan.requote(api, found, cluster.charges, names, "", report)
        ),
        nodes=phases,
    )
    made: list[dict[str, Any]] = []
    try:
        made = make_attempts(order, runner, report)
    finally:
        # What came to be in an `up` that breaks off has its end, too.
        schedule_ends(order, {str(row["id"]) for row in made}, report)
    nodes = tuple(_build_node(row, options, found, cluster.id) for row in made)
    host_keys.forget([name for name in host_keys.known if name not in {n.name for n in nodes}])
    final, pool = host_keys.settle(
        nodes,
        limit=options.cloud.boot_timeout,
        report=report,
        phases=phases,
    )
    reason = plan.name_mode(api.region, state.spot, state.on_demand)
    return Created(
        nodes=nodes,
        host_keys=final,
        pool=pool,
        mode_reason=reason,
        shared=SHARED if cluster.spec.shared else "",
        shared_source=found.file_system.name_source(state.zone) if found.file_system else "",
    )


def _check_nodes(api: Api, cluster: Cluster, runner: terraform_folder.Terraform) -> None:
    """Raises ProviderError where a node runs that Terraform does not know: what is unknown is
    removed, and jobs may run on nodes."""
    state = runner.state
    nodes = {node.machine: node.name for node in cluster.nodes if node.machine not in state}
    if lost := [nodes[item.id] for item in find_instances(api, cluster.id) if item.id in nodes]:
        raise ProviderError(
            f"{shorten(lost)} of cluster {cluster.name} is not in Terraform's state, which `up`"
            " needs; nothing was changed",
            hint=f"`clusterctl fetch` saves outputs, then `clusterctl down {cluster.name}` removes"
            " the whole cluster",
        )


def _remove_unknown(
    api: Api, cluster: Cluster, folder: Path, runner: terraform_folder.Terraform, report: Reporter
) -> None:
    """What was being made when Terraform was stopped may exist without its knowing. It goes into
    the ledger with its beginning before it is removed, and with its end then: nobody else will be
    told."""
    sightings.note(api, cluster, folder)
    reconcile.remove_unknown(api, cluster.id, runner, report)
    sightings.note(api, cluster, folder)


def _find_tunnel(row: dict[str, Any], options: ClusterSpec, found: Survey) -> str:
    """What SSH to the launcher goes through: the endpoint of the VPC, else that of the cluster."""
    if found.endpoint:
        return str(found.endpoint.endpoint)
    return str(ConnectEndpoint.parse(f"{options.cloud.region}/{row['endpoint']}"))


def _build_node(row: dict[str, Any], options: ClusterSpec, found: Survey, cluster_id: str) -> Node:
    machine = next(item for item in found.machines if item.name == row["name"])
    launcher = machine.name == LAUNCHER
    kind = found.types[machine.instance_type]
    image = catalog.MACHINE_IMAGES[machine.image]
    hidden = options.cloud.instance_connect
    return Node(
        name=machine.name,
        role=Role.LAUNCHER if launcher else Role.WORKER,
        address=row["address"] if launcher and not hidden else row["private_address"],
        private_address=row["private_address"],
        ssh_port=22,
        job_port=JOB_PORT if options.runtime is Runtime.DOCKER else 22,
        user=image.user,
        root=spec.name_root(machine, cluster_id),
        via="" if launcher else LAUNCHER,
        tunnel=_find_tunnel(row, options, found) if launcher and hidden else "",
        slots=1 if launcher else kind.gpus or kind.vcpus,
        accelerator=_ACCELERATORS.get(machine.image, Accelerator.NONE),
        instance_type=row["instance_type"],
        machine=row["id"],
    )
