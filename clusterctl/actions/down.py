"""`down`: saves what is worth keeping, removes everything, and proves that nothing is left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl import bootstrap, providers
from clusterctl.actions import Tell, check_name, connected, key_mark, silent
from clusterctl.errors import ClusterctlError, LeftoverError, RecordError, UsageError, reason
from clusterctl.insight import cost
from clusterctl.jobs import control, outputs
from clusterctl.jobs.follow import Follower, complete
from clusterctl.jobs.interrupts import Interrupts
from clusterctl.jobs.stage import human
from clusterctl.model import (
    Charge,
    Cluster,
    ClusterSpec,
    Job,
    JobState,
    NodeResult,
    Phase,
    Role,
    clock,
)
from clusterctl.providers import billing
from clusterctl.state import ClusterLock, Store
from clusterctl.transport.fold import fold, ranges
from clusterctl.transport.pool import Pool

SAVE_LIMIT = 60.0
"""Seconds that looking for outputs, and then saving logs, may take before the machines go
regardless."""

NAMED = 5
"""Jobs that are named one by one."""

CLEAN_LIMIT = 60.0

_ACT = {"down": "take the cluster down", "detach": "remove our files from its machines"}
"""What a verb does, in its questions."""

Ask = Callable[[str], bool]
"""Asks a yes-or-no question; always yes where there is nobody to ask."""


@dataclass(frozen=True, slots=True)
class Down:
    """What was taken down. `hours` is how long the cluster lived; 0, like the number of nodes,
    where its record was lost."""

    name: str
    nodes: int
    hours: float
    jobs_cancelled: tuple[int, ...]
    unfetched: tuple[tuple[int, int], ...]
    """Jobs with outputs that were never fetched, and how many bytes they were."""
    receipt: tuple[cost.Line, ...] = ()
    dollars: float = 0.0
    provider: str = ""


def down(
    store: Store, name: str, tell: Tell, ask: Ask, *, force: bool = False, verb: str = "down"
) -> Down | None:
    """None when there is nothing of that name, or the person said no. `verb` is `detach` for
    machines that are not ours: there only what we have put on them goes."""
    check_name(name)
    with ClusterLock(store.home, name, verb, tell):
        try:
            cluster = store.cluster(name)
        except RecordError as error:
            return _without_record(store, name, error, tell, ask)
        right = "detach" if cluster.spec.provider in providers.ATTACHED else "down"
        if verb != right:
            how = "was attached" if right == "detach" else "was made by clusterctl"
            raise UsageError(f"cluster {name!r} {how}", hint=f"clusterctl {right} {name}")
        if cluster.charges:
            _allowed(store, cluster, tell)
        cancelled: tuple[int, ...] = ()
        unfetched: tuple[tuple[int, int], ...] = ()
        if cluster.nodes and cluster.phase is not Phase.DELETING and not force:
            saved = _save(store, cluster, tell, ask, _ACT[verb])
            if saved is None:
                return None
            cancelled, unfetched = saved
        elif right == "detach":
            cancelled = _end(store, cluster, tell)
        cluster = finish_down(store, cluster, tell, force=force)
    now = time.time()
    return Down(
        name,
        len(cluster.nodes),
        (now - cluster.created) / 3600,
        cancelled,
        unfetched,
        cost.receipt(cluster.charges, now),
        cost.dollars(cluster.charges, now),
        cluster.spec.provider,
    )


def finish_down(store: Store, cluster: Cluster, tell: Tell, *, force: bool = False) -> Cluster:
    """The part that is safe to repeat: destroy, then let the record go; returns its last state.

    Machines go also where nothing can be written: a full disk must not keep them. `force` also lets
    go of machines that are not ours and do not answer.
    """
    cluster = replace(cluster, phase=Phase.DELETING)
    with _told(tell):
        store.save(cluster)
    store.event(cluster.name, "deleting")
    if cluster.spec.provider in providers.ATTACHED:
        let_go(store, cluster, tell, force=force)
    else:
        provider, folder = providers.load(cluster.spec.provider), store.folder(cluster.name)
        if cluster.charges:
            cluster = replace(cluster, charges=_made(provider, cluster, folder))
        provider.destroy(cluster, folder, tell)
    now = time.time()
    cluster = replace(cluster, charges=tuple(item.ended(now) for item in cluster.charges))
    how = "detached" if cluster.spec.provider in providers.ATTACHED else "taken down"
    for job in _open_jobs(store, cluster):
        with _told(tell):
            store.save_job(replace(job, state=JobState.LOST, reason=f"its cluster was {how}"))
    store.event(cluster.name, "deleted")
    with _told(tell):
        store.retire(cluster)
    return cluster


def _allowed(store: Store, cluster: Cluster, tell: Tell) -> None:
    """Raises the provider's error where it does not let us in: before a job is ended for a cluster
    that would then stay."""
    try:
        providers.load(cluster.spec.provider).billed(cluster, store.folder(cluster.name))
    except ClusterctlError:
        end = f" until {clock(cluster.deadline)}" if cluster.deadline else ""
        tell(
            f"nothing was ended: the machines go on at ${cost.per_hour(cluster.charges):.2f}/h{end}"
        )
        raise


def _made(provider: providers.Provider, cluster: Cluster, folder: Path) -> tuple[Charge, ...]:
    """The charges of machines that there are, or were: an `up` that broke off has planned more, and
    those that are gone cost no more."""
    try:
        there = provider.billed(cluster, folder)
    except ClusterctlError:
        return cluster.charges
    made = {node.name for node in cluster.nodes} | provider.made(folder)
    return billing.settled(cluster, living=there, made=made, now=time.time())


def strays(store: Store, name: str) -> tuple[Cluster, ...]:
    """The clusters that run under this name and have no record, as their machines tell it."""
    folder = store.folder(name)
    return tuple(
        Cluster(
            id=id,
            spec=ClusterSpec(name=name, provider=provider, groups=()),
            phase=Phase.DELETING,
            created=time.time(),
        )
        for provider in providers.PROVIDERS
        for id in sorted(providers.load(provider).ids(folder))
    )


def _without_record(store: Store, name: str, why: RecordError, tell: Tell, ask: Ask) -> Down | None:
    """Takes down what can be found of a cluster whose record is damaged or gone."""
    found = strays(store, name)
    if not found and name not in store.names():
        if store.names():
            raise why
        return None
    tell(why.message)
    question = "outputs and logs of its jobs cannot be saved; remove it all the same?"
    if found and not ask(question):
        return None
    for cluster in found:
        tell(f"found {cluster.id} by its tags")
        finish_down(store, cluster, tell)
    shutil.rmtree(store.folder(name), ignore_errors=True)
    return Down(name, 0, 0.0, (), ())


@contextmanager
def _told(tell: Tell) -> Iterator[None]:
    """Says what could not be written, and goes on."""
    try:
        yield
    except UsageError as error:
        tell(f"{error.message}; going on without")


def let_go(store: Store, cluster: Cluster, tell: Tell, *, force: bool = False) -> None:
    """Removes our folder and our key from machines that are not ours. LeftoverError names those
    that did not answer: they still have both. With `force` that is only said."""

    def clean(name: str) -> NodeResult:
        steps = [bootstrap.removal(cluster.node(name).root, cluster.id)]
        if not cluster.batch:
            steps.append(bootstrap.shut_out(key_mark(cluster)))
        return pool.transport(name).run("\n".join([*steps, ":"]), timeout=CLEAN_LIMIT)

    with connected(store, cluster) as pool:
        failed = [result for result in pool.each(clean) if not result.ok]
    left = f"our folder and key are still there: {'; '.join(fold(failed))}"
    if failed and not force:
        raise LeftoverError(
            left,
            hint=f"`clusterctl detach {cluster.name}` again when they answer, or with --force",
        )
    if failed:
        tell(left)
    silent_ones = {result.node for result in failed}
    if cleaned := [node.name for node in cluster.nodes if node.name not in silent_ones]:
        tell(f"our files are gone from {ranges(cleaned)}")


def _open_jobs(store: Store, cluster: Cluster) -> list[Job]:
    return [job for job in store.jobs() if job.cluster_id == cluster.id and not job.state.ended]


def _save(
    store: Store, cluster: Cluster, tell: Tell, ask: Ask, act: str
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
        away = silent(pool, [node.name for node in cluster.nodes], tell)
        for name, why in away.items():
            tell(f"what is on {name} cannot be saved: {why}")
        cluster = replace(cluster, nodes=tuple(n for n in cluster.nodes if n.name not in away))
        if all(node.role is Role.WORKER for node in cluster.nodes):
            lost = [job for job in jobs if not job.state.ended or not job.fetched]
            question = f"{act} and lose what jobs {_numbers(lost)} made?"
            return None if lost and not ask(question) else ((), ())
        try:
            jobs = _current(store, jobs, cluster, pool)
            unfetched = never_fetched(jobs, cluster, pool, deadline)
        except (ClusterctlError, OSError) as error:
            tell(f"not everything can be saved: {reason(error)}")
        running = [job for job in jobs if not job.state.ended]
        if running and not ask(f"job {_numbers(running)} is still running; end it?"):
            return None
        for line in loss(unfetched):
            tell(line)
        if unfetched and not ask(f"{act} and lose these outputs?"):
            return None
        if running:
            tell(f"job {_numbers(running)} is ended")
        for job in running:
            try:
                store.save_job(control.cancel(job, cluster, pool))
                cancelled.append(job.id)
            except (ClusterctlError, OSError) as error:
                tell(f"job {job.id} could not be ended cleanly: {reason(error)}")
        save_logs(store, jobs, cluster, pool, tell)
    return tuple(cancelled), tuple(unfetched)


def loss(unfetched: Sequence[tuple[int, int]]) -> list[str]:
    """What would be lost of these jobs (number, bytes): the largest by name, the others summed."""
    named = sorted(sorted(unfetched, key=lambda job: job[1])[-NAMED:])
    lines = [f"job {n} has outputs that were never fetched: {human(size)}" for n, size in named]
    others = [size for number, size in unfetched if (number, size) not in named]
    if others:
        many = "1 more job" if len(others) == 1 else f"{len(others)} more jobs"
        lines.append(f"{many} with smaller ones: {human(sum(others))} together")
    return lines


def _end(store: Store, cluster: Cluster, tell: Tell) -> tuple[int, ...]:
    """Ends open jobs unasked, as far as nodes answer: on machines that are not ours they would go
    on after us. Returns those that were ended."""
    jobs = _open_jobs(store, cluster)
    if not jobs:
        return ()
    ended: list[int] = []
    with connected(store, cluster) as pool:
        away = silent(pool, [node.name for node in cluster.nodes], tell)
        here = replace(cluster, nodes=tuple(n for n in cluster.nodes if n.name not in away))
        for job in jobs:
            try:
                if cluster.launcher.name in away:
                    control.sweep(job, cluster, pool, end=True)
                else:
                    store.save_job(control.cancel(job, here, pool))
                    ended.append(job.id)
            except (ClusterctlError, OSError) as error:
                tell(f"job {job.id} could not be ended cleanly: {reason(error)}")
    return tuple(ended)


def save_logs(
    store: Store,
    jobs: Sequence[Job],
    cluster: Cluster,
    pool: Pool,
    tell: Tell,
    limit: float = SAVE_LIMIT,
) -> None:
    """Brings the rest of these jobs' output into the state home, as far as `limit` seconds allow
    for all of them; what is not saved is named."""
    deadline = time.monotonic() + limit
    late = []
    for job in jobs:
        folder = store.job_folder(job.id)
        if complete(folder):
            continue
        left = deadline - time.monotonic()
        try:
            with (
                Interrupts() as interrupts,
                Follower(store.job(job.id), cluster, pool, folder, interrupts) as follower,
            ):
                for _ in follower.batches(until_ended=False, replay=False, limit=left):
                    pass
                if follower.cut_short:
                    late.append(job)
        except (ClusterctlError, OSError) as error:
            tell(f"the logs of job {job.id} could not be saved: {reason(error)}")
    if late:
        tell(f"saving logs took over {limit:g} s: those of job {_numbers(late)} are incomplete")


def _current(store: Store, jobs: list[Job], cluster: Cluster, pool: Pool) -> list[Job]:
    going = [job for job in jobs if not job.state.ended]
    fresh = {job.id: job for job in control.refresh_all(going, cluster, pool)}
    for job in going:
        if fresh[job.id] != job:
            store.save_job(fresh[job.id])
    return [fresh.get(job.id, job) for job in jobs]


def never_fetched(
    jobs: list[Job], cluster: Cluster, pool: Pool, deadline: float
) -> list[tuple[int, int]]:
    """Jobs with outputs on these nodes that were never fetched, and how many bytes they are; as far
    as that is known by the deadline, a time of the monotonic clock."""
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
