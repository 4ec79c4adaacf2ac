"""`run` where nodes are lost: the job goes on as a new one, with the files that were saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial

from clusterctl.actions.common import Connected, open_pool
from clusterctl.actions.jobs import follow_job
from clusterctl.actions.run import OnJob, OnOutput, find_job
from clusterctl.batch.system import list_rank_nodes
from clusterctl.batch.verdict import (
    has_never_started,
    has_restarted,
    is_cut_off,
    is_reclaimed,
    note_restart,
)
from clusterctl.core.clock import Deadline
from clusterctl.core.job import Job, JobState
from clusterctl.core.model import Cluster, ClusterSpec, NodeGroup, Reporter
from clusterctl.core.text import count
from clusterctl.errors import (
    ClusterctlError,
    LaunchError,
    NodeUnreachable,
    RecordError,
    UsageError,
)
from clusterctl.state.store import Store

REPLACE, SHRINK, FAIL = "replace", "shrink", "fail"
MOST = 5
"""Times that one `run` continues after a loss: more losses than that have a cause."""
ANSWER_TIMEOUT = 10.0
"""Seconds that a node has to answer after a failure that may be due to it."""
REST_LIMIT = 60.0
"""Seconds that reading what is left of a job's output may take before it continues."""
LOCK_LIMIT = 1200.0
"""Seconds for which another clusterctl may keep the cluster locked: `up` takes minutes on EC2."""
END_LIMIT, PAUSE = 240.0, 5.0
"""Seconds that a machine may take to end, once it has begun to (a spot instance has two minutes
after its notice); seconds between two looks."""


def check_node_loss(wanted: str, cluster: Cluster) -> None:
    """Raises UsageError where clusterctl cannot make nodes again."""
    if wanted == REPLACE and cluster.attached:
        raise UsageError(
            f"--on-node-loss replace works only with machines that clusterctl creates, and those of"
            f" cluster {cluster.name!r} were attached",
            hint=f"after a loss: `{cluster.repair}`, then `clusterctl rerun JOB --resume`;"
            " or use --on-node-loss shrink",
        )


def is_due(store: Store, job: Job) -> bool:
    """Whether a job may have to continue after a loss, and nobody has done that yet: its clusterctl
    was away. One that did not say so continues only on the cluster that it had."""
    if job.state is not JobState.FAILED or job.purpose or job.spec.on_node_loss == FAIL:
        return False
    if not job.spec.on_node_loss:
        clusters = store.list_clusters()
        if not any(c.id == job.cluster_id and _find_wish(job, c) == REPLACE for c in clusters):
            return False
    return all(other.rerun_of != job.id for other in store.list_jobs())


def run_again(
    store: Store,
    number: int,
    first: Callable[[OnJob], Job],
    secrets: Mapping[str, str],
    *,
    on_start: OnJob,
    on_output: OnOutput,
    report: Reporter,
) -> Job:
    """Runs job `number` by `first`, as `run.run` does. If it loses nodes, for good or for a
    while, it is continued as its --on-node-loss says, as a new job; returns the last one."""
    latest = number

    def note(started: Job) -> None:
        nonlocal latest
        latest = started.id
        on_start(started)

    def proceed(job: Job, without: tuple[str, ...]) -> Job:
        from clusterctl.actions.rerun import Changes, NothingSaved, rerun  # not for every `run`

        if job.spec.resume_args:
            report(f"the program gets {job.spec.resume_args}, if there is a snapshot")
        elif not job.spec.program.bundled:
            report("the program gets the same arguments, and its files: it has to look for them")
        sweep = job.spec.is_sweep  # takes as many slots as there are
        ranks = _count_left(job, without) if without and not sweep else 0
        again = partial(
            rerun,
            store,
            job.id,
            Changes(secrets=secrets, files=job.spec.env_files, ranks=ranks, failed=sweep),
            where=None,
            without=without,
            on_start=note,
            on_output=on_output,
            report=report,
            detach=False,
        )
        try:
            return again(resume=True)
        except NothingSaved as error:
            report(f"{error.message}: starting from the beginning")
            return again(resume=False)

    step = partial(first, note)
    with ExitStack() as held:
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
            back = [place.node for place in job.placement if is_cut_off(job, place.node)]
            cluster = store.read_cluster(job.cluster) if lost or back else None
            how = _choose(job, cluster, lost) if cluster and left else FAIL
            advice = ""
            if how != FAIL and not held.enter_context(store.claim_continuing(job.id)):
                how = FAIL  # the job is not to run twice
                report(f"job {job.id} is continued, as a new job, by another clusterctl")
                advice = "`clusterctl jobs` shows it"
            elif how == FAIL and lost and cluster:
                advice = _describe_repair(job, cluster)
            if how == FAIL and error:
                error.hint = advice or error.hint
                raise error
            if how == FAIL:
                if advice:
                    report(advice)
                return job
            if not lost:
                where = " from its last snapshot" if job.spec.resume_args else ""
                are = "is" if len(back) == 1 else "are"
                report(f"{', '.join(back)} {are} back: restarting job {job.id}{where}")
            elif how == REPLACE:
                _replace(store, job, lost, report)
            else:
                ranks = count(_count_left(job, lost), "rank")
                report(
                    f"{_describe(job, lost)}: continuing job {job.id} with {ranks} on the others"
                )
            if not lost or how == REPLACE:
                _show_rest(store, job, on_output)
            step = partial(proceed, job, lost if how == SHRINK else ())
    raise AssertionError("the last step returns or raises")


