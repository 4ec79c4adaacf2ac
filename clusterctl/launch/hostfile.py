"""Open MPI's hostfile: of one job, and of a whole cluster for a person's own mpirun."""

from __future__ import annotations

from clusterctl.model import Cluster, render_hostfile_mark


def render_hostfile(cluster: Cluster, counts: dict[str, int]) -> str:
    """Workers only, `address slots=ranks` in rank order: slots are what this job takes there."""
    if cluster.one_host:
        return f"localhost slots={sum(counts.values())}\n"
    return "".join(
        f"{cluster.node(name).private_address} slots={count}\n" for name, count in counts.items()
    )


def render_whole_hostfile(cluster: Cluster) -> str:
    """All workers with all their slots, for mpirun."""
    lines = [f"{node.private_address} slots={node.slots} # {node.name}" for node in cluster.workers]
    if cluster.one_host:
        lines = [f"localhost slots={sum(node.slots for node in cluster.workers)}"]
    return "\n".join((render_hostfile_mark(cluster.id), *lines, ""))
