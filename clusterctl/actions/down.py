"""`down`: saves what is worth keeping, removes everything, and proves that nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from clusterctl import providers
from clusterctl.actions import Tell, check_name, connected
from clusterctl.errors import ClusterctlError, RecordError
from clusterctl.jobs import control, outputs
from clusterctl.jobs.follow import Follower, complete
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.stage import human
from clusterctl.model import Cluster, Job, JobState, Phase
from clusterctl.state import ClusterLock, Store
from clusterctl.transport.pool import Pool

SAVE_LIMIT = 60.0
"""Seconds that saving records and logs may take before the machines go regardless."""

Ask = Callable[[str], bool]
"""Asks a yes-or-no question; always yes where there is nobody to ask."""


@dataclass(frozen=True, slots=True)
class Down:
    """What was taken down. `hours` is how long the cluster lived."""

    name: str
    nodes: int
    hours: float
    jobs_cancelled: tuple[int, ...]
    unfetched: tuple[tuple[int, int], ...]
    """Jobs with outputs that were never fetched, and how many bytes they were."""


def down(store: Store, name: str, tell: Tell, ask: Ask, *, force: bool = False) -> Down | None:
    """None when there is nothing of that name, or the person said no."""
    check_name(name)
    with ClusterLock(store.home, name, "down"):
        try:
            cluster = store.cluster(name)
        except RecordError:
            if (store.folder(name) / "cluster.json").exists() or store.clusters():
                raise
            return None
        cancelled: tuple[int, ...] = ()
        unfetched: tuple[tuple[int, int], ...] = ()
        if cluster.phase is Phase.READY and not force:
            saved = _save(store, cluster, tell, ask)
            if saved is None:
                return None
            cancelled, unfetched = saved
        finish_down(store, cluster, tell)
    hours = (time.time() - cluster.created) / 3600
    return Down(name, len(cluster.nodes), hours, cancelled, unfetched)


def finish_down(store: Store, cluster: Cluster, tell: Tell) -> None:
    """The part that is safe to repeat: destroy, then let the record go."""
    cluster = replace(cluster, phase=Phase.DELETING)
    store.save(cluster)
    store.event(cluster.name, "deleting")
    providers.load(cluster.spec.provider).destroy(cluster, store.folder(cluster.name), tell)
    for job in _open_jobs(store, cluster):
        ended = replace(job, state=JobState.LOST, reason="its cluster was taken down")
        store.save_job(ended)
    store.event(cluster.name, "deleted")
    store.retire(cluster)


def _open_jobs(store: Store, cluster: Cluster) -> list[Job]:
    return [job for job in store.jobs() if job.cluster_id == cluster.id and not job.state.ended]


def _save(
    store: Store, cluster: Cluster, tell: Tell, ask: Ask
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None:
    """Ends running jobs, copies logs, sums up what was never fetched. Nodes that do not answer
    lose their part, and it is said; they never stop us."""
    deadline = time.monotonic() + SAVE_LIMIT
    jobs = [
        job
        for job in store.jobs()
        if job.cluster_id == cluster.id and (job.started or not job.state.ended)
    ]
    if not jobs:
        return (), ()
    cancelled: list[int] = []
    unfetched: list[tuple[int, int]] = []
    with connected(store, cluster) as pool:
        try:
            jobs = [_current(store, job, cluster, pool) for job in jobs]
            unfetched = _unfetched(jobs, cluster, pool, deadline)
        except ClusterctlError as error:
            tell(f"not everything can be saved: {error.message}")
        running = [job for job in jobs if not job.state.ended]
        if running and not ask(f"job {_numbers(running)} is still running; end it?"):
            return None
        for number, size in unfetched:
            tell(f"job {number} has outputs that were never fetched: {human(size)}")
        if unfetched and not ask("take the cluster down and lose these outputs?"):
            return None
        for job in running:
            try:
                store.save_job(control.cancel(job, cluster, pool))
                cancelled.append(job.id)
            except ClusterctlError as error:
                tell(f"job {job.id} could not be ended cleanly: {error.message}")
        for job in jobs:
            if time.monotonic() > deadline:
                tell(f"saving took over {SAVE_LIMIT:g} s; the logs from job {job.id} on are lost")
                break
            save_logs(store, job, cluster, pool, tell)
    return tuple(cancelled), tuple(unfetched)


def save_logs(store: Store, job: Job, cluster: Cluster, pool: Pool, tell: Tell) -> None:
    """Brings the rest of the job's output into the state home."""
    folder = store.job_folder(job.id)
    if complete(folder):
        return
    try:
        with (
            Interrupts() as interrupts,
            Follower(store.job(job.id), cluster, pool, folder, interrupts) as follower,
        ):
            for _ in follower.batches(until_ended=False, replay=False):
                pass
    except ClusterctlError as error:
        tell(f"the logs of job {job.id} could not be saved: {error.message}")


def _current(store: Store, job: Job, cluster: Cluster, pool: Pool) -> Job:
    if job.state.ended:
        return job
    fresh = control.refresh(job, cluster, pool)
    if fresh != job:
        store.save_job(fresh)
    return fresh


def _unfetched(
    jobs: list[Job], cluster: Cluster, pool: Pool, deadline: float
) -> list[tuple[int, int]]:
    found = []
    for job in jobs:
        if job.fetched or time.monotonic() > deadline:
            continue
        size = sum(output.size for output in outputs.find(job, cluster, pool))
        if size:
            found.append((job.id, size))
    return found


def _numbers(jobs: list[Job]) -> str:
    return ", ".join(str(job.id) for job in jobs)
