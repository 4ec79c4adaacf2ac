"""WHAT is started: pure functions from nodes and facts to hostfiles, flags and environments.

`LAUNCHERS` are programs that start ranks, such as mpirun; the launcher of a cluster is the node
that they run on. `network` decides the network for all.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from msgspec import Struct

from clusterctl.core.job import JobSpec, LaunchPlan, Placement
from clusterctl.core.model import Cluster


class Request(Struct, frozen=True, kw_only=True):
    """All that a launcher program is planned from. `id` is the job's number; `folder` lies under
    each root."""

    id: int
    spec: JobSpec
    cluster: Cluster
    placement: tuple[Placement, ...]

    @property
    def tag(self) -> str:
        """The value of CLUSTERCTL_JOB that marks every process of the job. Ends in `;`, so that
        a search for job 1 does not find job 11."""
        return f"{self.cluster.id}/{self.id};"

    def find_folder(self, node: str) -> str:
        """The job's folder on that node."""
        return f"{self.cluster.node(node).root}/jobs/{self.id}"


LAUNCHERS = {
    "mpirun": "clusterctl.launch.mpirun:plan_mpirun",
    "torchrun": "clusterctl.launch.torchrun:plan_torchrun",
    "points": "clusterctl.launch.torchrun:plan_points",
    "batch": "clusterctl.launch.srun:plan_batch_script",
}


def plan_launch(name: str, request: Request) -> LaunchPlan:
    """How that launcher program, imported on first use, starts the ranks of a placement. Raises
    LaunchError where it cannot be started with what the nodes have."""
    module, _, function = LAUNCHERS[name].partition(":")
    plan: Callable[[Request], LaunchPlan] = getattr(import_module(module), function)
    return plan(request)
