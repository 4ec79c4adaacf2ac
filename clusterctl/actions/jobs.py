"""Verbs about jobs that exist: jobs, logs, cancel, fetch. They work after `down` as far as
what they need has been saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterctl.actions.common import (
    Connected,
    check_name,
    connect_all,
    connect_or_report,
    open_pool,
    require_ready,
)
from clusterctl.batch import verdict
from clusterctl.batch.system import list_nodes, list_rank_nodes, load_system
from clusterctl.core.clock import NEVER, Deadline
from clusterctl.core.job import IN_A_TERMINAL, Hang, Job, JobState
from clusterctl.core.model import Cluster, Phase, Reporter
from clusterctl.errors import (
    ClusterctlError,
    NodeUnreachable,
    RecordError,
    UsageError,
    describe_reason,
)
from clusterctl.jobs import control, records
from clusterctl.jobs import fetch as jobs_fetch
from clusterctl.jobs.records import Piece
from clusterctl.state.store import Store
from clusterctl.transport.pool import Pool

if TYPE_CHECKING:
    from clusterctl.jobs.follow import Follower


def list_jobs(store: Store, name: str | None, report: Reporter) -> tuple[Job, ...]:
    """The history, newest last. Jobs that may still run are asked after."""
    damage: list[str] = []
    found = store.list_jobs(damage)
    for line in damage:
        report(line)
    if name is not None:
        found = tuple(job for job in found if job.cluster == check_name(name))
        if not found:
            store.read_cluster(name)  # no jobs of a cluster that is not there: a mistyped name
    fresh: dict[int, Job] = {}
    for cluster in store.list_clusters():
        mine = [job for job in found if job.cluster_id == cluster.id and not job.state.ended]
        # Nobody but the clusterctl that hands a job in knows of it yet.
        going = [job for job in mine if store.is_handed_in(job.id)]
        if not going or cluster.phase is not Phase.READY:
            continue
        try:
            with open_pool(store, cluster) as pool:
                fresh |= refresh_records(store, going, cluster, pool, report)
        except ClusterctlError as error:
            report(f"jobs of cluster {cluster.name} are shown as last seen: {error.message}")
    return tuple(fresh.get(job.id, job) for job in found)


def refresh_records(
    store: Store,
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    report: Reporter = lambda line: None,
    deadline: Deadline = NEVER,
) -> dict[int, Job]:
    """These jobs of one cluster as they are now, by number, which are then on record."""
    asked = control.refresh_all(jobs, cluster, pool, report, deadline)
    for job, fresh in zip(jobs, asked, strict=True):
        if fresh != job:
            store.save_job(fresh)
    return {job.id: job for job in asked}


def choose_own(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Those that a person has started, and what runs still."""
    return tuple(job for job in jobs if not (job.purpose and job.state.ended))


def find_last_job(store: Store, name: str | None, *, open_first: bool = False) -> Job:
    """The one that a person has started last, on the cluster `name` if it is given. `open_first`:
    if that has ended, one of our own that still runs. Raises RecordError."""
    found = [job for job in store.list_jobs() if name in (None, job.cluster)]
    others = [job for job in found if job.purpose and not job.state.ended]
    found = [job for job in found if not job.purpose]
    if open_first and all(job.state.ended for job in found):
        found = others or found
    if not found:
        if name is not None:
            store.read_cluster(check_name(name))  # no jobs of a cluster that is not there: mistyped
        where = f" on cluster {name!r}" if name else ""
        raise RecordError(f"no jobs yet{where}", hint="`clusterctl run SCRIPT` starts one")
    return max(found, key=lambda job: job.id)


def find_job(store: Store, number: int, where: str | None) -> Job:
    """The job; where a cluster is named, it has to be that cluster's."""
    job = store.read_job(number)
    if where is not None and job.cluster != where:
        raise RecordError(
            f"job {number} ran on cluster {job.cluster!r}, not on {where!r}",
            hint="leave out --cluster: job numbers are unique",
        )
    return job


def find_cluster(store: Store, job: Job) -> Cluster | None:
    """The cluster the job ran on, if it still exists (not another one of the same name)."""
    return next((c for c in store.list_clusters() if c.id == job.cluster_id), None)


def make_lost_cluster_error(job: Job, hint: str) -> RecordError:
    return RecordError(f"the cluster of job {job.id} ({job.cluster}) is gone", hint=hint)


def require_cluster(store: Store, job: Job) -> Cluster:
    cluster = find_cluster(store, job)
    if cluster is None:
        folder = records.read_fetched(store.home, job).folder
        files = f"; its files were fetched to {folder}" if folder else ""
        raise make_lost_cluster_error(
            job, f"`clusterctl logs {job.id}` shows what was saved{files}"
        )
    return require_ready(cluster)


