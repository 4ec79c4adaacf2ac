"""torchrun: mpirun starts one agent per node, the agent starts its ranks.

https://docs.pytorch.org/docs/stable/elastic/run.html (static rendezvous: node rank 0 listens).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace

from clusterctl.errors import LaunchError
from clusterctl.launch import Request
from clusterctl.launch.mpirun import plan_mpirun
from clusterctl.launch_plan import LaunchPlan, Reason
from clusterctl.model import Node


class Torchrun:
    """Ranks see torchrun's variables; `--no-python` lets it start our rank wrapper."""

    def plan(self, request: Request) -> LaunchPlan:
        if request.spec.backend == "mpi":
            raise LaunchError(
                "--backend mpi needs ranks that MPI has started, and torchrun starts its own",
                hint="leave out --launcher torchrun, or use --backend gloo or nccl",
            )
        nodes = {place.node: request.cluster.node(place.node) for place in request.placement}
        for node in nodes.values():
            _require_torch(node)
        counts = {place.count for place in request.placement}
        if len(counts) > 1:
            raise LaunchError(
                "torchrun starts the same number of ranks on every node",
                hint="use --ranks-per-node, or --launcher mpirun",
            )
        base = plan_mpirun(request, per_node=True)
        return replace(
            base,
            agents={name: render_agent(request, node, base.env) for name, node in nodes.items()},
            reasons=(
                *base.reasons,
                Reason(
                    item="torchrun", why="--launcher torchrun: one agent per node starts the ranks"
                ),
            ),
        )


def render_agent(request: Request, node: Node, env: Mapping[str, str]) -> str:
    """The sh line that turns one process per node into torchrun. The rank wrapper evaluates it,
    before the job's variables `env` are set."""
    count = next(place.count for place in request.placement if place.node == node.name)
    fixed = [
        node.python,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(len(request.placement)),
        "--nproc-per-node",
        str(count),
    ]
    port = shlex.quote(env["MASTER_PORT"]) if "MASTER_PORT" in env else '"$MASTER_PORT"'
    late = (
        f'--node-rank "$OMPI_COMM_WORLD_RANK" --master-addr {shlex.quote(env["MASTER_ADDR"])}'
        f" --master-port {port} --no-python"
    )
    return f"{shlex.join(fixed)} {late}"


def _require_torch(node: Node) -> None:
    python = node.facts.python
    if python is None or "torch" not in python.packages:
        raise LaunchError(
            f"no torch for torchrun on {node.name}",
            hint="install torch in the node's Python, or use --launcher mpirun",
        )
