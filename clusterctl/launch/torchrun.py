"""torchrun: mpirun starts one agent per node, the agent starts its ranks.

https://docs.pytorch.org/docs/stable/elastic/run.html (static rendezvous: node rank 0 listens).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec.structs import replace

from clusterctl.core.job import JobSpec, LaunchPlan, Reason
from clusterctl.core.model import Node
from clusterctl.core.text import count
from clusterctl.errors import LaunchError
from clusterctl.launch.environment import OF_RANKS, build_environment, list_program
from clusterctl.launch.launcher import Request
from clusterctl.launch.mpirun import plan_mpirun


def plan_torchrun(request: Request) -> LaunchPlan:
    """Ranks see torchrun's variables; `--no-python` lets it start our rank wrapper."""
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
            Reason(item="torchrun", why="--launcher torchrun: one agent per node starts the ranks"),
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


# -------------------------------------------------------------------------------------------------
# A sweep: its points run one after the other on as many slots as there are.
#
# `clusterctl/agent/points.py` hands them out, on the launcher.


TODO = "todo"
"""The file in the job's folder that lists them."""


def plan_points(request: Request) -> LaunchPlan:
    """Starts one shell per slot, which runs points; no MPI is needed."""
    spec = request.spec
    env, reasons = build_environment(request)
    env = list_own_variables(env, spec)
    nodes = [request.cluster.node(place.node) for place in request.placement]
    slots = sum(place.count for place in request.placement)
    return LaunchPlan(
        argv=("/bin/sh", "./points.sh"),
        env=env,
        node_env={node.name: {} for node in nodes},
        programs={node.name: list_program(request, node) for node in nodes},
        files={TODO: render_todo(spec)},
        reasons=(
            Reason(item=f"CLUSTERCTL_POINTS={len(spec.points)}", why="points of the sweep"),
            *(item for item in reasons if item.item.partition("=")[0] in env),
        ),
        notes=(f"{count(len(spec.points), 'point')}, {slots} at a time",),
    )


def render_todo(spec: JobSpec) -> str:
    """The numbers of the points, in the order in which they begin."""
    return "".join(f"{point.number}\n" for point in spec.points)


def list_own_variables(env: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """What all points are told, of what ranks would be: each meets only what it starts itself, on
    its own node."""
    kept = {n: value for n, value in env.items() if n not in OF_RANKS or n in spec.env}
    return {**kept, "CLUSTERCTL_POINTS": str(len(spec.points))}
