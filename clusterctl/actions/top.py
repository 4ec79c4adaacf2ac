"""`top`: what the ranks of a job use, look by look, over the connections that are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from clusterctl.actions import costs, jobs
from clusterctl.actions.common import connect_or_report, open_pool
from clusterctl.actions.rank_use import look
from clusterctl.core.job import Job
from clusterctl.core.model import Reporter
from clusterctl.insight import top
from clusterctl.insight.top import Look, TopFrame
from clusterctl.jobs import control
from clusterctl.jobs.submit import list_nodes
from clusterctl.state.store import Store


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
    now = time.time()
    end = job.finished or now
    return TopFrame(
        time=now,
        job=job.id,
        state=job.state.value,
        seconds=end - job.started if job.started else None,
        dollars=costs.sum_by_job(store, [job]).get(job.id),
        left=0.0 if job.state.ended else top.estimate_left(ranks),
        ranks=ranks,
        nodes=top.make_node_lines(before, after),
    )