def _replace(store: Store, job: Job, lost: tuple[str, ...], report: Reporter) -> None:
    """Starts the nodes again. --on-node-loss replace consents to machines that cost money."""
    from clusterctl.actions.up import bring_up  # not for every `run`
    from clusterctl.machines import providers

    reclaimed = [name for name in lost if is_reclaimed(job, name)]
    there = all(has_restarted(job, name) for name in lost)
    them = "it" if len(lost) == 1 else "them"
    how = f"setting {them} up" if there else f"starting {them}"
    report(f"{_describe(job, lost)}: {how} again, then continuing job {job.id}")
    spec = ClusterSpec(name=job.cluster, provider="", groups=(NodeGroup(count=0),))
    cluster = store.read_cluster(job.cluster)
    ended, limit = Deadline(END_LIMIT), Deadline(END_LIMIT + LOCK_LIMIT)

    def find_ending() -> str:
        """The machines that are ending, or have to: `up` would keep them."""
        cloud = providers.load_cloud(cluster.spec.provider)
        ending = cloud.list_ending(cluster, store.locate_folder(cluster.name), reclaimed)
        going = ", ".join(name for name in lost if name in ending)
        return (
            "" if not going or ended.passed else f"waiting until the machine of {going} has ended"
        )

    def repair() -> str:
        """Another clusterctl may be repairing the cluster for a job of its own."""
        try:
            bring_up(store, spec, report, lambda question: job.spec.on_node_loss == REPLACE)
        except RecordError as error:
            if not error.transient or limit.passed:
                raise
            return f"{error.message}: waiting until it has finished"
        return ""

    try:
        if cluster.charges:
            _wait_while(find_ending, report)
        _wait_while(repair, report)
    except ClusterctlError:
        report(_describe_repair(job, cluster))
        raise
    found = _list_restarted(cluster, store.read_cluster(job.cluster), lost)
    if new := [name for name in found if not has_restarted(job, name)]:
        report(f"{', '.join(new)} restarted")
        store.save_job(note_restart(job, new))


def _show_rest(store: Store, job: Job, on_output: OnOutput) -> None:
    """What nodes that are back still have of the output of a job, as far as nobody has read it."""
    cluster = store.read_cluster(job.cluster)
    job = store.read_job(job.id)
    with open_pool(store, cluster) as pool, suppress(NodeUnreachable):
        at = Connected(store, cluster, pool, lambda text: None)
        with follow_job(at, job, keeps=False) as follower:
            for pieces in follower.read_batches(until_ended=False, replay=False, limit=REST_LIMIT):
                on_output(pieces)


def _wait_while(find_reason: Callable[[], str], report: Reporter) -> None:
    """Until there is no reason to wait any more; the first one is said."""
    told = False
    while reason := find_reason():
        if not told:
            report(reason)
        told = True
        time.sleep(PAUSE)


def _list_restarted(before: Cluster, after: Cluster, lost: Collection[str]) -> list[str]:
    """Those that are still the same machines, of a cloud: nobody else has started them again."""
    return [
        name
        for name in lost
        if (old := before.node(name)).machine
        and old.machine == (new := after.node(name)).machine
        and old.facts.boot_id != new.facts.boot_id
    ]


def _describe(job: Job, lost: Collection[str]) -> str:
    """What has become of these nodes."""
    if reclaimed := [name for name in lost if is_reclaimed(job, name)]:
        return f"EC2 reclaimed {', '.join(reclaimed)}"
    if all(has_restarted(job, name) for name in lost):
        return f"{', '.join(lost)} restarted"
    return f"lost {', '.join(lost)}"


def _describe_repair(job: Job, cluster: Cluster) -> str:
    """How to continue by hand."""
    return f"`{cluster.repair}`, then `clusterctl rerun {job.id} --resume` continues"


def _list_lost(store: Store, job: Job) -> tuple[str, ...]:
    """The nodes that had ranks of a job that has failed, and that did not answer at its end, had
    restarted, or whose end EC2 had announced; nor now, where ranks ended without an exit code: a
    node may just have been going then."""
    if job.state is not JobState.FAILED:
        return ()
    lost = [
        place.node
        for place in job.placement
        if job.survivors.get(place.node) == -1
        or is_reclaimed(job, place.node)
        or has_restarted(job, place.node)
    ]
    if lost or job.failure or has_never_started(job):
        return tuple(lost)
    cluster = store.read_cluster(job.cluster)
    with open_pool(store, cluster) as pool:
        results = pool.connect(list_rank_nodes(job, cluster), timeout=ANSWER_TIMEOUT)
    return tuple(result.node for result in results if not result.ok)


def _find_wish(job: Job, cluster: Cluster) -> str:
    # The points of a sweep that a lost node had are run by others, once: no job has to do it again.
    kept = cluster.attached or cluster.charges or job.spec.is_sweep
    return job.spec.on_node_loss or (FAIL if kept else REPLACE)


def _choose(job: Job, cluster: Cluster, lost: tuple[str, ...]) -> str:
    wanted = _find_wish(job, cluster)
    possible = not cluster.attached if wanted == REPLACE else _count_left(job, lost) > 0
    return wanted if possible else FAIL


def _count_left(job: Job, lost: tuple[str, ...]) -> int:
    return sum(place.count for place in job.placement if place.node not in lost)
