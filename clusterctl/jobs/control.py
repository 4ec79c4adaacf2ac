"""Asks after a job, ends it, and makes sure on every node that nothing of it is left."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from clusterctl.batch import direct, verdict
from clusterctl.batch.direct import ASK_TIMEOUT
from clusterctl.batch.system import (
    SILENT,
    ask_agent,
    list_nodes,
    list_rank_nodes,
    load_system,
    locate_folder,
)
from clusterctl.core.clock import NEVER, Deadline, now
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, NodeResult, Reporter, make_error
from clusterctl.core.text import count
from clusterctl.errors import ClusterctlError, NodeUnreachable
from clusterctl.options.values import MIN_IDLE
from clusterctl.transport.pool import Pool

REMARKS = 16_000
"""Bytes of the launcher's last words that are looked at."""
HURRY = 5.0
"""Seconds for a connection to a launcher that has to end a job."""
SAVING = 10.0
"""Seconds after which a person hears again that ranks are still saving."""
AWAY = 30.0
"""Seconds for which a launcher may not answer that has to say whether it was handed a job."""
SETTLE = 5.0
"""Seconds after which it says for certain that it was not: the hand-in may just begin."""
SAVED_TIMEOUT = 30.0
"""Seconds that a launcher has to say what it has saved, or to note what is saved here."""
FORCE_TIMEOUT = 9.0
"""Seconds that a job has to be gone after it was taken from its queue."""


def refresh(
    job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER, age: float = 0.0
) -> Job:
    """The job as the launcher knows it now. Unchanged if the launcher does not answer in time.
    `age`: as of `status_commands`."""
    (found,) = refresh_all((job,), cluster, pool, deadline=deadline, age=age)
    return found


def refresh_all(
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    report: Reporter = lambda text: None,
    deadline: Deadline = NEVER,
    age: float = 0.0,
) -> tuple[Job, ...]:
    """All these jobs of one cluster. `report` hears of a queue that does not answer. Those not
    asked after by the deadline are unchanged."""
    system, name = load_system(cluster.system), cluster.launcher.name
    found: dict[int, Job] = {}
    for command, asked in system.status_commands(jobs, cluster, age).items():
        if deadline.passed:
            break
        limit = min(system.ask_limit, deadline.left)
        result = pool.find_transport(name).run(command, timeout=limit)
        if result.error or not result.stdout:
            if not system.places_ranks:
                report(f"{name} does not answer: showing the jobs of {cluster.name} as last seen")
            continue
        if silence := system.describe_silence(result.text):
            report(f"{cluster.name}: {silence}")
        for job in asked:
            fresh = system.parse_status(job, result.text)
            if fresh.state.ended and fresh.started is None and not job.state.ended:
                from clusterctl.jobs.submit import remove_secrets

                # Staged at most: no script of its own has cleaned up.
                remove_secrets(fresh, cluster, pool)
            if fresh.reason == verdict.NO_FOLDER and not fresh.survivors:
                # The launcher has no script that would clean up.
                survivors = kill_processes(fresh, cluster, pool, deadline)
                fresh = replace(fresh, survivors=survivors)
            found[job.id] = fresh
    return tuple(found.get(job.id, job) for job in jobs)


def find_start(
    job: Job, cluster: Cluster, pool: Pool, away: float = AWAY, settle: float = SETTLE
) -> Job | None:
    """The job after no answer came to its hand-in, over another connection, as soon as its launcher
    says what became of it. None: it has not said so in time."""
    system = load_system(cluster.system)
    (command,) = system.status_commands((job,), cluster)
    transport = pool.find_transport(cluster.launcher.name)
    began, limit = now(), Deadline(system.start_limit)
    silent = limit.limit(away)
    found = job
    while not silent.passed:
        result = transport.run(command, timeout=min(system.ask_limit, silent.left))
        if result.exit_code is not None and result.stdout:
            silent = limit.limit(away)
            found = system.parse_status(job, result.text)
            ended = found.state.ended and found.started is None
            known = system.places_ranks or found.native_id or ended
            if known and not (was_never_staged(found) and now() - began < settle):
                return found
        time.sleep(system.poll)
    return found if found.started else None  # the queue gives no number for a job that has run