def read_logs(
    store: Store,
    number: int,
    where: str | None,
    report: Reporter,
    *,
    follow: bool,
    rank: int | None = None,
) -> Iterator[list[Piece]]:
    """The job's output: to its end with `follow`, else as far as it
    is. `rank` has to be one of the job's, and is not filtered for. `report` gets why one waits."""
    job = find_job(store, number, where)
    if rank is not None and rank not in job.processes:
        what, numbers = "point" if job.spec.is_sweep else "rank", job.processes
        raise UsageError(
            f"job {number} has no {what} {rank}",
            hint=f"its {what}s are {numbers[0]} to {numbers[-1]}",
        )
    folder = store.locate_job_folder(job.id)
    cluster = find_cluster(store, job)
    if cluster is None or records.is_complete(folder) or cluster.phase is not Phase.READY:
        if records.was_removed(folder):
            report(f"the output of job {job.id} is no longer kept: only its record is")
        _report_no_start(job, report)
        yield from records.read_stored(folder)
        return
    with open_pool(store, cluster) as pool:
        job = require_handed_in(store, job, cluster, pool)
        _report_no_start(job, report)
        unstarted = job.state is JobState.CANCELLED and job.started is None
        if not (unstarted or control.was_never_staged(job)):
            yield from _read(Connected(store, cluster, pool, report), job, follow)


def find_dead(store: Store, cluster: Cluster) -> Mapping[str, str]:
    """The nodes whose machines do not run, and why, by the record and by the provider; none where
    it cannot know. May take long. Raises ProviderError, and RecordError for a damaged record."""
    from clusterctl.machines import providers  # while its nodes answer, nobody asks

    record = store.read_cluster(cluster.name) if cluster.name in store.list_names() else None
    if record is None or record.id != cluster.id or record.phase is Phase.DELETING:
        why = f"cluster {cluster.name} was taken down"
        return {node.name: why for node in cluster.nodes}
    provider = providers.load_provider(cluster.spec.provider)
    return provider.list_dead(cluster, store.locate_folder(cluster.name))


@contextmanager
def follow_job(at: Connected, job: Job, *, keeps: bool = True) -> Iterator[Follower]:
    """What reads the job's output; at the end, the job is on record as it was seen last. A Ctrl-C
    inside is raised where it does no harm. `keeps`: what the job makes is copied here meanwhile, as
    far as it was asked for."""
    from clusterctl.jobs.follow import Follower, Interrupts  # most commands follow no job

    look = partial(find_dead, at.store, at.cluster)
    folder = at.store.locate_job_folder(job.id)
    with (
        Interrupts() as interrupts,
        Follower(job, at.cluster, at.pool, folder, interrupts, at.report, look) as follower,
        jobs_fetch.Keeper(job, at.cluster, at.pool, folder) if keeps else nullcontext() as keeper,
    ):
        try:
            yield follower
        finally:
            at.store.save_job(follower.job)
        if keeper and (synced := keeper.finish(follower.job)):
            at.report(synced)


def _read(at: Connected, job: Job, to_end: bool) -> Iterator[list[Piece]]:
    store, cluster = at.store, at.cluster
    try:
        with follow_job(at, job, keeps=to_end) as follower:
            yield from follower.read_batches(until_ended=to_end)
            if follower.lost:
                where = [name for name in follower.lost if name in list_rank_nodes(job, cluster)]
                raise NodeUnreachable(
                    f"the output of job {job.id} on {', '.join(where)} is incomplete"
                    if where
                    else f"{cluster.launcher.name} does not answer: the output of job {job.id} may"
                    " be incomplete",
                    hint=f"`clusterctl logs {job.id}` shows the rest once every node answers",
                    transient=True,
                )
    except NodeUnreachable as error:
        if (now := find_cluster(store, job)) is None or now.phase is Phase.DELETING:
            raise RecordError(
                f"cluster {job.cluster} was taken down, and job {job.id} with it",
                hint=f"`clusterctl logs {job.id}` shows what was saved",
            ) from error
        raise


