"""Brings the rest of jobs' output here before their machines go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clusterctl.actions.unfetched import list_numbers
from clusterctl.errors import ClusterctlError, describe_reason
from clusterctl.job_model import Job
from clusterctl.jobs.follow import Follower
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.logs import is_complete
from clusterctl.jobs.node_connections import find_saved
from clusterctl.model import Cluster, Reporter
from clusterctl.state import Store
from clusterctl.timeouts import Deadline
from clusterctl.transport.pool import Pool

SAVE_LIMIT = 60.0
"""Seconds for saving logs."""
SLICE = 2.0
"""Seconds that the log of a job gets at least, before it is the next one's turn."""


def save_logs(
    store: Store,
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    report: Reporter,
    limit: float = SAVE_LIMIT,
    away: Collection[str] = (),
) -> None:
    """Brings the rest of these jobs' output into the state home, as far as `limit` seconds allow
    for all of them; what is not saved is named. Of nodes that are `away`, the launcher's copies
    count."""
    deadline = Deadline(limit)
    late = [job for job in jobs if not is_complete(store.locate_job_folder(job.id))]
    # In turns: a log that takes all the time must not cost the others theirs.
    while late and not deadline.passed:
        turn, late = late, []
        for index, job in enumerate(turn):
            share = max(SLICE, deadline.left / (len(turn) - index))
            gone = set(away) - find_saved(job, cluster, pool)
            rest = cluster.drop_nodes(gone)
            if not _save_log(store, job, rest, pool, min(share, deadline.left), report):
                late.append(job)
    if late:
        report(
            f"the logs of job {list_numbers(late)} are incomplete: {limit:.0f} s were not enough"
        )


def _save_log(
    store: Store, job: Job, cluster: Cluster, pool: Pool, limit: float, report: Reporter
) -> bool:
    """Whether more time would bring no more of it."""
    try:
        with (
            Interrupts() as interrupts,
            Follower(
                store.read_job(job.id), cluster, pool, store.locate_job_folder(job.id), interrupts
            ) as follower,
        ):
            for _ in follower.read_batches(until_ended=False, replay=False, limit=limit):
                pass
            if cluster.launcher.name in follower.lost:
                report(
                    f"the logs of job {job.id} may be incomplete: {cluster.launcher.name} does not"
                    " answer"
                )
            return not follower.cut_short
    except (ClusterctlError, OSError) as error:
        report(f"the logs of job {job.id} could not be saved: {describe_reason(error)}")
        return True