def was_never_staged(job: Job) -> bool:
    """Whether the job never reached its cluster: there is nothing of it to read or to end."""
    return job.state is JobState.LOST and job.started is None and not job.native_id


def cancel(job: Job, cluster: Cluster, pool: Pool, report: Reporter = lambda text: None) -> Job:
    """Ends the job and returns it with the survivors counted on every node (all 0, as a rule)."""
    ask_to_end(job, cluster, pool)
    return wait_for_end(job, cluster, pool, report=report)


def ask_to_end(job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER) -> None:
    """Leaves word on the launcher, where the job is then ended whether or not anybody waits for it.
    Raises NodeUnreachable if that is not certain."""
    # Who presses Ctrl-C in an outage wants to leave: where there is no connection, one is not
    # waited for as long as for an answer.
    (result,) = pool.connect([cluster.launcher.name], timeout=min(HURRY, deadline.left))
    if result.exit_code is not None:
        argv = load_system(cluster.system).cancel_argv(job)
        result = _run_on_launcher(job, cluster, pool, argv, deadline)
    _require_told(job, result)


def _require_told(job: Job, result: NodeResult) -> None:
    if result.exit_code in (None, SILENT):
        raise NodeUnreachable(
            f"job {job.id} could not be cancelled: {result.node}: {result.why}",
            hint=f"it may still be running; `clusterctl cancel {job.id}` tries again",
            transient=True,
        )


def wait_for_end(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    deadline: Deadline = NEVER,
    report: Reporter = lambda text: None,
) -> Job:
    """The job that `ask_to_end` is ending. What its supervisor has not ended in time is ended from
    here, over our own connections. Returned as it is where it has not ended by the deadline.
    `report` hears now and then that ranks are still saving."""
    known, system = job.state.ended, load_system(cluster.system)
    limit = deadline.limit(system.limit_end(job.spec))
    job = _wait_for_end(job, cluster, pool, limit, report)
    if not job.state.ended and (force := system.end_argv(job)):
        _require_told(job, _run_on_launcher(job, cluster, pool, force, deadline))
        job = _wait_for_end(job, cluster, pool, deadline.limit(FORCE_TIMEOUT))
    if deadline.passed:
        return job
    survivors = kill_processes(job, cluster, pool, deadline)
    if not known and job.state in (JobState.LOST, JobState.RUNNING, JobState.QUEUED):
        job = replace(job, state=JobState.CANCELLED, finished=time.time(), reason="")
    return replace(job, survivors=survivors) if system.places_ranks else job


def _wait_for_end(
    job: Job,
    cluster: Cluster,
    pool: Pool,
    deadline: Deadline,
    report: Reporter = lambda text: None,
) -> Job:
    """The job as soon as it has ended, or as it is when its time is up."""
    job = refresh(job, cluster, pool, deadline)
    began, told = now(), 0.0
    while not job.state.ended and not deadline.passed:
        time.sleep(load_system(cluster.system).poll)
        job = refresh(job, cluster, pool, deadline)
        waited = now() - began
        if job.state is JobState.RUNNING and waited - told >= SAVING:
            told = waited
            report(f"job {job.id} is still saving: {waited:.0f} of {job.spec.save_time:g} s")
    return job


def kill_processes(
    job: Job, cluster: Cluster, pool: Pool, deadline: Deadline = NEVER
) -> dict[str, int]:
    """Kills what is left of the job on each node, and returns how many processes are left then; -1
    where a node does not answer."""
    commands = {}
    for name in list_nodes(job, cluster):
        folder = shlex.quote(locate_folder(job, cluster, name))
        # A machine that was made anew has neither the folder nor processes of the job.
        absent = f"cd {folder} 2>/dev/null || {{ echo survivors 0; exit; }}"
        commands[name] = f"{absent}; {ask_agent('end', '0')}"
    results = pool.run(commands, list(commands), timeout=min(ASK_TIMEOUT, deadline.left))
    return {result.node: _count_survivors(result) for result in results}


