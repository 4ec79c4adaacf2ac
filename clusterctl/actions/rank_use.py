"""What the ranks of a job use at this moment: one look at their nodes, and what two looks say."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterctl.core import assets
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, Node
from clusterctl.insight import metrics, top
from clusterctl.insight.top import Look
from clusterctl.jobs.submit import list_rank_nodes
from clusterctl.transport.pool import Pool

ANSWER = 15.0
"""Seconds that a node has to answer."""
SOON, BETWEEN = 5.0, 2.0
"""The same for each of the two looks of `describe`, while output waits; and between the two."""


def look(job: Job, cluster: Cluster, pool: Pool, limit: float = ANSWER) -> dict[str, Look]:
    """What each node with ranks shows now; of one that does not answer, why."""
    names = list_rank_nodes(job, cluster)
    scripts = {name: _render_script(job, cluster, cluster.node(name)) for name in names}
    found = {}
    for result in pool.run("exec /bin/sh -s", names, stdin=scripts, timeout=limit):
        seen = top.read_top(result.node, result.text)
        seen.error = seen.error and (result.error or seen.error)
        found[result.node] = seen
    return found


def describe_rank_use(
    job: Job, cluster: Cluster, pool: Pool, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Whether its ranks compute, as the end of a sentence about the job; "" if no rank is seen, as
    on the login node of a batch system."""
    before = look(job, cluster, pool, SOON)
    sleep(BETWEEN)
    return top.describe_use(before, look(job, cluster, pool, SOON))


def _render_script(job: Job, cluster: Cluster, node: Node) -> bytes:
    devices = (i.device for i in node.facts.interfaces if i.address == node.private_address)
    return assets.render(
        "insight/tick.sh.j2",
        id=job.id,
        node=node.name,
        root=node.root,
        tag=f"{cluster.id}/{job.id};",
        device=next(devices, ""),
        marks=b"|".join(metrics.list_marks()).decode(),
    ).encode()
