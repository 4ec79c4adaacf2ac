"""WHAT is started: pure functions from nodes and facts to hostfiles, flags and environments.

`Launcher` and `LAUNCHERS` are programs that start ranks, such as mpirun; the launcher of a cluster
is the node that they run on. One file per program and one row in `LAUNCHERS`. `interconnect`
decides the network for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from clusterctl.core.job import JobSpec, LaunchPlan, Placement
from clusterctl.core.model import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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


class Launcher(Protocol):
    """How ranks are started on the nodes of a placement."""

    def plan(self, request: Request) -> LaunchPlan:
        """Raises LaunchError where it cannot be started with what the nodes have."""


LAUNCHERS: dict[str, str] = {
    "mpirun": "clusterctl.launch.mpirun:Mpirun",
    "torchrun": "clusterctl.launch.torchrun:Torchrun",
    "points": "clusterctl.launch.torchrun:Points",
    "batch": "clusterctl.launch.srun:BatchScript",
}


def load_launcher(name: str) -> Launcher:
    """The launcher program of that name, imported on first use."""
    module, _, attribute = LAUNCHERS[name].partition(":")
    return cast(Launcher, getattr(import_module(module), attribute)())