def find_staged(job: Job, cluster: Cluster, pool: Pool) -> tuple[str, ...]:
    """The nodes that still have the job's working directory: a machine may have been made anew.
    Raises NodeUnreachable."""
    commands = {
        name: f"test -e {shlex.quote(locate_folder(job, cluster, name))}/.staged"
        for name in list_rank_nodes(job, cluster)
    }
    results = pool.run(commands, list(commands), timeout=ASK_TIMEOUT)
    for result in results:
        if result.exit_code is None:
            raise make_error(f"looking for outputs of job {job.id}", result)
    return tuple(result.node for result in results if result.ok)


def find_saved(job: Job, cluster: Cluster, pool: Pool) -> frozenset[str]:
    """The nodes whose output the launcher has, for they were about to end unused (see
    clusterctl/agent/supervise.py)."""
    if cluster.spec.cloud.idle is None or time.time() - job.created < MIN_IDLE:
        return frozenset()
    launcher = cluster.launcher
    command = f"cd {shlex.quote(launcher.root)}/jobs/{job.id}/saved && ls -d */.done"
    result = pool.find_transport(launcher.name).run(command, timeout=SAVED_TIMEOUT)
    return frozenset(line.partition("/")[0] for line in result.text.splitlines())


def note_fetched(job: Job, cluster: Cluster, pool: Pool, what: str) -> None:
    """Tells a launcher that ends unused what is here of a job that has ended: its `logs`, or `all`
    (see clusterctl/agent/idle.py). If it does not hear that, it runs until the deadline."""
    if not cluster.spec.cloud.idle:
        return
    launcher = cluster.launcher
    note = f"echo {what} $(grep -c ^running state) >fetched.new && mv fetched.new fetched"
    command = f"cd {shlex.quote(launcher.root)}/jobs/{job.id} && {note}"
    with suppress(ClusterctlError):
        pool.find_transport(launcher.name).run(command, timeout=SAVED_TIMEOUT)


def read_messages(job: Job, cluster: Cluster, pool: Pool) -> str:
    """What the launcher itself said (mpirun's stderr): the cause when no rank was started."""
    logs = " ".join(load_system(cluster.system).logs)
    command = f"find {logs} -size +0 -exec tail -n 30 {{}} + 2>/dev/null"
    result = _run_on_launcher(job, cluster, pool, ("/bin/sh", "-c", command))
    return direct.drop_carriage_returns(result.text).strip()


def read_remarks(job: Job, cluster: Cluster, pool: Pool) -> str:
    """What the launcher said about ranks that failed, less what everybody knows by then."""
    command = f"tail -c {REMARKS} {load_system(cluster.system).logs[0]} 2>/dev/null"
    return direct.drop_known_remarks(
        _run_on_launcher(job, cluster, pool, ("/bin/sh", "-c", command)).text
    )


def describe_survivors(job: Job) -> str:
    """`no processes of it found on 3 nodes`, or the nodes that have some, or did not answer."""
    if not job.survivors:
        return "the batch system ended it" if job.started else "it had not started"
    left = {name: count for name, count in job.survivors.items() if count}
    if not left:
        return f"no processes of it found on {count(len(job.survivors), 'node')}"
    return ", ".join(
        f"{name} did not answer" if number < 0 else f"{count(number, 'process')} left on {name}"
        for name, number in left.items()
    )


def _count_survivors(result: NodeResult) -> int:
    for line in result.text.splitlines():
        if line.startswith("survivors "):
            return int(line.split()[1])
    return -1


def _run_on_launcher(
    job: Job, cluster: Cluster, pool: Pool, argv: tuple[str, ...], deadline: Deadline = NEVER
) -> NodeResult:
    folder = locate_folder(job, cluster, cluster.launcher.name)
    command = f"cd {shlex.quote(folder)} && {shlex.join(argv)}"
    limit = min(ASK_TIMEOUT, deadline.left)
    return pool.find_transport(cluster.launcher.name).run(command, timeout=limit)