def require_handed_in(store: Store, job: Job, cluster: Cluster, pool: Pool) -> Job:
    """The job; where its record says nothing of the queue's yet, as the login node knows it.
    RecordError while another clusterctl is still handing it in."""
    if not store.is_handed_in(job.id):
        if find_job(store, job.id, None).reason == IN_A_TERMINAL:
            raise RecordError(
                f"job {job.id} is open in a terminal, which ends it",
                hint="leave its shell or its program there, or press Ctrl-C while it waits",
            )
        raise RecordError(
            f"job {job.id} is still being submitted by another clusterctl",
            hint="try again when that has finished, or stop it with Ctrl-C",
            transient=True,
        )
    if job.state is JobState.QUEUED and not job.native_id:
        job = control.refresh(job, cluster, pool)
        store.save_job(job)
    return job


def _report_no_start(job: Job, report: Reporter) -> None:
    """Why there is no output of a job that ended before any rank ran."""
    if job.state.ended and job.started is None:
        report(f"job {job.id} never started: {job.reason or job.state.value}")


def describe_hang(job: Job, hang: Hang) -> str:
    """Where the ranks of an attempt stood that was ended because they printed nothing."""
    where = verdict.describe_hang(job, hang)
    more = "" if hang.attempt != job.attempt else f"; `clusterctl doctor {job.id}` shows the stacks"
    return f"attempt {hang.attempt} {where}{more}"


_KNOWN_ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMEOUT)


def cancel(store: Store, number: int, where: str | None, report: Reporter) -> Job:
    """Ends the job; on one that has ended, makes sure that nothing of it is left."""
    job = find_job(store, number, where)
    there = find_cluster(store, job)
    # A queue that has said how a job ended has nothing left of it, and may be silent by now.
    over = there and not load_system(there.system).places_ranks and job.state in _KNOWN_ENDS
    if over or (job.state.ended and there is None):
        return job
    cluster = require_cluster(store, job)
    with open_pool(store, cluster) as pool:
        for name, why in connect_or_report(pool, list_nodes(job, cluster), report).items():
            report(f"{name} does not answer: {why}")
        job = require_handed_in(store, job, cluster, pool)
        if control.was_never_staged(job):
            return job
        job = control.cancel(job, cluster, pool, report)
    store.save_job(job)
    return job


GONE = "no longer has the job's folder: it was removed, or the machine was made anew"


class Fetched(Struct, frozen=True):
    """What was brought, below `folder`/<node>/."""

    job: int
    folder: Path
    brought: jobs_fetch.Brought
    missing: Mapping[str, str]
    """Nodes that did not answer, and why: what the job made there is still there."""
    failed: tuple[ClusterctlError, ...] = ()
    """One for each of the other nodes that not everything could be brought from."""
    gone: tuple[str, ...] = ()
    """Nodes that have nothing of the job any more, and of which there are no copies."""

    def describe(self) -> Iterator[str]:
        """What a person has to know of files that were brought, or were not."""
        brought, folder = self.brought, self.folder
        copied = {output.node for output in brought.outputs if output.copied}
        for name, why in self.missing.items():
            what = "later files were not copied" if name in copied else "its files were not copied"
            yield f"{name} does not answer; {what}: {why}"
        for name in self.gone:
            yield f"{name} {GONE}"
        yield from brought.left_out
        for place in brought.kept:
            yield (
                f"kept {folder}/{place}, which has changed since it was"
                " fetched; to get the node's file, move it away and fetch again"
            )
        for place in brought.core_dumps:
            yield (
                f"warning: {folder}/{place} is a core dump: it contains the program's memory,"
                " including its secrets"
            )

    def make_missing_error(self, nodes: Sequence[str]) -> NodeUnreachable:
        where = f"{', '.join(nodes)}, which did not answer: {self.missing[nodes[0]]}"
        return NodeUnreachable(
            f"outputs of job {self.job} are on {where}",
            hint="repeat the command when it does; `clusterctl down --discard` removes the cluster"
            " without them",
            transient=True,
        )

    def require_all(self) -> None:
        """Raises the first error of a node that not everything could be brought from."""
        for error in self.failed:
            raise error
        if self.missing:
            raise self.make_missing_error(list(self.missing))
        for node in self.gone:
            raise RecordError(f"job {self.job}: {node} {GONE}", hint="the other files are here")


def fetch(
    store: Store, number: int, where: str | None, target: Path | None, report: Reporter
) -> Fetched:
    """Brings the job's outputs from all nodes that answer. NodeUnreachable if none does."""
    job = find_job(store, number, where)
    cluster = require_cluster(store, job)
    with connect_all(store, cluster, report, list_nodes(job, cluster)) as at:
        got = fetch_from(at, job, target)
        if len(got.missing) == len(list_rank_nodes(job, cluster)) and not got.brought.outputs:
            raise NodeUnreachable(
                f"no node with outputs of job {number} answers: {'; '.join(at.away.values())}",
                hint="check the nodes with `clusterctl status --live`;"
                " `up` or `attach` repairs them",
                transient=True,
            )
        return got


