"""`run` where nodes are lost: the job goes on as a new one, with the files that were saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from clusterctl import providers
from clusterctl.actions import open_pool
from clusterctl.actions.dead_nodes import find_dead
from clusterctl.actions.rerun import Changes, rerun
from clusterctl.actions.resume import NothingSaved
from clusterctl.actions.run import OnJob, OnOutput, find_job
from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable, UsageError
from clusterctl.job_model import Job, JobState
from clusterctl.jobs.start import list_rank_nodes
from clusterctl.model import Cluster, ClusterSpec, NodeGroup, Reporter, count
from clusterctl.schedulers.verdict import is_reclaimed, never_started
from clusterctl.state import Store
from clusterctl.timeouts import Deadline

REPLACE, SHRINK, FAIL = "replace", "shrink", "fail"
MOST = 5
"""Times that one `run` continues after a loss: more losses than that have a cause."""
ANSWER_TIMEOUT = 10.0
"""Seconds that a node has to answer after a failure that may be due to it."""
END_LIMIT, PAUSE = 240.0, 5.0
"""Seconds that a machine may take to end, once it has begun to (a spot instance has two minutes
after its notice); seconds between two looks."""


def check(wanted: str, cluster: Cluster) -> None:
    """Raises UsageError where clusterctl cannot make nodes again."""
    if wanted == REPLACE and cluster.attached:
        raise UsageError(
            f"--on-node-loss replace works only with machines that clusterctl creates, and those of"
            f" cluster {cluster.name!r} were attached",
            hint=f"after a loss: `{cluster.repair}`, then `clusterctl rerun JOB --resume`;"
            " or use --on-node-loss shrink",
        )


def is_due(store: Store, job: Job) -> bool:
    """Whether a job that asked for it may have to continue after a loss, and nobody has done that
    yet: its clusterctl was away."""
    return (
        job.spec.on_node_loss in (REPLACE, SHRINK)
        and job.state is JobState.FAILED
        and all(other.rerun_of != job.id for other in store.jobs())
    )


def run(
    store: Store,
    number: int,
    first: Callable[[OnJob], Job],
    secrets: Mapping[str, str],
    *,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
) -> Job:
    """Runs job `number` by `first`, as `run.run` does. If it loses nodes, it is continued as its
    --on-node-loss says, as a new job; returns the last one."""
    latest = number

    def note(started: Job) -> None:
        nonlocal latest
        latest = started.id
        on_start(started)

    def again(job: Job, without: tuple[str, ...], resume: bool = True) -> Job:
        return rerun(
            store,
            job.id,
            _changes(job, without, secrets),
            resume=resume,
            where=None,
            without=without,
            on_start=note,
            on_output=on_output,
            report=report,
            detach=False,
            find_dead=find_dead,
        )

    def proceed(job: Job, without: tuple[str, ...]) -> Job:
        try:
            return again(job, without)
        except NothingSaved as error:
            report(f"{error.message}: starting from the beginning")
            return again(job, without, resume=False)

    step = partial(first, note)
    for left in reversed(range(MOST + 1)):
        error: NodeUnreachable | LaunchError | None = None
        try:
            job = step()
        except (NodeUnreachable, LaunchError) as caught:
            found = find_job(store, latest)
            if found is None:
                raise
            error, job = caught, found
        lost = _list_lost(store, job)
        how = _choose(job, store.cluster(job.cluster), lost) if lost and left else FAIL
        if how == FAIL:
            if lost:
                _advise(job, store.cluster(job.cluster), error, report)
            if error:
                raise error
            return job
        if how == REPLACE:
            _replace(store, job, lost, report)
        else:
            ranks = count(_left(job, lost), "rank")
            report(f"lost {', '.join(lost)}: continuing job {job.id} with {ranks} on the others")
        step = partial(proceed, job, lost if how == SHRINK else ())
    raise AssertionError("the last step returns or raises")


def _replace(store: Store, job: Job, lost: tuple[str, ...], report: Reporter) -> None:
    """Starts the nodes again. --on-node-loss replace consents to machines that cost money."""
    from clusterctl.actions.up import up  # not for every `run`

    reclaimed = [name for name in lost if is_reclaimed(job, name)]
    why = f"EC2 reclaimed {', '.join(reclaimed)}" if reclaimed else f"lost {', '.join(lost)}"
    report(f"{why}: starting it again, then continuing job {job.id}")
    spec = ClusterSpec(name=job.cluster, provider="", groups=(NodeGroup(count=0),))
    cluster = store.cluster(job.cluster)
    try:
        if cluster.charges:
            _await_end(store, cluster, lost, reclaimed, report)
        up(store, spec, report, consent=lambda question: job.spec.on_node_loss == REPLACE)
    except ClusterctlError:
        _advise(job, cluster, None, report)
        raise


def _await_end(
    store: Store,
    cluster: Cluster,
    lost: Collection[str],
    reclaimed: Collection[str],
    report: Reporter,
) -> None:
    """Waits until machines that are ending, or have to, are gone: `up` would keep them."""
    billing, folder = providers.load_billing(cluster), store.folder(cluster.name)
    limit, told = Deadline(END_LIMIT), False
    while not limit.passed:
        ending = billing.list_ending(cluster, folder, reclaimed)
        going = [name for name in lost if name in ending]
        if not going:
            return
        if not told:
            report(f"waiting until the machine of {', '.join(going)} has ended")
            told = True
        time.sleep(PAUSE)


def _advise(job: Job, cluster: Cluster, error: ClusterctlError | None, report: Reporter) -> None:
    """Says how to continue by hand."""
    how = f"`{cluster.repair}`, then `clusterctl rerun {job.id} --resume` continues"
    if error:
        error.hint = how
    else:
        report(how)


def _list_lost(store: Store, job: Job) -> tuple[str, ...]:
    """The nodes that had ranks of a job that has failed, and that did not answer at its end, or
    whose end EC2 had announced; nor now, where ranks ended without an exit code: a node may just
    have been going then."""
    if job.state is not JobState.FAILED or never_started(job):
        return ()
    lost = [
        place.node
        for place in job.placement
        if job.survivors.get(place.node) == -1 or is_reclaimed(job, place.node)
    ]
    if lost or job.failure:
        return tuple(lost)
    cluster = store.cluster(job.cluster)
    with open_pool(store, cluster) as pool:
        results = pool.connect(list_rank_nodes(job, cluster), timeout=ANSWER_TIMEOUT)
    return tuple(result.node for result in results if not result.ok)


def _choose(job: Job, cluster: Cluster, lost: tuple[str, ...]) -> str:
    # The points of a sweep that a lost node had are run by others, once: no job has to do it again.
    kept = cluster.attached or cluster.charges or job.spec.is_sweep
    usual = FAIL if kept else REPLACE
    wanted = job.spec.on_node_loss or usual
    possible = not cluster.attached if wanted == REPLACE else _left(job, lost) > 0
    return wanted if possible else FAIL


def _changes(job: Job, without: tuple[str, ...], secrets: Mapping[str, str]) -> Changes:
    """What is given anew when the job continues without these nodes."""
    sweep = job.spec.is_sweep  # takes as many slots as there are
    ranks = _left(job, without) if without and not sweep else 0
    return Changes(secrets=secrets, files=job.spec.env_files, ranks=ranks, failed=sweep)


def _left(job: Job, lost: tuple[str, ...]) -> int:
    return sum(place.count for place in job.placement if place.node not in lost)
