"""What the ranks of a job use at this moment: one look at their nodes, and what two looks say."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, Node
from clusterctl.insight import metrics, top
from clusterctl.insight.top import Look
from clusterctl.jobs.submit import NO_AGENT, list_rank_nodes, place_agents, render_question
from clusterctl.transport.pool import Pool

ANSWER = 15.0
"""Seconds that a node has to answer."""
SOON, BETWEEN = 5.0, 2.0
"""The same for each of the two looks of `describe`, while output waits; and between the two."""


def look(job: Job, cluster: Cluster, pool: Pool, limit: float = ANSWER) -> dict[str, Look]:
    """What each node with ranks shows now; of one that does not answer, why."""
    names = list_rank_nodes(job, cluster)
    asked = {name: _render_question(job, cluster, cluster.node(name)) for name in names}
    results = pool.run(asked, names, timeout=limit)
    if bare := [result.node for result in results if result.exit_code == NO_AGENT]:
        place_agents(bare, cluster, pool)
        results += pool.run(asked, bare, timeout=limit)
    found = {}
    for result in results:
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


def _render_question(job: Job, cluster: Cluster, node: Node) -> str:
    devices = (i.device for i in node.facts.interfaces if i.address == node.private_address)
    settings = {
        "tag": f"CLUSTERCTL_JOB={cluster.id}/{job.id};",
        "device": next(devices, ""),
        "marks": b"|".join(metrics.list_marks()).decode(),
    }
    return render_question(node, job.id, "show_use", settings)