def fetch_from(at: Connected, job: Job, target: Path | None = None) -> Fetched:
    """Brings the job's outputs over these connections, by default into `job-N` here; those of nodes
    that are away, or were made anew, as far as the launcher has copies: all of those that have
    ended unused."""
    store, cluster, pool, away = at.store, at.cluster, at.pool, at.away
    folder = target or Path(f"job-{job.id}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="choose a folder with --to")
    # First: what a job makes between the two is not brought.
    asks = cluster.launcher.name not in away
    job = control.refresh(job, cluster, pool) if asks else job
    absent = [name for name in away if name in list_rank_nodes(job, cluster)]
    saved = control.find_saved(job, cluster, pool) if asks and absent else frozenset()
    missing = {name: away[name] for name in absent if name not in saved}
    found = jobs_fetch.find_outputs(job, cluster.drop_nodes(absent), pool)
    wanted, failed = found.outputs, found.failed
    gone = found.lost if job.started else ()
    if asks:
        try:
            copied = jobs_fetch.find_mirror(job, cluster, pool, gone)
            gone = tuple(name for name in gone if name not in copied)
            wanted += jobs_fetch.find_copies(job, cluster, pool, (*absent, *found.lost), at.report)
        except NodeUnreachable as error:
            failed += (error,)
    brought = jobs_fetch.Brought()
    if wanted:
        brought = jobs_fetch.fetch(job, cluster, pool, wanted, folder, store.home, at.report)
    places = (output.place for output in brought.outputs)
    nodes = load_system(cluster.system).locate(job, cluster)
    records.note(store.home, job, nodes, folder, places)
    failed += brought.failed
    if job.state.ended and not brought.kept and not missing and not failed:
        job = replace(job, fetched=True)
    store.save_job(job)
    if job.fetched and asks and cluster.spec.cloud.idle:
        # Without a reason to stay, the launcher ends unused.
        save_logs(at, [job])
        if records.is_complete(store.locate_job_folder(job.id)):
            control.note_fetched(job, cluster, pool, "all")
    brought = replace(brought, left_out=(*found.left_out, *brought.left_out))
    return Fetched(job.id, folder, brought, missing, failed, gone)


def list_numbers(jobs: Sequence[Job]) -> str:
    return ", ".join(str(job.id) for job in jobs)


# -------------------------------------------------------------------------------------------------
# Brings the rest of jobs' output here before their machines go.


SAVE_LIMIT = 60.0
"""Seconds for saving logs."""
SLICE = 2.0
"""Seconds that the log of a job gets at least, before it is the next one's turn."""


def save_logs(at: Connected, jobs: Sequence[Job], limit: float = SAVE_LIMIT) -> None:
    """Brings the rest of these jobs' output into the state home, as far as `limit` seconds allow
    for all of them; what is not saved is named. Of nodes that are away, the launcher's copies
    count."""
    deadline = Deadline(limit)
    late = [job for job in jobs if not records.is_complete(at.store.locate_job_folder(job.id))]
    # In turns: a log that takes all the time must not cost the others theirs.
    while late and not deadline.passed:
        turn, late = late, []
        for index, job in enumerate(turn):
            share = max(SLICE, deadline.left / (len(turn) - index))
            gone = set(at.away) - control.find_saved(job, at.cluster, at.pool)
            rest = replace(at, cluster=at.cluster.drop_nodes(gone))
            if not _save_log(rest, job, min(share, deadline.left)):
                late.append(job)
    if late:
        at.report(
            f"the logs of job {list_numbers(late)} are incomplete: {limit:.0f} s were not enough"
        )


def _save_log(at: Connected, job: Job, limit: float) -> bool:
    """Whether more time would bring no more of it."""
    from clusterctl.jobs.follow import Follower, Interrupts

    folder, launcher = at.store.locate_job_folder(job.id), at.cluster.launcher.name
    try:
        with (
            Interrupts() as interrupts,
            Follower(
                at.store.read_job(job.id), at.cluster, at.pool, folder, interrupts
            ) as follower,
        ):
            for _ in follower.read_batches(until_ended=False, replay=False, limit=limit):
                pass
            if launcher in follower.lost:
                at.report(f"the logs of job {job.id} may be incomplete: {launcher} does not answer")
            return not follower.cut_short
    except (ClusterctlError, OSError) as error:
        at.report(f"the logs of job {job.id} could not be saved: {describe_reason(error)}")
        return True


describe_survivors = control.describe_survivors
