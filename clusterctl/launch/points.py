"""A sweep: its points run one after the other on as many slots as there are.

`templates/job/points.sh.j2` hands them out, on the launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.errors import LaunchError, UsageError
from clusterctl.formats import count
from clusterctl.job_model import JobSpec, Placement
from clusterctl.launch import Request
from clusterctl.launch.environment import OF_RANKS, build_environment, list_program
from clusterctl.launch.placement import choose_workers
from clusterctl.launch_plan import LaunchPlan, Reason
from clusterctl.model import Cluster
from clusterctl.sweeps import parse_concurrency

TODO = "todo"
"""The file in the job's folder that lists them."""


class Points:
    """Starts one shell per slot, which runs points; no MPI is needed."""

    def plan(self, request: Request) -> LaunchPlan:
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


def check_options(spec: JobSpec) -> None:
    """Raises UsageError for what means nothing to points."""
    for name, value in (
        ("--ranks", spec.ranks),
        ("--ranks-per-node", spec.ranks_per_node),
        ("--retries", spec.retries),
        ("--hang-timeout", spec.hang_timeout),
        ("--resume-args", spec.resume_args),
        ("--mpirun-arg", spec.mpirun_args),
        (f"--launcher {spec.launcher}", spec.launcher in ("torchrun", "srun")),
    ):
        if value:
            raise UsageError(
                f"{name} cannot be combined with --sweep or --array: each point is one process",
                hint="leave one of the two out",
            )


def place_points(cluster: Cluster, spec: JobSpec) -> tuple[Placement, ...]:
    """A slot for each point, as far as there are slots, dealt out over the workers."""
    check_options(spec)
    workers = choose_workers(cluster, spec)
    slots = [node.slots for node in workers]
    if not sum(slots):
        raise LaunchError("the workers have no slots", hint="`clusterctl status` shows them")
    wanted = min(len(spec.points), parse_concurrency(spec.array) or sum(slots), sum(slots))
    placement, first = [], 0
    for node, taken in zip(workers, _deal(slots, wanted), strict=True):
        if taken:
            placement.append(Placement(node=node.name, first=first, count=taken))
            first += taken
    return tuple(placement)


def _deal(slots: Sequence[int], wanted: int) -> list[int]:
    """Of each node's slots, how many are taken: by turns."""
    taken = [0] * len(slots)
    while wanted:
        for index, most in enumerate(slots):
            if wanted and taken[index] < most:
                taken[index] += 1
                wanted -= 1
    return taken
