"""Asks after a job, ends it, and makes sure on every node that nothing of it is left."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from clusterctl import schedulers
from clusterctl.errors import NodeUnreachable
from clusterctl.jobs.start import involved, ranked, trouble
from clusterctl.model import Cluster, Job, JobState, NodeResult
from clusterctl.schedulers import batch, direct
from clusterctl.schedulers.direct import CLEAN_LIMIT, GRACE
from clusterctl.transport.deadline import NEVER, Deadline
from clusterctl.transport.pool import Pool

ASK_TIMEOUT = CLEAN_LIMIT + 10.0
SURVEY_TIMEOUT = 45.0
"""As long as a silent queue may take to be given up, twice, and then some."""
REMARKS = 16_000
"""Bytes of the launcher's last words that are looked at."""
END_TIMEOUT = GRACE + 4.0
"""Seconds that the supervisor has to end everything itself, before we do."""
BATCH_TIMEOUT = 2 * GRACE + 20.0
"""The same for a batch job's script, which has to see our word first, and asks all nodes."""


def refresh(job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER) -> Job:
    """The job as the launcher knows it now. Unchanged if the launcher does not answer in time."""
    if deadline.passed:
        return job
    if cluster.batch:
        (job,) = refresh_all((job,), cluster, pool, deadline=deadline)
        return job
    scheduler = schedulers.load(job.scheduler)
    # There may be no folder, where its client died.
    command = (
        f"cd {_folder(job, cluster)} 2>/dev/null || {{ echo absent $(date +%s); exit; }};"
        f" {shlex.join(scheduler.status_argv(job))}"
    )
    limit = min(ASK_TIMEOUT, deadline.left)
    result = pool.transport(cluster.launcher.name).run(command, timeout=limit)
    if result.error or not result.stdout:
        return job
    found = scheduler.parse_status(job, result.text)
    if found.state is JobState.LOST and found.started is None and not job.state.ended:
        forget(found, cluster, pool)  # staged at most: no script of its own has cleaned up
    return found


def refresh_all(
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    tell: Callable[[str], None] = lambda text: None,
    deadline: Deadline = NEVER,
) -> tuple[Job, ...]:
    """All these jobs of one cluster; a batch system is asked once for all of them, and where it
    does not answer, that is said. Those not asked after by the deadline are unchanged."""
    if not cluster.batch or not jobs:
        return tuple(refresh(job, cluster, pool, deadline) for job in jobs)
    scheduler = schedulers.load_batch(cluster.spec.provider)
    # Not in a job's folder: there may be none, where its client died.
    command = (
        f"cd {shlex.quote(cluster.launcher.root)} && {shlex.join(scheduler.survey_argv(jobs))}"
    )
    limit = min(SURVEY_TIMEOUT, deadline.left)
    result = pool.transport(cluster.launcher.name).run(command, timeout=limit)
    if result.error or not result.stdout:
        tell(f"{result.node} does not answer: the jobs of {cluster.name} are as last seen")
        return tuple(jobs)
    if silence := batch.silence(result.text):
        tell(f"{cluster.name}: {silence}")
    return tuple(scheduler.parse_status(job, result.text) for job in jobs)


def cancel(job: Job, cluster: Cluster, pool: Pool) -> Job:
    """Ends the job and returns it with the survivors counted on every node (all 0, as a rule)."""
    ask_to_end(job, cluster, pool)
    return wait_for_end(job, cluster, pool)


def ask_to_end(job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER) -> None:
    """Leaves word on the launcher, where the job is then ended whether or not anybody waits for it.
    Raises NodeUnreachable if that is not certain."""
    argv = schedulers.load(job.scheduler).cancel_argv(job)
    result = _on_launcher(job, cluster, pool, argv, deadline)
    if result.exit_code is None:
        raise NodeUnreachable(
            f"job {job.id} could not be cancelled: {result.node}: {result.error}",
            hint=f"it may still be running; `clusterctl cancel {job.id}` tries again",
            transient=True,
        )


def wait_for_end(job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER) -> Job:
    """The job that `ask_to_end` is ending. What its supervisor has not ended in time is ended from
    here, over our own connections. Returned as it is where it has not ended by the deadline."""
    known = job.state.ended
    patience = BATCH_TIMEOUT if cluster.batch else END_TIMEOUT
    job = _ended(job, cluster, pool, deadline.within(patience))
    if cluster.batch and not job.state.ended:
        argv = schedulers.load_batch(job.scheduler).end_argv(job)
        _on_launcher(job, cluster, pool, argv, deadline)
        job = _ended(job, cluster, pool, deadline.within(END_TIMEOUT))
    if deadline.passed:
        return job
    survivors = sweep(job, cluster, pool, end=True, deadline=deadline)
    if not known and job.state in (JobState.LOST, JobState.RUNNING, JobState.QUEUED):
        job = replace(job, state=JobState.CANCELLED, finished=time.time(), reason="")
    # Of a batch job's nodes its own script knows; we see the login node alone.
    return job if cluster.batch else replace(job, survivors=survivors)


