"""A later deadline: in AWS, and on each node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clusterctl.core.model import GATEWAY, Cluster, Reporter, fold
from clusterctl.errors import NodeUnreachable, ProviderError
from clusterctl.machines import deadlines
from clusterctl.machines.ec2 import api as ec2_api
from clusterctl.machines.ec2 import deadline as ec2_deadline
from clusterctl.machines.ec2 import host_keys as ec2_host_keys
from clusterctl.machines.ec2 import preflight, prices, terraform_module
from clusterctl.machines.ec2.api import Api, find_instances
from clusterctl.machines.ec2.refusals import RefusedByAws, WrongClock

_NEXT = f"{deadlines.FILE}.next"
EXTEND_TIMEOUT = 30.0


def measure_clock(folder: Path, report: Reporter, connect: Callable[[], Api]) -> float:
    """As the protocol says. Where AWS keeps no deadline it does not have to answer."""
    state = terraform_module.load_state(folder)
    try:
        return preflight.check_clock(connect().ahead, report)
    except WrongClock:
        raise
    except ProviderError:
        if state and state.guarded is False:
            return 0.0
        raise


def extend(cluster: Cluster, folder: Path, deadline: float, connect: Callable[[], Api]) -> None:
    """`connect`: what AWS is asked with. Raises as the protocol says."""
    if reserved := cluster.spec.cloud.reservation:
        prices.check_end(connect(), reserved, deadline)
    state = terraform_module.load_state(folder)
    guarded = state.guarded if state else None
    try:
        # First: where AWS keeps an earlier end, a later one of the nodes would be a lie.
        _extend_in_aws(cluster, deadline, guarded, connect)
    except WrongClock:
        raise
    except ProviderError:
        if guarded is not False:
            raise
    text = f"{int(deadline)}"
    command = f"exec sudo -n sh -c 'echo {text} >{_NEXT} && mv {_NEXT} {deadlines.FILE}'"
    host_keys = ec2_host_keys.HostKeys(folder)
    with host_keys.open_pool(cluster.nodes) as pool:
        failed = [r for r in pool.run(command, timeout=EXTEND_TIMEOUT) if not r.ok]
    if failed:
        with suppress(ProviderError):  # nodes have been told by now: it is for the next look
            # Unused workers may have ended.
            running = {item.node for item in find_instances(connect(), cluster.id)}
            failed = [result for result in failed if result.node in running]
    if failed:
        raise NodeUnreachable(
            f"the old deadline still applies on {'; '.join(fold(failed))}",
            hint="`clusterctl status --live` shows each node's own; try again",
            transient=True,
        )


def label(cluster: Cluster, folder: Path, deadline: float, api: Api) -> None:
    """As the protocol says: all that EC2 has of the cluster, and the group of its schedules."""
    value = ec2_api.render_deadline(deadline)
    ec2_api.label(api, cluster.id, ec2_api.DEADLINE_TAG, value)
    state = terraform_module.load_state(folder)
    if state and state.guarded:
        ec2_deadline.label_schedule(api, cluster.id, {ec2_api.DEADLINE_TAG: value})


def _extend_in_aws(
    cluster: Cluster, deadline: float, guarded: bool | None, connect: Callable[[], Api]
) -> None:
    """`guarded`: whether AWS keeps one, None where the file that tells is lost. AWS is asked
    in any case: it knows the time. Raises ProviderError; WrongClock."""
    api = connect()
    preflight.check_clock(api.ahead)
    if guarded or (guarded is None and ec2_deadline.find_schedule(api, cluster.id)):
        there = [item.id for item in find_instances(api, cluster.id)]
        nat = any(item.part == GATEWAY and item.until is None for item in cluster.charges)
        try:
            ec2_deadline.schedule_ends(api, cluster.id, there, deadline, nat=nat)
        except RefusedByAws as refused:
            if refused.code != "ResourceNotFoundException":
                raise
            # Another person has removed the cluster, or its schedules alone.
            name = cluster.name
            gone = "its schedules in AWS are gone" if there else "none of its machines is running"
            raise ProviderError(
                f"the deadline of cluster {name} cannot be moved: {gone}",
                hint=f"`clusterctl up {name}` creates what is missing, `clusterctl down {name}`"
                " removes the cluster",
            ) from refused
