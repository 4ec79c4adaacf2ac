"""Follows a job to its end, and ends it on Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from textwrap import indent

from clusterctl.actions import rank_use
from clusterctl.actions.job_failure import describe_attempt, explain_failure, suggest
from clusterctl.errors import RecordError
from clusterctl.job_model import Job, JobState
from clusterctl.jobs import control, mirror
from clusterctl.jobs.follow import Follower
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.logs import Piece
from clusterctl.model import Cluster, Reporter
from clusterctl.schedulers.job_state import has_never_started
from clusterctl.state import Store
from clusterctl.transport.pool import Pool

REST_LIMIT = 300.0
"""Seconds that reading the rest of a job's output may take when the job has ended."""

OnOutput = Callable[[list[Piece]], None]
OnJob = Callable[[Job], None]
FindDeadNodes = Callable[[Store, Cluster], Mapping[str, str]]
"""Looks for nodes that will never answer again, as actions.dead_nodes does."""

STARTERS = {"mpirun": "mpirun", "torchrun": "mpirun", "srun": "srun"}
"""What starts the ranks, by --launcher, as far as that is known here."""


@contextmanager
def stop_on_interrupt(
    store: Store, number: int, cluster: Cluster, pool: Pool, report: Reporter
) -> Iterator[None]:
    """A Ctrl-C inside, wherever it comes, ends the job on all nodes before it is raised again."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(RecordError):  # it had not come as far as its record
            job = store.read_job(number)
            if not job.state.ended:
                store.save_job(_stop(job, cluster, pool, report))
                if job.spec.sync:
                    report(
                        mirror.describe_synced(job, store.locate_job_folder(number), "interrupted")
                    )
        raise


@contextmanager
def open_follower(
    store: Store,
    job: Job,
    cluster: Cluster,
    pool: Pool,
    report: Reporter,
    find_dead: FindDeadNodes | None,
) -> Iterator[Follower]:
    """What reads the job's output. A Ctrl-C inside is raised where it does no harm."""
    look = partial(find_dead, store, cluster) if find_dead else None
    use = partial(rank_use.describe, job, cluster, pool)
    folder = store.locate_job_folder(job.id)
    with (
        Interrupts() as interrupts,
        Follower(job, cluster, pool, folder, interrupts, report, look, use) as follower,
    ):
        yield follower


def follow_to_end(
    store: Store,
    job: Job,
    cluster: Cluster,
    pool: Pool,
    *,
    on_output: OnOutput,
    report: Reporter,
    find_dead: FindDeadNodes | None = None,
) -> Job:
    """Follows the job to its end. Whoever calls it ends the job if it is interrupted."""
    folder = store.locate_job_folder(job.id)
    with (
        open_follower(store, job, cluster, pool, report, find_dead) as follower,
        mirror.Keeper(job, cluster, pool, folder) as keeper,
    ):
        try:
            attempt = 1
            for pieces in follower.read_batches(limit=REST_LIMIT):
                on_output(pieces)
                if follower.job.state is not job.state:
                    job = follower.job
                    store.save_job(job)
                if follower.job.attempt > attempt:
                    attempt = follower.job.attempt
                    report(describe_attempt(follower.job))
            if follower.cut_short:
                report(
                    f"job {job.id} has ended, but not all of its output was read within"
                    f" {REST_LIMIT:g} s; `clusterctl logs {job.id}` reads the rest"
                )
        finally:
            job = follower.job
            store.save_job(job)
        if synced := keeper.finish(job):
            report(synced)
    said = ""
    if has_never_started(job):
        said = control.read_messages(job, cluster, pool)
    elif job.state is JobState.FAILED and (remarks := control.read_remarks(job, cluster, pool)):
        report(f"{STARTERS.get(job.spec.launcher, 'the launcher')} said:\n{indent(remarks, '  ')}")
    if error := explain_failure(job, said):
        raise error
    if hint := suggest(store, job):
        report(hint)
    return job


def _stop(job: Job, cluster: Cluster, pool: Pool, report: Reporter) -> Job:
    """What Ctrl-C means for a job. A second one does not wait for the end; the launcher has been
    told by then."""
    try:
        with Interrupts(patient=True):
            saving = f"; its ranks have {job.spec.save_time:g} s to save" if job.started else ""
            report(f"stopping job {job.id} on all nodes{saving}")
            control.ask_to_end(job, cluster, pool)
        job = control.wait_for_end(job, cluster, pool, report=report)
    except KeyboardInterrupt:
        report(
            f"the launcher is stopping job {job.id};"
            f" `clusterctl cancel {job.id}` waits until nothing is left"
        )
        raise
    report(f"job {job.id} is {job.state.value}: {control.describe_survivors(job)}")
    return job
