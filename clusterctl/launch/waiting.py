"""Whether a rank that waits for a message offers its core to other processes.

Open MPI's ranks wait by polling. On a core that something else runs on, too, the waiting rank then
takes the time of the rank that it waits for: with two ranks on two cores, one other process made a
training 3 to 18 times slower. Where the cores are the ranks' own, polling without a pause answers
soonest.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.launch import Request
from clusterctl.launch.placement import shares_processor

YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""What Open MPI 4 and 5 read it from, in every program: bundled or not, Python or not."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """`yields`: the core is offered at every poll. `why` is for people."""

    yields: bool
    why: str


def wait(request: Request) -> Waiting:
    cluster, placement = request.cluster, request.placement
    if cluster.shares_machine:
        return Waiting(True, "waiting ranks yield: this machine runs other programs")
    if shares_processor(cluster, placement):
        return Waiting(True, "waiting ranks yield: the nodes share one processor")
    if request.spec.now:
        return Waiting(True, "waiting ranks yield: with --now, other jobs may use these cores")
    if any(place.count > cluster.node(place.node).facts.cores for place in placement):
        return Waiting(True, "waiting ranks yield: there are more ranks than cores")
    if cluster.identity is not None:
        return Waiting(True, "waiting ranks yield: these hosts may run other programs")
    return Waiting(False, "waiting ranks poll: the machines run nothing but this job")
