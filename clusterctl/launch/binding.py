"""Whether ranks are bound to cores, and to how many."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.launch import Request
from clusterctl.launch.placement import shares_processor


@dataclass(frozen=True, slots=True)
class Binding:
    """`cores` per rank; 0: ranks are not bound. `why` is for people."""

    cores: int
    why: str


def bind(request: Request) -> Binding:
    """Binding is right where a node owns its cores and runs several ranks: a rank that stays keeps
    its cache. Open MPI's daemons each start at core 0, so nodes that share a processor would share
    that core."""
    spec, cluster = request.spec, request.cluster
    if shares_processor(cluster, request.placement):
        return Binding(0, "the nodes share one processor")
    if spec.launcher == "torchrun":
        return Binding(0, "one torchrun per node: all its cores are its own")
    if spec.now:
        return Binding(0, "--now: other jobs may run on the same cores")
    if max(place.count for place in request.placement) == 1:
        return Binding(0, "one process per node: all its cores are its own")
    cores = min(
        cluster.node(place.node).facts.physical_cores // place.count for place in request.placement
    )
    if cores == 0:
        return Binding(0, "fewer cores than ranks")
    return Binding(cores, "a rank that stays on its cores keeps its cache")
