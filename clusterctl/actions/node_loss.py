"""`run` where nodes are lost: the job goes on as a new one, with the files that were saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from clusterctl.actions import Tell, open_pool
from clusterctl.actions.jobs import Changes, rerun
from clusterctl.actions.resume import NothingSaved
from clusterctl.actions.run import OnJob, OnOutput, find_job
from clusterctl.errors import ClusterctlError, LaunchError, NodeUnreachable, UsageError
from clusterctl.job_model import Job, JobState
from clusterctl.jobs.start import list_rank_nodes
from clusterctl.model import Cluster, ClusterSpec, NodeGroup, count
from clusterctl.schedulers.verdict import never_started
from clusterctl.state import Store

REPLACE, SHRINK, FAIL = "replace", "shrink", "fail"
MOST = 5
"""Times that one `run` continues after a loss: more losses than that have a cause."""
ANSWER_TIMEOUT = 10.0
"""Seconds that a node has to answer after a failure that may be due to it."""


def check(wanted: str, cluster: Cluster) -> None:
    """Raises UsageError where nodes cannot be made again without asking anybody."""
    if wanted == REPLACE and not _is_replaceable(cluster):
        raise UsageError(
            f"--on-node-loss replace works only with local and Docker clusters, and cluster"
            f" {cluster.name!r} is {cluster.spec.provider}",
            hint=f"after a loss: `{cluster.repair}`, then `clusterctl rerun JOB --resume`;"
            " or use --on-node-loss shrink",
        )


def _is_replaceable(cluster: Cluster) -> bool:
    return not (cluster.attached or cluster.charges)


def run(
    store: Store,
    number: int,
    first: Callable[[OnJob], Job],
    secrets: Mapping[str, str],
    *,
    on_start: OnJob,
    on_output: OnOutput,
    tell: Tell,
) -> Job:
    """Runs job `number` by `first`, as `run.run` does. If it loses nodes, it is continued as its
    --on-node-loss says, as a new job; returns the last one."""
    latest = number

    def note(started: Job) -> None:
        nonlocal latest
        latest = started.id
        on_start(started)

    def again(job: Job, without: tuple[str, ...], resume: bool = True) -> Job:
        ranks = _left(job, without) if without else 0
        changes = Changes(secrets=secrets, files=job.spec.env_files, ranks=ranks)
        return rerun(
            store,
            job.id,
            changes,
            resume=resume,
            where=None,
            without=without,
            on_start=note,
            on_output=on_output,
            tell=tell,
            detach=False,
        )

    def proceed(job: Job, without: tuple[str, ...]) -> Job:
        try:
            return again(job, without)
        except NothingSaved as error:
            tell(f"{error.message}: starting from the beginning")
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
                _advise(job, store.cluster(job.cluster), error, tell)
            if error:
                raise error
            return job
        if how == REPLACE:
            _replace(store, job, lost, tell)
        else:
            ranks = count(_left(job, lost), "rank")
            tell(f"lost {', '.join(lost)}: continuing job {job.id} with {ranks} on the others")
        step = partial(proceed, job, lost if how == SHRINK else ())
    raise AssertionError("the last step returns or raises")


def _replace(store: Store, job: Job, lost: tuple[str, ...], tell: Tell) -> None:
    from clusterctl.actions.up import up  # not for every `run`

    tell(f"lost {', '.join(lost)}: starting it again, then continuing job {job.id}")
    spec = ClusterSpec(name=job.cluster, provider="", groups=(NodeGroup(count=0),))
    up(store, spec, tell, consent=lambda question: False)


def _advise(job: Job, cluster: Cluster, error: ClusterctlError | None, tell: Tell) -> None:
    """Says how to continue by hand."""
    how = f"`{cluster.repair}`, then `clusterctl rerun {job.id} --resume` continues"
    if error:
        error.hint = how
    else:
        tell(how)


def _list_lost(store: Store, job: Job) -> tuple[str, ...]:
    """The nodes that had ranks of a job that has failed, and that did not answer at its end; nor
    now, where ranks ended without an exit code: a node may just have been going then."""
    if job.state is not JobState.FAILED or never_started(job):
        return ()
    lost = [place.node for place in job.placement if job.survivors.get(place.node) == -1]
    if lost or job.failure:
        return tuple(lost)
    cluster = store.cluster(job.cluster)
    with open_pool(store, cluster) as pool:
        results = pool.connect(list_rank_nodes(job, cluster), timeout=ANSWER_TIMEOUT)
    return tuple(result.node for result in results if not result.ok)


def _choose(job: Job, cluster: Cluster, lost: tuple[str, ...]) -> str:
    wanted = job.spec.on_node_loss or REPLACE
    possible = _is_replaceable(cluster) if wanted == REPLACE else _left(job, lost) > 0
    return wanted if possible else FAIL


def _left(job: Job, lost: tuple[str, ...]) -> int:
    return sum(place.count for place in job.placement if place.node not in lost)