def _ended(job: Job, cluster: Cluster, pool: Pool, deadline: Deadline) -> Job:
    """The job as soon as it has ended, or as it is when its time is up."""
    job = refresh(job, cluster, pool, deadline)
    while not job.state.ended and not deadline.passed:
        time.sleep(0.5 if cluster.batch else 0.1)
        job = refresh(job, cluster, pool, deadline)
    return job


def sweep(
    job: Job, cluster: Cluster, pool: Pool, *, end: bool, deadline: Deadline = NEVER
) -> dict[str, int]:
    """Processes of the job that are left, per node; -1 where a node does not answer.

    `end` kills them first.
    """
    action = "end 0" if end else "look"

    def look(name: str) -> NodeResult:
        folder = f"{cluster.node(name).root}/jobs/{job.id}"
        command = f"exec /bin/sh {shlex.quote(folder)}/sweep.sh {action}"
        return pool.transport(name).run(command, timeout=min(ASK_TIMEOUT, deadline.left))

    return {result.node: _survivors(result) for result in pool.each(look, involved(job, cluster))}


def staged(job: Job, cluster: Cluster, pool: Pool) -> tuple[str, ...]:
    """The nodes that still have the job's working directory: a machine may have been made anew.
    Raises NodeUnreachable."""

    def look(name: str) -> NodeResult:
        path = f"{cluster.node(name).root}/jobs/{job.id}/.staged"
        return pool.transport(name).run(f"test -e {shlex.quote(path)}", timeout=ASK_TIMEOUT)

    results = pool.each(look, ranked(job, cluster))
    for result in results:
        if result.exit_code is None:
            raise trouble(f"looking for outputs of job {job.id}", result)
    return tuple(result.node for result in results if result.ok)


def forget(job: Job, cluster: Cluster, pool: Pool) -> None:
    """Removes the secrets of a job that was staged and will not start, where a node answers."""

    def remove(name: str) -> NodeResult:
        path = shlex.quote(f"{cluster.node(name).root}/jobs/{job.id}/env")
        command = f'rm -f "$(readlink {path})" {path}'
        return pool.transport(name).run(command, timeout=ASK_TIMEOUT)

    pool.each(remove, involved(job, cluster))


def messages(job: Job, cluster: Cluster, pool: Pool) -> str:
    """What the launcher itself said (mpirun's stderr): the cause when no rank was started."""
    ours = ("mpirun.err", "mpirun.out", "supervise.log")
    logs = ("launch.err", "launch.out", "batch.out") if cluster.batch else ours
    result = _on_launcher(
        job, cluster, pool, ("/bin/sh", "-c", f"tail -n 30 {' '.join(logs)} 2>/dev/null")
    )
    return direct.unix_lines(result.text).strip()


def remarks(job: Job, cluster: Cluster, pool: Pool) -> str:
    """What the launcher said about ranks that failed, less what everybody knows by then."""
    log = "launch.err" if cluster.batch else "mpirun.err"
    command = f"tail -c {REMARKS} {log} 2>/dev/null"
    return direct.remarks(_on_launcher(job, cluster, pool, ("/bin/sh", "-c", command)).text)


def survivors_text(job: Job) -> str:
    """`0 survivors on 3 nodes`, or the nodes that have some, or did not answer."""
    if not job.survivors:
        return "the batch system ended it" if job.started else "it had not started"
    left = {name: count for name, count in job.survivors.items() if count}
    if not left:
        one = len(job.survivors) == 1
        return "0 survivors on 1 node" if one else f"0 survivors on {len(job.survivors)} nodes"
    return ", ".join(
        f"{name} did not answer" if count < 0 else f"{count} survivors on {name}"
        for name, count in left.items()
    )


def _survivors(result: NodeResult) -> int:
    for line in result.text.splitlines():
        if line.startswith("survivors "):
            return int(line.split()[1])
    return -1


def _on_launcher(
    job: Job, cluster: Cluster, pool: Pool, argv: tuple[str, ...], deadline: Deadline = NEVER
) -> NodeResult:
    command = f"cd {_folder(job, cluster)} && {shlex.join(argv)}"
    limit = min(ASK_TIMEOUT, deadline.left)
    return pool.transport(cluster.launcher.name).run(command, timeout=limit)


def _folder(job: Job, cluster: Cluster) -> str:
    return shlex.quote(f"{cluster.launcher.root}/jobs/{job.id}")
