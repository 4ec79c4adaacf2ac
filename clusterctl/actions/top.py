"""`top`: what the ranks of a job use, look by look, over the connections that are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from clusterctl.actions import costs, jobs
from clusterctl.actions.common import connect_or_report, open_pool
from clusterctl.batch.system import list_nodes, list_rank_nodes
from clusterctl.core.job import Job
from clusterctl.core.model import Cluster, Node, Reporter
from clusterctl.insight import metrics, top
from clusterctl.insight.top import Look, TopFrame
from clusterctl.jobs import control, submit
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

ANSWER = 15.0
"""Seconds that a node has to answer."""


def watch(
    store: Store,
    number: int,
    where: str | None,
    report: Reporter,
    *,
    interval: float,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[TopFrame]:
    """A frame every `interval` seconds until the job has ended; one frame with `once`. Each takes
    two looks, so that the first comes after `interval` seconds. RecordError where the cluster is
    gone."""
    job = jobs.find_job(store, number, where)
    cluster = jobs.require_cluster(store, job)
    with open_pool(store, cluster) as pool:
        for name, why in connect_or_report(pool, list_nodes(job, cluster), report).items():
            report(f"{name} does not answer: {why}")
        before = look(job, cluster, pool)
        while True:
            if not job.state.ended:
                sleep(interval)
                job = control.refresh(job, cluster, pool)
            after = look(job, cluster, pool)
            yield _make_frame(store, job, before, after)
            if once or job.state.ended:
                return
            before = after


def _make_frame(
    store: Store, job: Job, before: dict[str, Look], after: dict[str, Look]
) -> TopFrame:
    ranks = tuple(top.place_unseen(job, top.make_rank_lines(before, after), after))
    left = [line.left for line in ranks if line.left is not None]
    return TopFrame(
        time=time.time(),
        job=job.id,
        state=job.state.value,
        seconds=job.seconds,
        dollars=costs.sum_by_job(store, [job]).get(job.id),
        left=0.0 if job.state.ended else max(left, default=None),
        ranks=ranks,
        nodes=top.make_node_lines(before, after),
    )


def look(job: Job, cluster: Cluster, pool: Pool) -> dict[str, Look]:
    """What each node with ranks shows now; of one that does not answer, why."""
    names = list_rank_nodes(job, cluster)
    asked = {name: _render_question(job, cluster, cluster.node(name)) for name in names}
    results = pool.run(asked, names, timeout=ANSWER)
    if bare := [result.node for result in results if result.exit_code == submit.NO_AGENT]:
        submit.place_agents(bare, cluster, pool)
        results += pool.run(asked, bare, timeout=ANSWER)
    found = {}
    for result in results:
        seen = top.read_top(result.node, result.text)
        seen.error = seen.error and (result.error or seen.error)
        found[result.node] = seen
    return found


def _render_question(job: Job, cluster: Cluster, node: Node) -> str:
    devices = (i.device for i in node.facts.interfaces if i.address == node.private_address)
    settings = {
        "tag": f"CLUSTERCTL_JOB={cluster.id}/{job.id};",
        "device": next(devices, ""),
        "marks": b"|".join(metrics.list_marks()).decode(),
    }
    return submit.render_question(node, job.id, "show_use", settings)
